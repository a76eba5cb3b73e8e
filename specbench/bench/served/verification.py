"""Collects evidence about serving engines: outputs of servers, then the target's logits of them.

Torch is imported only after the last server has stopped, and only if the target is on this disk.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from specbench.bench.blocks import Cell, interleaved, request_seed
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import RunPlan
from specbench.bench.served.host import Host, host_of, require_startable
from specbench.bench.served.running import ServerHandle, server_warnings
from specbench.bench.served.sessions import UP, Answers, Session, cycle_of, request_of, served_cells
from specbench.bench.units import Reporter
from specbench.errors import ServerError, SpecbenchError, UsageError, first_line
from specbench.records import DraftConfig, Prompt, Request, Sampling
from specbench.servers.response import StreamedResponse
from specbench.verify.evidence import (
    CONTROL,
    BaselineSample,
    Distance,
    Evidence,
    FailedEvidence,
    GreedyEvidence,
    ServedEvidence,
    Subject,
)
from specbench.verify.judge import is_tie
from specbench.verify.two_samples import (
    ServedText,
    as_outputs,
    between,
    first_divergence,
    have_ids,
)
from specbench.words.answers import text

if TYPE_CHECKING:
    from specbench.bench.served.reference_scorer import ReferenceScorer

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
                error = "K=0 gave no answers, so there is nothing to compare with"
            else:
                try:
                    asyncio.run(self._ask_server(session, temperatures))
                except (SpecbenchError, OSError) as failure:
                    error = first_line(failure)
                    # The whole text has the end of the server's log.
                    self.reporter.warn(f"{session.draft.label}: {failure}")
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
        async with self.host.open(session) as running, running.watch(self.reporter.warn):
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
            done = await running.ask(requests, concurrency=self.concurrency)
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
        by_cell = [[_TurnRef(c, p, 0) for p in self._prompts(c)] for c in cells]
        turns = list(interleaved(by_cell))[:NUM_SAMPLED]
        texts: list[ServedText] = []
        while (missing := self.num_tokens - sum(text.num_tokens for text in texts)) > 0:
            first, num = len(texts), -(-missing // self.most_tokens)
            batch = [turns[i % len(turns)] for i in range(first, first + num)]
            requests = []
            for i, turn in enumerate(batch, first):
                request = self._request(turn, repeat=i, colder=colder)
                self.requests.setdefault(turn.id, request)
                temperature = request.sampling.temperature * colder
                sampling = replace(request.sampling, temperature=temperature)
                short = replace(request, sampling=sampling, max_new_tokens=self.most_tokens)
                requests.append(short)
            done = await running.ask(requests, concurrency=self.concurrency)
            texts += [_text(running, *pair) for pair in zip(batch, done, strict=True)]
        return tuple(texts)

    def _prompts(self, cell: Cell) -> tuple[Prompt, ...]:
        return self.plan.prompts(self.plan.workload(cell.key.condition.workload))

    def _request(self, turn: _TurnRef, repeat: int = 0, colder: float = 1.0) -> Request:
        """A turn after the answers of K = 0 to the turns before; the seed differs by K, repeat and
        `colder`."""
        name = f"{turn.cell.key.draft.label}|{turn.prompt.id}"
        name += f"|{colder:g}" if colder != 1 else ""
        seed = request_seed(self.plan.settings.seed, name, repeat, turn.turn)
        request = request_of(self.plan, turn.cell, turn.prompt, turn.turn, repeat=repeat, seed=seed)
        texts = [self._baseline_texts[turn._replace(turn=i).id] for i in range(turn.turn)]
        return replace(Answers().completed(turn.cell, request, texts), conversation=None)


def _text(running: ServerHandle, turn: _TurnRef, answer: StreamedResponse) -> ServedText:
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


def collect_served_evidence(
    plan: RunPlan, reporter: Reporter, *, num_tokens: int, concurrency: int
) -> list[Evidence]:
    """Evidence for every planned pairing, K and temperature of each serving engine, K = 0 first.

    Raises UsageError before a server is started; a server that fails gives FailedEvidence.
    """
    running = plan.running
    if running and all(server.address.k for server in running):
        raise UsageError(
            "verify compares servers with one without speculation; add it with --base-url, such "
            "as --base-url http://localhost:8000#k=0"
        )
    if lossy := [pairing.name for pairing in plan.pairings if pairing.drafter.lossy]:
        reporter.warn(f"{', '.join(lossy)}: only the built-in decoder has the lossy rule")
    plans = list(_served_parts(plan, concurrency))
    if not plans:
        return []
    if not running:
        require_startable(plans)
    for warning in server_warnings(running, plans[0].served[0], plans[0].target):
        reporter.warn(text(warning))
    evidence: list[Evidence] = []
    for part in plans:
        for note in part.left_out:
            reporter.warn(text(note))
        for engine in part.served:
            with TemporaryDirectory(prefix="specbench-") as folder:
                addresses = [server.address for server in running]
                host = host_of(part, engine, addresses, Path(folder))
                collector = OutputCollector(part, engine, host, reporter, num_tokens, concurrency)
                outputs = collector.run()
            evidence += _OutputScoring(collector, outputs).evidence()
    return evidence


def _served_parts(plan: RunPlan, concurrency: int) -> Iterator[TargetPlan]:
    """The plans of the serving engines, without the lossy rules of the built-in decoder."""
    for target in plan.targets:
        load = replace(target.settings.load, engines=target.served, concurrency=(concurrency,))
        if lossless := tuple(p for p in target.pairings if not p.drafter.lossy):
            settings = replace(target.settings, load=load)
            yield replace(target, pairings=lossless, settings=settings)


class _OutputScoring:
    """Turns servers' outputs into evidence, scored by the target's logits if possible."""

    def __init__(self, collector: OutputCollector, outputs: Sequence[ServerOutputs]) -> None:
        self._collector, self._plan, self._outputs = collector, collector.plan, outputs
        self._baselines = {o.temperature: o for o in outputs if not (o.draft.k or o.error)}
        self._why_not_scored = ""
        self._target: ReferenceScorer | None = None

    def evidence(self) -> list[Evidence]:
        """The evidence of each output, in order."""
        spec = self._plan.target.model
        if spec.folder is None:
            self._why_not_scored = f"{spec.source} is not a folder on this disk"
            return list(self._evidence_per_output())
        self._collector.reporter.stage(f"{self._plan.target.name}: computing its logits")
        # Imported here, so that no torch is loaded while servers run.
        from specbench.bench.served.reference_scorer import ReferenceScorer  # noqa: PLC0415
        from specbench.models.library_errors import EXPECTED_ERRORS  # noqa: PLC0415

        requests, most_tokens = self._collector.requests, self._collector.most_tokens
        try:
            self._target = ReferenceScorer(self._plan, requests, most_tokens)
            return list(self._evidence_per_output())
        except EXPECTED_ERRORS as error:
            self._target, self._why_not_scored = None, first_line(error)
        return list(self._evidence_per_output())

    def _why_not_scored_at(self, temperature: float) -> str:
        """The reason why answers at a temperature cannot be scored; "" if they can."""
        texts = [text for o in self._outputs if o.temperature == temperature for text in o.texts]
        if not self._why_not_scored and not have_ids(texts):
            return "the server does not report the ids of all tokens"
        return self._why_not_scored

    def _evidence_per_output(self) -> Iterator[Evidence]:
        for output in self._outputs:
            if output.error:
                yield FailedEvidence(subject=self._subject(output), reason=output.error)
            elif output.temperature > 0:
                yield self._sampled(output)
            else:
                yield self._greedy(output)

    @cached_property
    def _greedy_baseline(self) -> GreedyEvidence:
        """The texts of K = 0 compared with the target's best tokens."""
        assert self._target is not None
        baseline = self._baselines[0.0]
        evidence = self._target.greedy(self._subject(baseline), baseline.texts, None)
        return replace(evidence, is_baseline=True)

    def _greedy(self, output: ServerOutputs) -> Evidence:
        subject, baseline = self._subject(output), self._baselines[0.0]
        is_baseline = output is baseline
        why_not_scored = self._why_not_scored_at(0.0)
        if self._target is not None and not why_not_scored:
            if is_baseline:
                return self._greedy_baseline
            beyond = [d for d in self._greedy_baseline.divergences if not is_tie(d)]
            if not beyond:
                evidence = self._target.greedy(subject, output.texts, baseline.texts)
                return replace(evidence, rule=output.rule)
            why_not_scored = (
                f"K=0 differs from the target on this machine beyond rounding, first at "
                f"{beyond[0].prompt_id}, token {beyond[0].position}"
            )
        pairs = zip(baseline.texts, output.texts, strict=True)
        differing = (first_divergence(*pair) for pair in pairs)
        return GreedyEvidence(
            subject=subject,
            num_prompts=len(output.texts),
            num_tokens=sum(text.num_tokens for text in output.texts),
            divergences=tuple(d for d in differing if d is not None),
            is_baseline=is_baseline,
            not_scored_because=why_not_scored,
            rule=output.rule,
        )

    def _sampled(self, output: ServerOutputs) -> Evidence:
        subject, baseline = self._subject(output), self._baselines[output.temperature]
        scored = sample = None
        distances: tuple[Distance, ...] = ()
        why_not_scored = self._why_not_scored_at(output.temperature)
        if output is not baseline:
            sets = (output.texts, baseline.texts, baseline.colder)
            has_ids = have_ids(*sets)
            outputs, plain, colder = (as_outputs(texts, has_ids=has_ids) for texts in sets)
            sample = BaselineSample(outputs=outputs, baseline_outputs=plain, colder=colder)
            distances = between(outputs, plain)
        elif self._target is not None and not why_not_scored:
            settings = self._plan.settings.sampling
            sampling = Sampling(
                temperature=output.temperature, top_k=settings.top_k, top_p=settings.top_p
            )
            num = self._collector.num_tokens
            scored, tally = self._target.sampled(subject, sampling, output.texts, num)
            distances = tally.distances()
        return ServedEvidence(
            subject=subject,
            num_texts=len(output.texts),
            num_tokens=sum(text.num_tokens for text in output.texts),
            scored=scored,
            sample=sample,
            distances=distances,
            not_scored_because=why_not_scored,
            rule=output.rule,
        )

    def _subject(self, output: ServerOutputs) -> Subject:
        target, drafter = self._plan.target.name, output.draft.drafter
        return Subject(
            pairing=f"{target}/{drafter}" if output.draft.k else target,
            engine=self._collector.engine,
            method=output.draft.method,
            num_speculative_tokens=output.draft.k,
            temperature=output.temperature,
            lossy=output.draft.lossy,
        )
