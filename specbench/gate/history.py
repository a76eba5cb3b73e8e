"""A metric over the stored runs of one fingerprint: its values, its steps, its trend."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specbench.gate.comparable import PROMPTS
from specbench.gate.fingerprint import (
    DRAFTER,
    HARDWARE,
    SETTINGS,
    Fingerprint,
    RunDifference,
    differences,
    drafter_difference,
)
from specbench.metrics.registry import Better, Metric, all_metrics
from specbench.records import CellKey, CellSummary
from specbench.stats.change_points import MIN_RUNS, Step, Trend, course

INTERRUPTED = "interrupted"

# What runs of one history may differ in, where that is asked for.
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
    """One run's value."""

    run_id: str
    created_at: str
    value: float
    low: float | None = None  # its 95 % interval, where the metric has one
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One metric of one cell, run by run."""

    key: CellKey
    metric: str
    unit: str
    better: Better | None
    points: tuple[HistoryPoint, ...]
    steps: tuple[Step, ...]
    trend: Trend | None

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(point.value for point in self.points)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExcludedRun:
    """A run of another fingerprint, or an interrupted one, and in what it differs."""

    run_id: str
    differences: tuple[RunDifference, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Series of comparable runs, oldest first."""

    series: tuple[Series, ...]
    left_out: tuple[ExcludedRun, ...]

    @property
    def num_judged(self) -> int:
        """Series with runs enough for a step or a trend."""
        return sum(len(one.points) >= MIN_RUNS for one in self.series)

    @property
    def false_alarms(self) -> str:
        """What may be an accident, in words."""
        judged = self.num_judged
        if judged == 0:
            return f"no series has {MIN_RUNS} runs, the minimum for a change point or trend"
        return (
            f"false alarms: of {judged} series without change, expect about {judged * 0.05:.1f} "
            "to show a change point and as many a trend"
        )


def history(
    runs: Sequence[PastRun], metrics: Sequence[str], *, allowed: Iterable[str] = ()
) -> History:
    """The metrics of every cell over the runs that share the newest complete one's fingerprint.

    `allowed` names kinds of difference that are put up with (gate/fingerprint.py). Invalid cells
    are no values, nor are cells of interrupted runs, whole or not. Raises ValueError without a run.
    """
    if not runs:
        raise ValueError("a history needs a run")
    in_time = sorted(runs, key=lambda run: (run.created_at, run.run_id))
    tolerated = set(allowed)
    complete = [run for run in in_time if run.is_complete or INTERRUPTED in tolerated]
    newest = (complete or in_time)[-1].fingerprint
    kept, left_out = [], []
    for run in in_time:
        found = [d for d in differences(newest, run.fingerprint) if d.name not in tolerated]
        if run not in complete:
            part = f"measured in part (--resume {run.run_id} measures the rest)"
            found.append(RunDifference(INTERRUPTED, "to the end", part))
        if found:
            left_out.append(ExcludedRun(run_id=run.run_id, differences=tuple(found)))
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
    """Drop cells over fewer or more prompts than the newest run has."""
    newest = {key: cell.num_prompts for own in cells.values() for key, cell in own.items()}
    dropped = []
    for run_id, own in cells.items():
        other = [key for key, cell in own.items() if cell.num_prompts != newest[key]]
        if other:
            first = other[0]
            here, there = (
                f"{newest[first]} of {first.condition.workload}",
                str(own[first].num_prompts),
            )
            found = RunDifference(PROMPTS, here, there)
            dropped.append(ExcludedRun(run_id=run_id, differences=(found,)))
        for key in other:
            del own[key]
    return dropped


def _drop_other_drafters(
    runs: Sequence[PastRun], cells: dict[str, dict[CellKey, CellSummary]]
) -> list[ExcludedRun]:
    """Drop cells of drafters whose weights or entry are not those of the newest run that has
    them."""
    dropped = []
    newest: dict[str, Fingerprint] = {}
    for run in reversed(runs):
        found: list[RunDifference] = []
        own = cells[run.run_id]
        for pairing in dict.fromkeys(key.pairing for key in own if key.draft.k):
            latest = newest.setdefault(pairing, run.fingerprint)
            other = drafter_difference(pairing, latest, run.fingerprint)
            if other is not None:
                found.append(other)
                for key in [key for key in own if key.draft.k and key.pairing == pairing]:
                    del own[key]
        if found:
            dropped.append(ExcludedRun(run_id=run.run_id, differences=tuple(found)))
    return dropped[::-1]


def _series(
    key: CellKey, metric: Metric, runs: Sequence[PastRun], cells: Sequence[CellSummary | None]
) -> Series:
    points = tuple(
        point
        for run, cell in zip(runs, cells, strict=True)
        if cell is not None and (point := _point(run, cell, metric.name)) is not None
    )
    found = course([point.value for point in points])
    return Series(
        key=key,
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        points=points,
        steps=found.steps,
        trend=found.trend,
    )


def _point(run: PastRun, cell: CellSummary, metric: str) -> HistoryPoint | None:
    value = cell.metrics.get(metric)
    if value is None or isinstance(value, tuple):
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
