"""Asks a target's servers for texts to verify: the same of each K, K = 0 first. No torch."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import NamedTuple

from specbench.bench.blocks import Cell, request_seed
from specbench.bench.plan import TargetPlan
from specbench.bench.progress import Reporter
from specbench.bench.served.host import Host
from specbench.bench.served.questions import Answers, request_of
from specbench.bench.served.running import ServerHandle
from specbench.bench.served.sessions import UP, Session, cycle_of, served_cells
from specbench.engines.served_engine import find_served
from specbench.errors import ServerError, SpecbenchError, first_line
from specbench.records import DraftConfig, Prompt, Request
from specbench.servers.silence import watch_for_stalls
from specbench.servers.streamed import Streamed
from specbench.verify.evidence import CONTROL
from specbench.verify.two_samples import ServedText

NUM_SAMPLED = 4  # prompts whose answers are sampled: few, so that each has many
# Tokens of a sampled answer beyond the largest K: the prefill's, a round that accepts all drafts
# and adds one, and some of the next.
BEYOND_K = 4


class ServerOutputs(NamedTuple):
    """What one server answered at one temperature, or why it did not."""

    draft: DraftConfig
    temperature: float
    texts: tuple[ServedText, ...] = ()
    colder: tuple[ServedText, ...] = ()  # of K = 0, at a lower temperature
    rule: str | None = None  # of acceptance
    error: str = ""


class _TurnRef(NamedTuple):
    """A turn of a prompt, by the cell whose condition it is asked under."""

    cell: Cell
    prompt: Prompt
    turn: int

    @property
    def id(self) -> str:
        name = f"{self.cell.key.condition.workload}/{self.prompt.id}"
        return f"{name}, turn {self.turn + 1}" if self.turn else name


@dataclass
class OutputCollector:
    """Asks the servers of one engine that serve one target; `num_tokens` are sampled per K."""

    plan: TargetPlan
    engine: str
    host: Host
    reporter: Reporter
    num_tokens: int
    concurrency: int
    requests: dict[str, Request] = field(default_factory=dict)  # by the id of the place
    outputs: list[ServerOutputs] = field(default_factory=list)
    _baseline_texts: dict[str, str] = field(default_factory=dict)  # by K = 0 at temperature 0

    def run(self) -> list[ServerOutputs]:
        """Server after server, every temperature of each; also one that fails."""
        for session in self._sessions():
            temperatures = [*dict.fromkeys(c.key.condition.temperature for c in session.cells)]
            own = [one.temperature for one in self.outputs if not (one.draft.k or one.error)]
            error = ""
            if session.draft.k and not {*temperatures} <= {*own}:
                error = "K = 0 gave no answers, so there is nothing to compare with"
            else:
                try:
                    asyncio.run(self._ask_server(session, temperatures))
                except (SpecbenchError, OSError) as failure:
                    error = first_line(failure)
                    self.reporter.warn(
                        f"{session.draft.label}: {failure}"
                    )  # with the end of its log
            done = [one.temperature for one in self.outputs if one.draft == session.draft]
            left = [t for t in temperatures if t not in done]
            self.outputs += [ServerOutputs(session.draft, t, error=error) for t in left]
        return self.outputs

    @property
    def most_tokens(self) -> int:
        """The limit of a sampled answer, the same at every K."""
        return BEYOND_K + max(c.key.draft.k for c in served_cells(self.plan, self.engine))

    def _sessions(self) -> Iterator[Session]:
        """K = 0 once for all temperatures; a drafter may be told otherwise at each."""
        ways = [s for s in cycle_of(served_cells(self.plan, self.engine), 0) if s.leg == UP]
        for draft in dict.fromkeys(session.draft for session in ways):
            sessions = [session for session in ways if session.draft == draft]
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
        """Turn after turn of all prompts; those before it were answered by K = 0.

        A later turn that the server cannot take is left out at every K.
        """
        is_own = cells[0].key.draft.k == 0
        left = [
            _TurnRef(cell, prompt, turn)
            for cell in cells
            for prompt in self._prompts(cell)
            for turn in range(len(prompt.turns))
        ]
        found: list[ServedText] = []
        for turn in range(max(place.turn for place in left) + 1):
            places = [
                p for p in left if p.turn == turn and (is_own or p.id in self._baseline_texts)
            ]
            requests = [self._request(place) for place in places]
            done = await running.ask(self.engine, requests, concurrency=self.concurrency)
            for place, asked, answered in zip(places, requests, done, strict=True):
                if answered.error and turn and is_own:
                    self.reporter.warn(f"{place.id} and after are left out: {answered.error}")
                    left = [p for p in left if p.prompt is not place.prompt]
                    continue
                found.append(_text(running, place, answered))
                if is_own:
                    self.requests[place.id] = asked
                    self._baseline_texts[place.id] = found[-1].text
        return tuple(found)

    async def _sampled(
        self, running: ServerHandle, cells: Sequence[Cell], colder: float = 1.0
    ) -> tuple[ServedText, ...]:
        """Short answers, the prompts in turn, until they have enough tokens together.

        The temperature is `colder` times the cells'.
        """
        in_turns = zip_longest(*([_TurnRef(c, p, 0) for p in self._prompts(c)] for c in cells))
        places = [place for turn in in_turns for place in turn if place][:NUM_SAMPLED]
        found: list[ServedText] = []
        while (missing := self.num_tokens - sum(one.num_tokens for one in found)) > 0:
            first, num = len(found), -(-missing // self.most_tokens)
            batch = [places[i % len(places)] for i in range(first, first + num)]
            requests = []
            for i, place in enumerate(batch, first):
                asked = self._request(place, repeat=i)
                self.requests.setdefault(place.id, asked)
                temperature = asked.sampling.temperature * colder
                sampling = replace(asked.sampling, temperature=temperature)
                requests.append(replace(asked, sampling=sampling, max_new_tokens=self.most_tokens))
            done = await running.ask(self.engine, requests, concurrency=self.concurrency)
            found += [_text(running, *one) for one in zip(batch, done, strict=True)]
        return tuple(found)

    def _prompts(self, cell: Cell) -> tuple[Prompt, ...]:
        return self.plan.prompts(self.plan.workload(cell.key.condition.workload))

    def _request(self, place: _TurnRef, repeat: int = 0) -> Request:
        """With the turns before it as K = 0 answered them; each K and repeat has its own seed."""
        name = f"{place.cell.key.draft.label}|{place.prompt.id}"
        seed = request_seed(self.plan.settings.seed, name, repeat, place.turn)
        request = request_of(
            self.plan, place.cell, place.prompt, place.turn, repeat=repeat, seed=seed
        )
        texts = [self._baseline_texts[place._replace(turn=turn).id] for turn in range(place.turn)]
        return replace(Answers().completed(place.cell, request, texts), conversation=None)


def _text(running: ServerHandle, place: _TurnRef, answer: Streamed) -> ServedText:
    """ServerError where there is none; a server that has ended says why."""
    if answer.error is not None:
        running.require()
        raise ServerError(f"{place.id} was not answered: {answer.error}")
    return ServedText(
        prompt=place.id,
        ids=tuple(answer.token_ids),
        text=answer.text,
        num_prompt_tokens=answer.num_prompt_tokens,
        is_ended=answer.finish_reason == "stop",
    )
