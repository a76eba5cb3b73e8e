"""A metric over the stored runs of one fingerprint: its values, its steps, its trend."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from specbench.doc import Doc
from specbench.gate.comparable import PROMPTS
from specbench.gate.fingerprint import (
    DRAFTER,
    HARDWARE,
    SETTINGS,
    Fingerprint,
    differences,
    drafter_difference,
)
from specbench.metrics.registry import Better, Metric, all_metrics, number_of
from specbench.metrics.server_facts import RunDifference
from specbench.records import CellKey, CellSummary
from specbench.stats.change_points import MIN_RUNS, SIGNIFICANCE, ChangePoint, Trend, analyze_series

INTERRUPTED = "interrupted"

# Differences that runs of one history may be allowed.
WORDS = (*SETTINGS, HARDWARE, PROMPTS, DRAFTER, INTERRUPTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """A stored run after analysis."""

    run_id: str
    created_at: str
    fingerprint: Fingerprint
    cells: tuple[CellSummary, ...]
    is_complete: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPoint:
    """The value of one run."""

    run_id: Annotated[str, Doc("id of the run")]
    created_at: Annotated[str, Doc("when it began")]
    value: Annotated[float, Doc("the metric, in `unit`")]
    low: Annotated[float | None, Doc("lower end of its 95% interval; absent: it has none")] = None
    high: Annotated[float | None, Doc("upper end of the same interval")] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One metric of one cell, run by run."""

    key: Annotated[CellKey, Doc("the cell")]
    metric: Annotated[str, Doc("name of the metric", label="metric")]
    unit: Annotated[str, Doc("of its values")]
    better: Annotated[Better | None, Doc("`higher` or `lower`; absent: neither")]
    points: Annotated[tuple[HistoryPoint, ...], Doc("one per run, oldest first")]
    steps: Annotated[tuple[ChangePoint, ...], Doc("change points")]
    trend: Annotated[Trend | None, Doc("absent: no trend")]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(point.value for point in self.points)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExcludedRun:
    """A run that is left out, and the differences that exclude it."""

    run_id: Annotated[str, Doc("id of the run")]
    differences: Annotated[
        tuple[RunDifference, ...], Doc("why; the baseline is the newest complete run")
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Series of comparable runs, oldest first."""

    series: tuple[Series, ...]
    left_out: tuple[ExcludedRun, ...]

    @property
    def num_judged(self) -> int:
        """Number of series with enough runs for a step or a trend."""
        return sum(len(series.points) >= MIN_RUNS for series in self.series)

    @property
    def false_alarms(self) -> str:
        """The expected number of false alarms, in words."""
        judged = self.num_judged
        if judged == 0:
            return f"no series has {MIN_RUNS} runs, the minimum for a change point or trend"
        return (
            f"false alarms: of {judged} series without change, expect about "
            f"{judged * SIGNIFICANCE:.1f} to show a change point and as many a trend"
        )


def history(
    runs: Sequence[PastRun], metrics: Sequence[str], *, allowed: Iterable[str] = ()
) -> History:
    """The metrics of every cell over the runs that share the newest complete one's fingerprint.

    `allowed` names differences that do not exclude a run (gate/fingerprint.py). Invalid cells and
    all cells of interrupted runs have no values. Raises ValueError without a run.
    """
    if not runs:
        raise ValueError("a history needs a run")
    in_time = sorted(runs, key=lambda run: (run.created_at, run.run_id))
    tolerated = set(allowed)
    complete = [run for run in in_time if run.is_complete or INTERRUPTED in tolerated]
    newest = (complete or in_time)[-1].fingerprint
    kept, left_out = [], []
    for run in in_time:
        excluding = [d for d in differences(newest, run.fingerprint) if d.name not in tolerated]
        if run not in complete:
            part = f"measured in part (--resume {run.run_id} measures the rest)"
            excluding.append(RunDifference(INTERRUPTED, "to the end", part))
        if excluding:
            left_out.append(ExcludedRun(run_id=run.run_id, differences=tuple(excluding)))
        else:
            kept.append(run)
    known = all_metrics()
    cells = {run.run_id: {c.key: c for c in run.cells if c.valid} for run in kept}
    if PROMPTS not in tolerated:
        left_out += _drop_other_prompts(cells)
    if DRAFTER not in tolerated:
        left_out += _drop_other_drafters(kept, cells)
    keys = dict.fromkeys(key for run in reversed(kept) for key in cells[run.run_id])
    series = (
        _series(key, known[name], kept, [cells[run.run_id].get(key) for run in kept])
        for key in keys
        for name in metrics
    )
    return History(series=tuple(s for s in series if s.points), left_out=tuple(left_out))


def _drop_other_prompts(cells: dict[str, dict[CellKey, CellSummary]]) -> list[ExcludedRun]:
    """Drop cells whose number of prompts differs from that in the newest run."""
    newest = {key: cell.num_prompts for of_run in cells.values() for key, cell in of_run.items()}
    dropped = []
    for run_id, of_run in cells.items():
        differing = [key for key, cell in of_run.items() if cell.num_prompts != newest[key]]
        if differing:
            first = differing[0]
            here = f"{newest[first]} of {first.condition.workload}"
            difference = RunDifference(PROMPTS, here, str(of_run[first].num_prompts))
            dropped.append(ExcludedRun(run_id=run_id, differences=(difference,)))
        for key in differing:
            del of_run[key]
    return dropped


def _drop_other_drafters(
    runs: Sequence[PastRun], cells: dict[str, dict[CellKey, CellSummary]]
) -> list[ExcludedRun]:
    """Drop cells of drafters whose weights or entry differ from the newest run that has them."""
    dropped = []
    newest: dict[str, Fingerprint] = {}
    for run in reversed(runs):
        changed: list[RunDifference] = []
        of_run = cells[run.run_id]
        for pairing in dict.fromkeys(key.pairing for key in of_run if key.draft.k):
            latest = newest.setdefault(pairing, run.fingerprint)
            difference = drafter_difference(pairing, latest, run.fingerprint)
            if difference is not None:
                changed.append(difference)
                for key in [key for key in of_run if key.draft.k and key.pairing == pairing]:
                    del of_run[key]
        if changed:
            dropped.append(ExcludedRun(run_id=run.run_id, differences=tuple(changed)))
    return dropped[::-1]


def _series(
    key: CellKey, metric: Metric, runs: Sequence[PastRun], cells: Sequence[CellSummary | None]
) -> Series:
    points = tuple(
        point
        for run, cell in zip(runs, cells, strict=True)
        if cell is not None and (point := _point(run, cell, metric.name)) is not None
    )
    analysis = analyze_series([point.value for point in points])
    return Series(
        key=key,
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        points=points,
        steps=analysis.steps,
        trend=analysis.trend,
    )


def _point(run: PastRun, cell: CellSummary, metric: str) -> HistoryPoint | None:
    value = number_of(cell.metrics, metric)
    if value is None:
        return None
    of_metric = {"decode_speedup": cell.speedup, "end_to_end_speedup": cell.speedup_end_to_end}
    interval = of_metric.get(metric)
    return HistoryPoint(
        run_id=run.run_id,
        created_at=run.created_at,
        value=value,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
    )
