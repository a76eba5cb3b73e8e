"""Drafters of one target in order of what they gain, measured where they were, else forecast."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Literal, NamedTuple

from specbench.decide.recommend import SpeedupVerdict, judge
from specbench.records import CellKey, CellSummary, Condition, Decision, ForecastRecord, Interval


class Gain(NamedTuple):
    """The gain of one drafter on one workload at its best K; K = 0 if it gains nothing."""

    num_speculative_tokens: int
    speedup: Interval | None
    mean_acceptance_length: float | None
    basis: Literal["measured", "forecast"]
    at: str = ""  # the K that the speedup is about, such as `K=2`, also where it gains nothing

    @property
    def value(self) -> float:
        """The speedup that counts: not speculating is always there to fall back to."""
        if self.speedup is None or not self.num_speculative_tokens:
            return 1.0
        return max(self.speedup.estimate, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """A drafter's place. Gains go by setting: a workload at one temperature and concurrency."""

    pairing: str
    drafter: str
    method: str
    gains: Mapping[Condition, Gain]

    @property
    def is_measured(self) -> bool:
        """Whether a figure of it was measured for real."""
        return self.measured is not None

    @property
    def measured(self) -> Gain | None:
        """Where it gains most of what was measured: no forecast is quoted as a result."""
        found = [gain for gain in self.gains.values() if gain.basis == "measured"]
        return max(found, key=lambda gain: gain.value, default=None)

    @property
    def speedup(self) -> float:
        """The geometric mean over the settings."""
        return geometric_mean(gain.value for gain in self.gains.values())

    @property
    def potential(self) -> float:
        """As `speedup`, of those that gain nothing too: how far they fall short."""
        values = [g.speedup.estimate if g.speedup else 1.0 for g in self.gains.values()]
        return geometric_mean(values)

    @property
    def interval(self) -> Interval | None:
        """`potential` between the means of the bounds, at the widest; None: no speedup known."""
        speedups = [gain.speedup for gain in self.gains.values() if gain.speedup]
        if len(speedups) < len(self.gains):
            return None
        lows = [speedup.low for speedup in speedups]
        highs = [speedup.high for speedup in speedups]
        return Interval(estimate=self.potential, low=_mean(lows), high=_mean(highs))

    @property
    def num_speculative_tokens(self) -> int:
        """The K with the largest gain; 0: no gain anywhere."""
        return max(self.gains.values(), key=lambda gain: gain.value).num_speculative_tokens


def are_told_apart(one: Interval, other: Interval) -> bool:
    """Whether the intervals share no value; one without bounds is told from nothing."""
    return (one.low or 0.0) > (other.high or math.inf) or (other.low or 0.0) > (
        one.high or math.inf
    )


def rank(
    decisions: Sequence[Decision],
    cells: Iterable[CellSummary],
    forecasts: Iterable[ForecastRecord],
) -> tuple[Ranked, ...]:
    """The best first: by the mean speedup over the settings, then by how far it falls short.

    A setting's gain is the decision's where the drafter was measured there, else the forecast's.
    """
    gains: dict[str, dict[Condition, Gain]] = {}
    keys: dict[str, CellKey] = {}
    for record in forecasts:
        keys.setdefault(record.key.pairing, record.key)
        gains.setdefault(record.key.pairing, {})[record.key.condition] = _forecast(record)
    lengths = {cell.key: cell.metrics.get("mean_acceptance_length") for cell in cells}
    for decision in decisions:
        key = decision.leader
        if decision.speedup is None and key.condition in gains.get(key.pairing, {}):
            continue
        keys.setdefault(key.pairing, key)
        length = lengths.get(key)
        gains.setdefault(key.pairing, {})[key.condition] = Gain(
            num_speculative_tokens=decision.draft.k,
            speedup=decision.speedup,
            mean_acceptance_length=None if isinstance(length, tuple) else length,
            basis="measured",
            at=key.draft.length.named,
        )
    ranked = [
        Ranked(
            pairing=name,
            drafter=keys[name].draft.drafter,
            method=keys[name].draft.method,
            gains=found,
        )
        for name, found in gains.items()
    ]
    return tuple(sorted(ranked, key=lambda r: (-r.speedup, -r.potential, r.pairing)))


def shortlist(
    forecasts: Sequence[ForecastRecord], others: Iterable[ForecastRecord], most: int | None
) -> tuple[ForecastRecord, ...]:
    """The forecasts, with nothing to measure of those that are not promising.

    In every setting the `most` drafters of the highest forecast are, `others` among them, which
    were made before; None: all.
    """
    if most is None:
        return tuple(forecasts)
    by_setting: dict[Condition, list[ForecastRecord]] = {}
    for record in (*others, *forecasts):
        by_setting.setdefault(record.key.condition, []).append(record)
    chosen = {
        record.key
        for records in by_setting.values()
        for record in sorted(records, key=_promise, reverse=True)[:most]
    }
    return tuple(r if r.key in chosen else replace(r, to_measure=()) for r in forecasts)


def _forecast(record: ForecastRecord) -> Gain:
    """At the best K; where that is 0, the figures of the K that comes nearest.

    Judged as a measurement is, by its interval: an uncertain forecast goes before no measurement.
    """
    k = record.best or _nearest(record)
    point = next(p for p in record.points if p.num_speculative_tokens == k)
    return Gain(
        num_speculative_tokens=record.best if judge(point.speedup) is SpeedupVerdict.HELPS else 0,
        speedup=point.speedup,
        mean_acceptance_length=point.mean_acceptance_length,
        basis="forecast",
    )


def _nearest(record: ForecastRecord) -> int:
    drafting = [p for p in record.points if p.num_speculative_tokens]
    best = max(drafting, key=lambda p: p.speedup.estimate if p.speedup else 0.0)
    return best.num_speculative_tokens


def _promise(record: ForecastRecord) -> float:
    return max(p.speedup.estimate for p in record.points if p.speedup)


def _mean(bounds: Sequence[float | None]) -> float | None:
    """The geometric mean; None where one of them is not known."""
    known = [bound for bound in bounds if bound is not None]
    return geometric_mean(known) if len(known) == len(bounds) else None
