"""Collects texts to verify from a target's servers: the same prompts at each K. No torch."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import NamedTuple

from specbench.bench.blocks import Cell, request_seed
from specbench.bench.plan import TargetPlan
from specbench.bench.progress import Reporter
from specbench.bench.served.host import Host
from specbench.bench.served.running import ServerHandle
from specbench.bench.served.sessions import UP, Answers, Session, cycle_of, request_of, served_cells
from specbench.engines.served_engine import find_served
from specbench.errors import ServerError, SpecbenchError, first_line
from specbench.records import DraftConfig, Prompt, Request
from specbench.servers.silence import watch_for_stalls
from specbench.servers.streamed import Streamed
from specbench.verify.evidence import CONTROL
from specbench.verify.two_samples import ServedText

NUM_SAMPLED = 4  # prompts with sampled answers: few, so that each has many answers
# Tokens of a sampled answer beyond the largest K: for the prefill, for a round that accepts all
# drafts, and for part of the next round.
BEYOND_K = 4


class ServerOutputs(NamedTuple):
    """The answers of one server at one temperature, or the error in their place."""

    draft: DraftConfig
    temperature: float
    texts: tuple[ServedText, ...] = ()
    colder: tuple[ServedText, ...] = ()  # of K = 0, at a lower temperature
    rule: str | None = None  # of acceptance
    error: str = ""


class _TurnRef(NamedTuple):
    """A turn of a prompt, with a cell of the condition it belongs to."""

    cell: Cell
    prompt: Prompt
    turn: int

    @property
    def id(self) -> str:
        name = f"{self.cell.key.condition.workload}/{self.prompt.id}"
        return f"{name}, turn {self.turn + 1}" if self.turn else name


@dataclass
class OutputCollector:
    """Collects the outputs of one engine's servers for one target; samples `num_tokens` per K."""

    plan: TargetPlan
    engine: str
    host: Host
    reporter: Reporter
    num_tokens: int
    concurrency: int
    requests: dict[str, Request] = field(default_factory=dict)  # by the id of the turn
    outputs: list[ServerOutputs] = field(default_factory=list)
    _baseline_texts: dict[str, str] = field(default_factory=dict)  # of K = 0 at temperature 0

    def run(self) -> list[ServerOutputs]:
        """The outputs of every server at every temperature, including failures."""
        for session in self._sessions():
            temperatures = [*dict.fromkeys(c.key.condition.temperature for c in session.cells)]
            baseline_temps = [o.temperature for o in self.outputs if not (o.draft.k or o.error)]
            error = ""
            if session.draft.k and not {*temperatures} <= {*baseline_temps}:
                error = "K = 0 gave no answers, so there is nothing to compare with"
            else:
                try:
                    asyncio.run(self._ask_server(session, temperatures))
                except (SpecbenchError, OSError) as failure:
                    error = first_line(failure)
                    self.reporter.warn(
                        f"{session.draft.label}: {failure}"
                    )  # with the end of its log
            done = [o.temperature for o in self.outputs if o.draft == session.draft]
            left = [t for t in temperatures if t not in done]
            self.outputs += [ServerOutputs(session.draft, t, error=error) for t in left]
        return self.outputs

    @property
    def most_tokens(self) -> int:
        """The limit of a sampled answer, the same at every K."""
        return BEYOND_K + max(c.key.draft.k for c in served_cells(self.plan, self.engine))

    def _sessions(self) -> Iterator[Session]:
        """K = 0 once for all temperatures; a drafter's command may depend on the temperature."""
        first_leg = [s for s in cycle_of(served_cells(self.plan, self.engine), 0) if s.leg == UP]
        for draft in dict.fromkeys(session.draft for session in first_leg):
            sessions = [session for session in first_leg if session.draft == draft]
            if draft.k:
                yield from sessions
            else:
                cells = chain.from_iterable(session.cells for session in sessions)
                yield replace(sessions[0], cells=tuple(cells))

    async def _ask_server(self, session: Session, temperatures: Sequence[float]) -> None:
        label = f"{session.target}: {self.engine}, {session.draft.label}"
        self.reporter.stage(f"{label}: starting")
        health = find_served(self.engine).HEALTH
        async with (
            self.host.open(session) as running,
            watch_for_stalls(running.clients, health, self.reporter.warn),
        ):
            for temperature in temperatures:
                self.reporter.stage(f"{label}: T={temperature:g}")
                cells = [c for c in session.cells if c.key.condition.temperature == temperature]
                texts = await (self._sampled if temperature else self._greedy)(running, cells)
                is_control = temperature > 0 and session.draft.k == 0
                colder = await self._sampled(running, cells, CONTROL) if is_control else ()
                rule = running.acceptance_rule
                self.outputs.append(ServerOutputs(session.draft, temperature, texts, colder, rule))

    async def _greedy(self, running: ServerHandle, cells: Sequence[Cell]) -> tuple[ServedText, ...]:
        """The answers to all turns; the earlier turns have the answers of K = 0.

        A later turn that the server cannot answer is left out at every K.
        """
        is_baseline = cells[0].key.draft.k == 0
        left = [
            _TurnRef(cell, prompt, turn)
            for cell in cells
            for prompt in self._prompts(cell)
            for turn in range(len(prompt.turns))
        ]
        texts: list[ServedText] = []
        for number in range(max(turn.turn for turn in left) + 1):
            turns = [t for t in left if t.turn == number]
            if not is_baseline:
                turns = [turn for turn in turns if turn.id in self._baseline_texts]
            requests = [self._request(turn) for turn in turns]
            done = await running.ask(self.engine, requests, concurrency=self.concurrency)
            for turn, request, answer in zip(turns, requests, done, strict=True):
                if answer.error and number and is_baseline:
                    self.reporter.warn(f"{turn.id} and after are left out: {answer.error}")
                    left = [t for t in left if t.prompt is not turn.prompt]
                    continue
                texts.append(_text(running, turn, answer))
                if is_baseline:
                    self.requests[turn.id] = request
                    self._baseline_texts[turn.id] = texts[-1].text
        return tuple(texts)

    async def _sampled(
        self, running: ServerHandle, cells: Sequence[Cell], colder: float = 1.0
    ) -> tuple[ServedText, ...]:
        """Short answers to the prompts in rotation, until they have `num_tokens` in total.

        The temperature is `colder` times the cells'.
        """
        by_cell = zip_longest(*([_TurnRef(c, p, 0) for p in self._prompts(c)] for c in cells))
        turns = [turn for row in by_cell for turn in row if turn][:NUM_SAMPLED]
        texts: list[ServedText] = []
        while (missing := self.num_tokens - sum(text.num_tokens for text in texts)) > 0:
            first, num = len(texts), -(-missing // self.most_tokens)
            batch = [turns[i % len(turns)] for i in range(first, first + num)]
            requests = []
            for i, turn in enumerate(batch, first):
                request = self._request(turn, repeat=i)
                self.requests.setdefault(turn.id, request)
                temperature = request.sampling.temperature * colder
                sampling = replace(request.sampling, temperature=temperature)
                short = replace(request, sampling=sampling, max_new_tokens=self.most_tokens)
                requests.append(short)
            done = await running.ask(self.engine, requests, concurrency=self.concurrency)
            texts += [_text(running, *pair) for pair in zip(batch, done, strict=True)]
        return tuple(texts)

    def _prompts(self, cell: Cell) -> tuple[Prompt, ...]:
        return self.plan.prompts(self.plan.workload(cell.key.condition.workload))

    def _request(self, turn: _TurnRef, repeat: int = 0) -> Request:
        """A turn after the answers of K = 0 to the turns before; the seed differs by K and
        repeat."""
        name = f"{turn.cell.key.draft.label}|{turn.prompt.id}"
        seed = request_seed(self.plan.settings.seed, name, repeat, turn.turn)
        request = request_of(self.plan, turn.cell, turn.prompt, turn.turn, repeat=repeat, seed=seed)
        texts = [self._baseline_texts[turn._replace(turn=i).id] for i in range(turn.turn)]
        return replace(Answers().completed(turn.cell, request, texts), conversation=None)


def _text(running: ServerHandle, turn: _TurnRef, answer: Streamed) -> ServedText:
    """The text of an answer; ServerError if it failed, with the cause if the server ended."""
    if answer.error is not None:
        running.require_running()
        raise ServerError(f"prompt {turn.id}: the server did not answer: {answer.error}")
    return ServedText(
        prompt=turn.id,
        ids=tuple(answer.token_ids),
        text=answer.text,
        num_prompt_tokens=answer.num_prompt_tokens,
        is_ended=answer.finish_reason == "stop",
    )
