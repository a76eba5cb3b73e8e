"""The sessions of a cycle, in an order in which drift affects every K alike, and their requests,
condition by condition and in the same order at every K.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from specbench.bench.blocks import Block, Cell, request_seed
from specbench.bench.plan import TEMPLATE_TOKENS, TargetPlan
from specbench.errors import ModelError
from specbench.files.gguf import gguf_of
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.files.tokenizer import TEMPLATE_CLOCK, prints_clock
from specbench.metrics.aggregate import usable_sessions
from specbench.records import (
    SESSIONS_PER_K,
    BlockPurpose,
    DraftConfig,
    Message,
    Prompt,
    Request,
    RequestRecord,
    ServerRecord,
)
from specbench.runs import StoredRun
from specbench.settings import OPENAI

UP, DOWN = range(SESSIONS_PER_K)
Start = tuple[DraftConfig, str | None]  # with the variant


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """The requests that one server start, or a running server, serves: at one K and temperature,
    under one set of arguments.
    """

    engine: str
    target: str
    draft: DraftConfig
    temperature: float
    purpose: BlockPurpose
    cycle: int  # from 0; the confirmation has separate numbers
    leg: int  # UP or DOWN
    cells: tuple[Cell, ...]  # one per condition
    variant: str | None = None  # name of its arguments
    num_prompts: int | None = None  # that confirm a choice; None: as many as chose

    @property
    def start(self) -> Start:
        """The facts on which the start of its server depends."""
        return self.draft, self.variant

    @property
    def place(self) -> str:
        """The id of the session, the same for every attempt at it."""
        at = f"{self.target}|{self.engine}|{self.draft.drafter}|{self.draft.length.id}"
        variant = f"|v{self.variant}" if self.variant else ""
        return f"{at}{variant}|t{self.temperature:g}|{self.purpose}|c{self.cycle}.{self.leg}"

    @property
    def repeat(self) -> int:
        """The index of the session among those of its K, from which repeats are numbered."""
        return self.cycle * SESSIONS_PER_K + self.leg

    @property
    def configuration(self) -> str:
        """For people: `draft K=4`, and the variant: `draft K=4 (eager)`."""
        return f"{self.draft.label} ({self.variant})" if self.variant else self.draft.label

    @property
    def label(self) -> str:
        """For people: `vllm, draft K=4, cycle 2, on the way back`."""
        back = ", on the way back" if self.leg == DOWN else ""
        return f"{self.engine}, {self.configuration}, cycle {self.cycle + 1}{back}"

    def blocks(self, plan: TargetPlan, name: str = "") -> Iterator[Block]:
        """A block per condition, its prompts in the same shuffled order at every K.

        `name`: the name of this attempt at the session.
        """
        for cell in self.cells:
            condition, effort = cell.key.condition, plan.settings.effort
            workload = plan.workload(condition.workload)
            prompts = list(plan.measured(workload))
            if self.purpose == "confirm":  # on prompts that did not choose K, if there are enough
                used = {prompt.id for prompt in prompts}
                prompts = [*plan.other_prompts(workload, used, self.num_prompts)] or prompts
            if effort.num_requests is not None:
                prompts = [prompts[i % len(prompts)] for i in range(effort.num_requests)]
            if condition.is_stream:
                prompts = list(plan.pass_prompts(workload, condition))
            seed = f"{plan.settings.seed}|{self.repeat}|{workload.name}"
            random.Random(seed).shuffle(prompts)
            yield Block(
                condition=condition,
                prompts=tuple(prompts),
                repeat=self.repeat,
                purpose=self.purpose,
                cells=(cell,),
                session=name,
                cycle=self.cycle,
            )


def served_cells(plan: TargetPlan, engine: str) -> tuple[Cell, ...]:
    """The plan's cells of one serving engine."""
    return tuple(cell for cell in plan.all_cells if cell.key.condition.engine == engine)


def cycle_of(
    cells: Sequence[Cell],
    cycle: int,
    purpose: BlockPurpose = "explore",
    num_prompts: int | None = None,
) -> Iterator[Session]:
    """The sessions of a cycle: K = 0, every K, then the same in reverse.

    A steady drift within a cycle affects all of them alike. `num_prompts`: as in Session.
    """
    starts: dict[tuple[DraftConfig, float, str | None], list[Cell]] = {}
    for cell in cells:
        at = cell.key.condition
        starts.setdefault((cell.key.draft, at.temperature, at.variant), []).append(cell)
    up = sorted(starts.items(), key=lambda start: start[0][0].k > 0)  # K = 0 at both ends
    for leg, order in ((UP, up), (DOWN, up[::-1])):
        for (draft, temperature, variant), session_cells in order:
            at = session_cells[0].key.condition
            yield Session(
                engine=at.engine,
                target=at.target,
                draft=draft,
                temperature=temperature,
                purpose=purpose,
                cycle=cycle,
                leg=leg,
                cells=tuple(session_cells),
                variant=variant,
                num_prompts=num_prompts,
            )


def sessions_missing(sessions: Sequence[Session], servers: Sequence[ServerRecord]) -> list[Session]:
    """The sessions of a cycle that have no usable record."""
    usable = {server.place for server in usable_sessions(servers).values()}
    return [session for session in sessions if session.place not in usable]


def next_name(session: Session, stored: StoredRun) -> str:
    """A name for the next attempt at a session, unused even by killed attempts."""
    names = {b.session for b in stored.blocks} | {s.session for s in stored.servers}
    attempt = 1
    while (name := f"{session.place}#{attempt}") in names:
        attempt += 1
    return name


def was_completed(server: ServerRecord) -> bool:
    """Whether the session was completed, with or without problems."""
    return server.seconds > 0


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
    return Request(
        messages=prompt.history(turn, [UNANSWERED] * turn),
        tools=prompt.tools,
        template_args={**clock_args, **prompt.template_args},
        settings=prompt.settings,
        max_new_tokens=plan.max_new_tokens(cell.key.condition.workload),
        sampling=cell.sampling,
        seed=seed,
        conversation=f"{prompt.id}|{repeat}" if len(prompt.turns) > 1 else None,
        keeps_prefixes=plan.settings.servers.prefix_cache,
        omitted=plan.settings.servers.omit_fields,
        prompt_id=prompt.id,
        turn=turn,
        repeat=repeat,
    )


@cache  # so that no file is read while a request is timed
def template_clock(target: ModelSpec, engine: str) -> tuple[str | None, Mapping[str, str]]:
    """The date that a server's chat template prints, as in a ServerRecord, and the template
    arguments that fix it. The API of OpenAI accepts no such arguments."""
    template: str | None = None
    with suppress(ModelError):
        template = (gguf_of if target.is_gguf else open_model)(target).chat_template
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
            num_bytes = len(prompt.text.encode())
            num_bytes += sum(len(json.dumps(dict(tool))) for tool in prompt.tools)
            answers = len(prompt.turns) * plan.max_new_tokens(workload.name)
            needed = max(needed, num_bytes // MIN_BYTES_PER_TOKEN + answers + TEMPLATE_TOKENS)
    return needed
