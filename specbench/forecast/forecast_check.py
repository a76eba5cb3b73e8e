"""Forecasts compared with the measurements that followed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from specbench.decide.comparisons import AdaptiveComparison
from specbench.doc import Doc
from specbench.forecast.forecast import replayed
from specbench.metrics.cell import CellData
from specbench.metrics.registry import number_of
from specbench.records import (
    CellKey,
    CellSummary,
    Fixed,
    ForecastPoint,
    ForecastRecord,
    Interval,
    TraceRecord,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPoint:
    """The measurement of one K in the exploration phase after its forecast."""

    mean_acceptance_length: Annotated[float | None, Doc("of the cell", "tokens/round")]
    speedup: Annotated[Interval | None, Doc("of the cell", "x")]
    valid: Annotated[bool, Doc("whether the cell is valid")]
    length_error: Annotated[
        float | None,
        Doc(
            "forecast acceptance length for the measured prompts / measured - 1; absent if "
            "requests overlapped",
            "fraction",
        ),
    ]
    speedup_error: Annotated[
        float | None,
        Doc(
            "forecast speedup for the measured prompts / measured - 1; absent if requests "
            "overlapped",
            "fraction",
        ),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedForecast:
    """A stored forecast; `measured` has the K that were measured after it."""

    forecast: ForecastRecord
    measured: Mapping[int, MeasuredPoint]
    auto: AdaptiveComparison | None = None  # with K = auto, if it was measured

    def point(self, k: int) -> ForecastPoint:
        """The forecast of one K; StopIteration for a K without one."""
        return next(p for p in self.forecast.points if p.num_speculative_tokens == k)

    @property
    def best(self) -> ForecastPoint:
        """The K that the forecast chose."""
        return self.point(self.forecast.best)


def check_forecasts(
    forecasts: Sequence[ForecastRecord],
    traces: Sequence[TraceRecord],
    cells: Sequence[CellData],
    summaries: Sequence[CellSummary],
    adaptive: Sequence[AdaptiveComparison] = (),
) -> tuple[CheckedForecast, ...]:
    """Every forecast with the measurements of its K; of repeated forecasts only the last."""
    data = {cell.key: cell for cell in cells}
    known = {cell.key: cell for cell in summaries}
    newest = {record.key: record for record in forecasts}
    checked = []
    for record in newest.values():
        its_traces = [trace for trace in traces if _is_of(trace, record)]
        measured = {}
        for point in record.points:
            k = point.num_speculative_tokens
            key = record.key.at(Fixed(k))
            if k and key in known:
                measured[k] = _measured(point, known[key], data[key], its_traces)
        auto = next((c for c in adaptive if c.adaptive.question == record.key.question), None)
        checked.append(CheckedForecast(forecast=record, measured=measured, auto=auto))
    return tuple(checked)


def is_left_out(key: CellKey, forecasts: Iterable[ForecastRecord]) -> bool:
    """Whether a forecast found a planned cell not worth measuring.

    If costs are those of another engine, nothing is measured, not even K = 0.
    """
    for record in forecasts:
        if record.key.condition != key.condition:
            continue
        if key.draft.k == 0 or record.key.question == key.question:
            if record.costs_of is not None:
                return True
            if key.draft.k and key.draft.is_fixed:
                known = {point.num_speculative_tokens for point in record.points}
                return key.draft.k in known.difference(record.to_measure)
    return False


def _is_of(trace: TraceRecord, record: ForecastRecord) -> bool:
    key = record.key
    drafting = "greedy" if record.acceptance_rule == "greedy_draft" else "own"
    return (
        (trace.target, trace.drafter, trace.workload)
        == (key.condition.target, key.draft.drafter, key.condition.workload)
        and (trace.temperature, trace.context) == (key.condition.temperature, key.condition.context)
        and trace.drafting == drafting
    )


def _measured(
    point: ForecastPoint, cell: CellSummary, data: CellData, traces: Sequence[TraceRecord]
) -> MeasuredPoint:
    length = number_of(cell.metrics, "mean_acceptance_length")
    prompts = {request.prompt_id for request in data.finished}
    same = replayed([t for t in traces if t.prompt_id in prompts], point.num_speculative_tokens)
    length_error = speedup_error = None
    # A pass of concurrent requests may repeat some prompts and never reach others.
    if same is not None and not cell.key.condition.is_stream:
        expected = same.pooled.mean_acceptance_length
        if length and expected:
            length_error = expected / length - 1
        if cell.speedup is not None:
            speedup_error = math.exp(same.tokens.log) / point.cost / cell.speedup.estimate - 1
    return MeasuredPoint(
        mean_acceptance_length=length,
        speedup=cell.speedup,
        valid=cell.valid,
        length_error=length_error,
        speedup_error=speedup_error,
    )
