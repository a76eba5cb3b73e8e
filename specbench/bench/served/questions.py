"""What is asked in a session: the requests of one condition, in the same order at every K."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from specbench.bench.blocks import Cell, request_seed
from specbench.bench.long_prompts import TEMPLATE_TOKENS
from specbench.bench.plan import TargetPlan
from specbench.bench.served.sessions import Session
from specbench.engines.served import Question
from specbench.errors import ModelError
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.files.tokenizer import TEMPLATE_CLOCK, prints_clock
from specbench.records import Message, Prompt, RequestRecord

FEWEST_BYTES_PER_TOKEN = 2  # on average, with any usual tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRequest:
    """One request of a condition."""

    prompt: Prompt
    turn: int
    repeat: int
    seed: int

    @property
    def conversation(self) -> str | None:
        """The id of its conversation, whose turns follow one another; None for a single turn."""
        is_one = len(self.prompt.turns) > 1
        return f"{self.prompt.id}|{self.repeat}" if is_one else None


class Answers:
    """What the server first answered without speculation: later turns follow it at every K."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, float, str, int], str] = {}

    def learn(self, cell: Cell, requests: Sequence[RequestRecord]) -> None:
        """From a session without speculation."""
        for request in requests:
            if request.text is not None and request.finish_reason != "failed":
                self._texts.setdefault(
                    (*_place(cell), request.prompt_id, request.turn), request.text
                )

    def history(
        self, cell: Cell, asked: PlannedRequest, said: Sequence[str]
    ) -> tuple[Message, ...]:
        """All messages up to a turn, with earlier answers in between.

        `said`: the answers of this session, used where none is known yet.
        """
        messages: list[Message] = []
        for turn, own in zip(range(asked.turn), said, strict=True):
            text = self._texts.get((*_place(cell), asked.prompt.id, turn), own)
            messages += (*asked.prompt.turns[turn], Message(role="assistant", content=text))
        return (*messages, *asked.prompt.turns[asked.turn])


def _place(cell: Cell) -> tuple[str, float]:
    return cell.key.condition.workload, cell.key.condition.temperature


def asked_in(plan: TargetPlan, session: Session, cell: Cell) -> list[PlannedRequest]:
    """The condition's requests, prompts shuffled alike at every K, turns of a prompt in order."""
    condition = cell.key.condition
    workload = plan.workload(condition.workload)
    prompts = list(plan.measured(workload))
    if (wanted := plan.settings.effort.num_requests) is not None:
        prompts = [prompts[i % len(prompts)] for i in range(wanted)]
    if condition.is_stream:
        prompts = list(plan.pass_prompts(workload, condition))
    times = -(-len(prompts) // len({prompt.id for prompt in prompts}))
    random.Random(f"{plan.settings.seed}|{session.repeat}|{condition.workload}").shuffle(prompts)
    seen: dict[str, int] = {}
    found: list[PlannedRequest] = []
    for prompt in prompts:
        repeat = session.repeat * times + seen.get(prompt.id, 0)
        seen[prompt.id] = seen.get(prompt.id, 0) + 1
        for turn in range(len(prompt.turns)):
            found.append(
                PlannedRequest(
                    prompt=prompt,
                    turn=turn,
                    repeat=repeat,
                    seed=request_seed(plan.settings.seed, prompt.id, repeat, turn),
                )
            )
    return found


def question(
    plan: TargetPlan, cell: Cell, asked: PlannedRequest, messages: tuple[Message, ...]
) -> Question:
    """The request as an engine is asked it."""
    _, clock_args = template_clock(plan.target.model, cell.key.condition.engine)
    return Question(
        messages=messages,
        max_tokens=plan.max_new_tokens(cell.key.condition.workload),
        sampling=cell.sampling,
        seed=asked.seed,
        tools=asked.prompt.tools,
        template_args={**clock_args, **asked.prompt.template_args},
        keeps_prefixes=plan.settings.servers.prefix_cache,
    )


@cache  # no file is read while a request is timed
def template_clock(target: ModelSpec, engine: str) -> tuple[str | None, Mapping[str, str]]:
    """The date that a server's chat template prints, as in a ServerRecord, and the template
    arguments that fix it; OpenAI's API takes none."""
    try:
        template = open_model(target).chat_template
    except ModelError:
        template = None
    if template is None or not prints_clock(template):
        return (None if template is None else ""), {}
    if engine == "openai" or "date_string" not in template:
        return "server", {}
    return f"{TEMPLATE_CLOCK:%Y-%m-%d}", {"date_string": f"{TEMPLATE_CLOCK:%d %b %Y}"}


def context_needed(plan: TargetPlan, cells: Sequence[Cell]) -> int:
    """An upper estimate of the tokens of the longest conversation, all its answers included."""
    needed = 0
    for workload in map(plan.workload, {cell.key.condition.workload for cell in cells}):
        for prompt in workload.prompts:
            said = sum(len(m.content.encode()) for turn in prompt.turns for m in turn)
            said += sum(len(json.dumps(dict(tool))) for tool in prompt.tools)
            answers = len(prompt.turns) * plan.max_new_tokens(workload.name)
            needed = max(needed, said // FEWEST_BYTES_PER_TOKEN + answers + TEMPLATE_TOKENS)
    return needed
