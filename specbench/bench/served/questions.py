"""Builds the requests of a server session: one condition, in the same order at every K."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from specbench.bench.blocks import Block, Cell, request_seed
from specbench.bench.long_prompts import TEMPLATE_TOKENS
from specbench.bench.plan import TargetPlan
from specbench.errors import ModelError
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.files.tokenizer import TEMPLATE_CLOCK, prints_clock
from specbench.records import Message, Prompt, Request, RequestRecord
from specbench.settings import OPENAI

MIN_BYTES_PER_TOKEN = 2  # on average, with any usual tokenizer
UNANSWERED = Message(role="assistant", content="")  # placeholder for an earlier turn's answer


class Answers:
    """The server's first outputs without speculation: the history of later turns at every K."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, float, str, int], str] = {}

    def learn(self, cell: Cell, requests: Sequence[RequestRecord]) -> None:
        """Store the outputs of a session without speculation, if they are the first."""
        for request in requests:
            if request.text is not None and request.finish_reason != "failed":
                self._texts.setdefault(
                    (*_setting(cell), request.prompt_id, request.turn), request.text
                )

    def completed(self, cell: Cell, request: Request, texts: Sequence[str]) -> Request:
        """The request with the outputs of earlier turns inserted.

        `texts`: the outputs of this session, used for turns without a stored output.
        """
        answers = (
            self._texts.get((*_setting(cell), request.prompt_id, turn), text)
            for turn, text in enumerate(texts)
        )
        messages = (
            Message(role="assistant", content=next(answers)) if message is UNANSWERED else message
            for message in request.messages
        )
        return replace(request, messages=tuple(messages))


def _setting(cell: Cell) -> tuple[str, float]:
    return cell.key.condition.workload, cell.key.condition.temperature


def requests_of(plan: TargetPlan, block: Block) -> list[Request]:
    """The requests of a session's block, the turns of a prompt in order."""
    (cell,) = block.cells
    return [
        request_of(
            plan,
            cell,
            prompt,
            turn,
            repeat=repeat,
            seed=request_seed(plan.settings.seed, prompt.id, repeat, turn),
        )
        for prompt, repeat in block.numbered_prompts()
        for turn in range(len(prompt.turns))
    ]


def request_of(
    plan: TargetPlan, cell: Cell, prompt: Prompt, turn: int, *, repeat: int, seed: int
) -> Request:
    """The request for a turn, with placeholders for the outputs of earlier turns."""
    _, clock_args = template_clock(plan.target.model, cell.key.condition.engine)
    messages: list[Message] = []
    for earlier in prompt.turns[:turn]:
        messages += (*earlier, UNANSWERED)
    return Request(
        messages=(*messages, *prompt.turns[turn]),
        tools=prompt.tools,
        template_args={**clock_args, **prompt.template_args},
        max_new_tokens=plan.max_new_tokens(cell.key.condition.workload),
        sampling=cell.sampling,
        seed=seed,
        conversation=f"{prompt.id}|{repeat}" if len(prompt.turns) > 1 else None,
        keeps_prefixes=plan.settings.servers.prefix_cache,
        prompt_id=prompt.id,
        turn=turn,
        repeat=repeat,
    )


@cache  # so that no file is read while a request is timed
def template_clock(target: ModelSpec, engine: str) -> tuple[str | None, Mapping[str, str]]:
    """The date that a server's chat template prints, as in a ServerRecord, and the template
    arguments that fix it. The API of OpenAI accepts no such arguments."""
    try:
        template = open_model(target).chat_template
    except ModelError:
        template = None
    if template is None or not prints_clock(template):
        return (None if template is None else ""), {}
    if engine == OPENAI or "date_string" not in template:
        return "server", {}
    return f"{TEMPLATE_CLOCK:%Y-%m-%d}", {"date_string": f"{TEMPLATE_CLOCK:%d %b %Y}"}


def context_needed(plan: TargetPlan, cells: Sequence[Cell]) -> int:
    """An upper estimate of the tokens of the longest conversation, including its outputs."""
    needed = 0
    for workload in map(plan.workload, {cell.key.condition.workload for cell in cells}):
        for prompt in workload.prompts:
            num_bytes = sum(len(m.content.encode()) for turn in prompt.turns for m in turn)
            num_bytes += sum(len(json.dumps(dict(tool))) for tool in prompt.tools)
            answers = len(prompt.turns) * plan.max_new_tokens(workload.name)
            needed = max(needed, num_bytes // MIN_BYTES_PER_TOKEN + answers + TEMPLATE_TOKENS)
    return needed
