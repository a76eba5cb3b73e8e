"""Traces every loaded drafter along the target's texts; each trace is stored immediately."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from specbench.bench.blocks import Block
from specbench.bench.budget import Deadline
from specbench.bench.session import OpenTarget
from specbench.engines.engine import Engine
from specbench.errors import first_line
from specbench.inputs.pairing import Pairing
from specbench.models.library_errors import EXPECTED_ERRORS, errors_translated
from specbench.records import Condition, Prompt, TraceRecord
from specbench.records.forecasts import Drafting
from specbench.stats.spread import MIN_UNITS
from specbench.tracing.trace import TargetText

TRACING_SHARE = 0.3  # of the time that exploring may take
MAX_TRACING_SHARE = 0.5  # for the first five prompts, to leave time for measuring the leaders
# Traces one drafter along the turns of a prompt; an expected error if it cannot be traced.
Trace = Callable[
    [Engine, str, str, Sequence[TargetText], Iterable[int], Drafting], tuple[TraceRecord, ...]
]


class TraceKey(NamedTuple):
    """The facts that traces depend on in addition to the drafter.

    Conditions that differ only in the concurrency share traces.
    """

    workload: str
    temperature: float
    context: int | None


def trace_key_of(condition: Condition) -> TraceKey:
    return TraceKey(condition.workload, condition.temperature, condition.context)


class Tracer:
    """The traces of one target's drafters, including those of earlier sessions of the run."""

    def __init__(
        self, session: OpenTarget, trace: Trace, drafting: Callable[[float], Drafting]
    ) -> None:
        """`drafting` returns how draft tokens are picked at a temperature."""
        self._session, self._trace, self._drafting = session, trace, drafting
        self._plan, self._store, self._reporter = session.plan, session.store, session.reporter
        self._texts: dict[TraceKey, list[TargetText]] = {}
        self._seconds: dict[TraceKey, float] = {}  # of decoding texts that only traces need
        self._untraceable: set[tuple[str, float | None]] = set()  # None: at any temperature

    def run(self, pairings: Sequence[Pairing], deadline: Deadline) -> None:
        """Trace prompt after prompt through all workloads.

        A budget ends it at `TRACING_SHARE` of the time; at `MAX_TRACING_SHARE` in the first five
        prompts.
        """
        depths: dict[tuple[str, tuple[object, ...]], int] = {}
        for trace in self._store.stored.traces:
            if trace.target == self._target:
                at = trace.drafter, _text_of(trace)
                depths[at] = max(trace.num_speculative_tokens, depths.get(at, 0))
        is_within = deadline.start_share()
        for i, (key, condition, prompt) in self._numbered():
            share = TRACING_SHARE if i >= MIN_UNITS else MAX_TRACING_SHARE
            if i and not is_within(share):
                return
            self._reporter.stage(f"{self._target}: tracing {key.workload}")
            texts = self._decode(key, condition, prompt)
            self._texts.setdefault(key, []).extend(texts)
            for pairing in pairings if texts else ():
                name, deepest = pairing.drafter.name, max(self._ks(pairing), default=0)
                # Each K of a tree is a record, the deepest last: a killed run may lack some.
                if any(depths.get((name, _text_of(text)), 0) < deepest for text in texts):
                    self._trace_one(pairing, texts)

    def texts(self, condition: Condition) -> Sequence[TargetText]:
        """The texts for a condition, without texts that have no round."""
        return [t for t in self._texts.get(trace_key_of(condition), ()) if t.num_starts]

    def traces(self, pairing: Pairing, condition: Condition) -> list[TraceRecord]:
        """The traces of one drafter under a condition; the last ones if a text was traced twice."""
        key, drafting = trace_key_of(condition), self._drafting(condition.temperature)
        newest = {
            (_text_of(trace), trace.num_speculative_tokens): trace
            for trace in self._store.stored.traces
            if trace.target == self._target
            and trace.drafter == pairing.drafter.name
            and TraceKey(trace.workload, trace.temperature, trace.context) == key
            and trace.drafting == drafting
        }
        return list(newest.values())

    def seconds(self, traces: Sequence[TraceRecord], condition: Condition) -> float:
        """The time spent on these traces, and on texts that only traces need."""
        return sum(t.seconds or 0.0 for t in traces) + self._seconds.get(
            trace_key_of(condition), 0.0
        )

    @property
    def _target(self) -> str:
        return self._plan.target.name

    def _numbered(self) -> Iterator[tuple[int, tuple[TraceKey, Condition, Prompt]]]:
        """Every prompt of every key with its number; the first prompts of all keys first."""
        conditions = {
            trace_key_of(condition): replace(condition, concurrency=1, request_rate=None)
            for condition in self._plan.conditions
        }
        prompts = {g: self._plan.prompts(self._plan.workload(g.workload)) for g in conditions}
        for i in range(max(map(len, prompts.values()), default=0)):
            for key, condition in conditions.items():
                if i < len(prompts[key]):
                    yield i, (key, condition, prompts[key][i])

    def _decode(self, key: TraceKey, condition: Condition, prompt: Prompt) -> list[TargetText]:
        """A prompt's texts, turn by turn; empty if the target cannot decode it."""
        cell = self._plan.cells(condition)[0]
        block = Block(
            condition=condition,
            prompts=(prompt,),
            repeat=0,
            purpose="explore",
            cells=(cell,),
        )
        began_s = time.perf_counter()
        try:
            texts = self._session.texts(block, cell)
        except EXPECTED_ERRORS as error:
            self._reporter.warn(f"{key.workload}, prompt {prompt.id}: {first_line(error)}")
            return []
        if key.temperature > 0:  # at 0 the texts are the references, which every run needs
            spent_s = self._seconds.get(key, 0.0)
            self._seconds[key] = spent_s + time.perf_counter() - began_s
        return texts

    def _trace_one(self, pairing: Pairing, texts: Sequence[TargetText]) -> None:
        drafter, temperature = pairing.drafter, texts[0].sampling.temperature
        if {(drafter.name, None), (drafter.name, temperature)} & self._untraceable:
            return
        if drafter.lossy is not None:
            self._untraceable.add((drafter.name, None))
            self._reporter.warn(
                f"{drafter.name}: cannot be forecast: its lossy rule accepts drafts that a replay "
                "would reject; measure it"
            )
            return
        drafting = self._drafting(temperature)
        try:
            with errors_translated():
                traces = self._trace(
                    self._session.engine,
                    drafter.name,
                    drafter.method,
                    texts,
                    self._ks(pairing),
                    drafting,
                )
        except EXPECTED_ERRORS as error:
            self._untraceable.add((drafter.name, temperature))
            self._reporter.warn(first_line(error))
            return
        for trace in traces:
            self._store.append(trace)

    def _ks(self, pairing: Pairing) -> list[int]:
        """The K > 0 that the drafter can draft."""
        drafter, plan = pairing.drafter.name, self._plan
        return [k for k in plan.ks(pairing) if 0 < k == plan.within_reach(drafter, k)]


def _text_of(text: TargetText | TraceRecord) -> tuple[object, ...]:
    """The identity of a text, or of a trace's text."""
    temperature = text.temperature if isinstance(text, TraceRecord) else text.sampling.temperature
    return text.workload, text.prompt_id, text.turn, text.repeat, temperature, text.context
