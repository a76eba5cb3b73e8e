"""Drafters of one target ranked by their gain, measured or else forecast."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import fmean, geometric_mean
from typing import Literal, NamedTuple

from specbench.decide.comparisons import judge
from specbench.decide.explanation import k_of
from specbench.metrics.cell import CellData, against
from specbench.metrics.pairs import paired_decode
from specbench.metrics.registry import number_of
from specbench.metrics.summary import log_speedup
from specbench.records import (
    CellKey,
    CellSummary,
    Condition,
    Decision,
    Fixed,
    ForecastRecord,
    Interval,
    Kind,
    Length,
    Reason,
    SpeedupVerdict,
)
from specbench.stats.intervals import LogRatio, interval
from specbench.stats.spread import combined


class Gain(NamedTuple):
    """The gain of one drafter on one workload at its best K; K = 0 if it gains nothing."""

    num_speculative_tokens: int
    speedup: Interval | None
    mean_acceptance_length: float | None
    basis: Literal["measured", "forecast"]
    verdict: SpeedupVerdict
    at: Length  # the K that the speedup is about, even if it gains nothing
    is_unquoted: bool = False  # it was measured, but is invalid or a win without confirmation

    @property
    def value(self) -> float:
        """The speedup, but at least 1, since not speculating is always possible."""
        if self.speedup is None or not self.num_speculative_tokens:
            return 1.0
        return max(self.speedup.estimate, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedDrafter:
    """A ranked drafter with its gains by setting: a workload, temperature and concurrency."""

    pairing: str
    drafter: str
    method: str
    gains: Mapping[Condition, Gain]
    # Speed of the advised drafter / its own, over the same prompts of all settings; None: unknown.
    behind: Interval | None = None

    @property
    def is_measured(self) -> bool:
        """Whether some gain was measured."""
        return self.measured is not None

    @property
    def measured(self) -> Gain | None:
        """The largest measured gain, since no forecast is quoted as a result; None without one."""
        gains = [gain for gain in self.gains.values() if gain.basis == "measured"]
        return max(gains, key=_gain_and_speedup, default=None)

    @property
    def best(self) -> Gain:
        """The largest measured gain, or the largest forecast one if none was measured."""
        return self.measured or max(self.gains.values(), key=_gain_and_speedup)

    @property
    def speedup(self) -> float:
        """The geometric mean of the gains over the settings."""
        return geometric_mean(gain.value for gain in self.gains.values())

    @property
    def potential(self) -> float:
        """The geometric mean of the speedups over the settings, which may be below 1."""
        values = [g.speedup.estimate if g.speedup else 1.0 for g in self.gains.values()]
        return geometric_mean(values)

    @property
    def interval(self) -> Interval | None:
        """`potential` with the geometric means of the bounds; None if a speedup is unknown."""
        speedups = [gain.speedup for gain in self.gains.values() if gain.speedup]
        if len(speedups) < len(self.gains):
            return None
        lows = [speedup.low for speedup in speedups]
        highs = [speedup.high for speedup in speedups]
        return Interval(estimate=self.potential, low=_mean(lows), high=_mean(highs))


def _gain_and_speedup(gain: Gain) -> tuple[float, float]:
    return gain.value, gain.speedup.estimate if gain.speedup else 0.0


def answer_of(
    ranked: Sequence[RankedDrafter], *, lacks_drafters: bool = False, more: str = "--num-prompts"
) -> tuple[SpeedupVerdict, tuple[Reason, ...]]:
    """Whether to use a drafter, and which, with one that may be as fast and what would decide it.

    Only what was measured is advised. `lacks_drafters`: one that was planned was not measured.
    `more`: the option of longer measurements.
    """
    entry = _advised(ranked)
    if entry is not None and (gain := entry.measured) is not None:
        use = Kind.USE(
            drafter=entry.drafter,
            method=entry.method,
            k=gain.num_speculative_tokens,
            speedup=gain.speedup,
        )
        reasons = (use, *_setting(entry, gain), *_rival(entry, ranked, more))
        return SpeedupVerdict.FASTER, reasons
    measured = [
        (gain.speedup, entry, gain)
        for entry in ranked
        for gain in entry.gains.values()
        if gain.basis == "measured" and gain.speedup is not None
    ]
    if not measured:
        return SpeedupVerdict.UNDECIDED, (Kind.NOTHING_VALID(),)
    is_open = [reason for reason in measured if reason[2].verdict is SpeedupVerdict.UNDECIDED]
    if not is_open:
        unquoted = (gain.is_unquoted for entry in ranked for gain in entry.gains.values())
        if lacks_drafters or any(unquoted):
            return SpeedupVerdict.UNDECIDED, (Kind.NO_DRAFTER_SHOWN(),)
        return SpeedupVerdict.NO_SPEEDUP, (Kind.NO_DRAFTER_HELPS(),)
    speedup, best, gain = max(is_open, key=lambda of: (of[0].low is not None, of[0].estimate))
    reason = Kind.OPEN_DRAFTER(drafter=best.drafter, k=k_of(gain.at), speedup=speedup)
    setting = [Kind.OPEN_AT(setting=_setting_name(best, gain))] if len(best.gains) > 1 else []
    standing = Kind.STANDS_BEST() if speedup.estimate > 1 else Kind.STANDS_NEAREST()
    return SpeedupVerdict.UNDECIDED, (reason, *setting, standing, Kind.MORE_OF(option=more))


def _advised(ranked: Sequence[RankedDrafter]) -> RankedDrafter | None:
    """The first drafter that was measured to gain."""
    for entry in ranked:
        gain = entry.measured
        if gain is not None and gain.num_speculative_tokens and gain.speedup is not None:
            return entry
    return None


def _setting(entry: RankedDrafter, gain: Gain) -> Iterator[Reason]:
    """The setting of this gain among several, and the gain over all of them."""
    if len(entry.gains) > 1:
        yield Kind.AT_SETTING(
            setting=_setting_name(entry, gain), speedup=entry.speedup, settings=len(entry.gains)
        )


def _setting_name(entry: RankedDrafter, gain: Gain) -> str:
    setting = next(setting for setting, other in entry.gains.items() if other is gain)
    return ", ".join(setting.distinct_parts(entry.gains, also="workload"))


def _rival(best: RankedDrafter, ranked: Sequence[RankedDrafter], more: str) -> Iterator[Reason]:
    """The first other drafter that the best one is not shown to beat, and how to decide: over the
    same prompts, or else by intervals that overlap."""
    for entry in ranked:
        over_k0, speedup = best.interval, entry.interval
        if entry is best or over_k0 is None or speedup is None:
            continue
        is_beaten = are_distinct(over_k0, speedup)
        if entry.behind is not None:
            is_beaten = (entry.behind.low or 0.0) > 1
        if not is_beaten:
            kind = Kind.RIVAL if entry.is_measured else Kind.FORECAST_RIVAL
            yield kind(drafter=entry.drafter, speedup=speedup)
            yield Kind.MORE_OF(option=more)
            return


def are_distinct(first: Interval, second: Interval) -> bool:
    """Whether the intervals do not overlap; a missing bound is 0 or infinite."""
    return (first.low or 0.0) > (second.high or math.inf) or (second.low or 0.0) > (
        first.high or math.inf
    )


def rank(
    decisions: Sequence[Decision],
    cells: Iterable[CellSummary],
    forecasts: Iterable[ForecastRecord],
    measured: Sequence[CellData] = (),
) -> tuple[RankedDrafter, ...]:
    """The drafters, the best first, by `speedup` and then `potential`.

    A setting's gain comes from its decision if the drafter was measured, else from its forecast.
    `measured` cells show how far drafters are behind the advised one.
    """
    gains: dict[str, dict[Condition, Gain]] = {}
    keys: dict[str, CellKey] = {}
    for record in forecasts:
        keys.setdefault(record.key.pairing, record.key)
        gains.setdefault(record.key.pairing, {})[record.key.condition] = _forecast(record)
    lengths = {cell.key: number_of(cell.metrics, "mean_acceptance_length") for cell in cells}
    for decision in decisions:
        key = decision.leader
        forecast = gains.get(key.pairing, {}).get(key.condition)
        if decision.speedup is None and forecast is not None:
            gains[key.pairing][key.condition] = forecast._replace(is_unquoted=True)
            continue
        keys.setdefault(key.pairing, key)
        gains.setdefault(key.pairing, {})[key.condition] = Gain(
            num_speculative_tokens=decision.draft.k,
            speedup=decision.decided_by,
            mean_acceptance_length=lengths.get(key),
            basis="measured",
            verdict=decision.verdict,
            at=key.draft.length,
            is_unquoted=decision.speedup is None,
        )
    ranked = [
        RankedDrafter(
            pairing=name,
            drafter=keys[name].draft.drafter,
            method=keys[name].draft.method,
            gains=by_setting,
        )
        for name, by_setting in gains.items()
    ]
    ranked.sort(key=lambda r: (-r.speedup, -r.potential, r.pairing))
    best = _advised(ranked)
    if best is None:
        return tuple(ranked)
    by_key = {(c.key.condition, c.key.pairing, c.key.draft.length): c for c in measured}
    return tuple(r if r is best else replace(r, behind=_behind(best, r, by_key)) for r in ranked)


def _behind(
    best: RankedDrafter,
    other: RankedDrafter,
    cells: Mapping[tuple[Condition, str, Length], CellData],
) -> Interval | None:
    """The geometric mean over the settings of the best drafter's speed / the other's, each at its K
    over the prompts that both served; None if they were not measured in the same blocks."""
    ratios: list[LogRatio] = []
    for condition, gain in best.gains.items():
        theirs = other.gains.get(condition)
        ours = cells.get((condition, best.pairing, gain.at))
        peer = cells.get((condition, other.pairing, theirs.at)) if theirs else None
        if ours is None or peer is None or ours.baseline != peer.baseline:
            return None
        both = against(ours, peer)
        ratio = log_speedup(both, paired_decode(both))
        if ratio is None or ratio.prompts is None or ratio.machine is None:
            return None
        ratios.append(ratio)
    of_prompts = [r.prompts for r in ratios if r.prompts]
    shares = (replace(p, standard_error=p.standard_error / len(ratios)) for p in of_prompts)
    mean = LogRatio(
        log=fmean(ratio.log for ratio in ratios),
        prompts=reduce(combined, shares),
        num_prompts=sum(ratio.num_prompts for ratio in ratios),
        # The settings share the states of the machine.
        machine=max((r.machine for r in ratios if r.machine), key=lambda m: m.variance),
    )
    return interval(mean)


def shortlist(
    forecasts: Sequence[ForecastRecord], earlier: Iterable[ForecastRecord], most: int | None
) -> tuple[ForecastRecord, ...]:
    """The forecasts, of which only the `most` highest of each setting keep their K to measure.

    `earlier` forecasts also count among the highest. If `most` is None, all keep their K.
    """
    if most is None:
        return tuple(forecasts)
    by_setting: dict[Condition, list[ForecastRecord]] = {}
    for record in (*earlier, *forecasts):
        by_setting.setdefault(record.key.condition, []).append(record)
    chosen = {
        record.key
        for records in by_setting.values()
        for record in sorted(records, key=_highest_speedup, reverse=True)[:most]
    }
    return tuple(r if r.key in chosen else replace(r, to_measure=()) for r in forecasts)


def _forecast(record: ForecastRecord) -> Gain:
    """The gain that a forecast predicts, judged by its interval as a measurement is.

    If its best K is 0, the figures are those of the best K > 0.
    """
    point = record.leader
    verdict = judge(point.speedup)
    return Gain(
        num_speculative_tokens=record.best if verdict is SpeedupVerdict.FASTER else 0,
        speedup=point.speedup,
        mean_acceptance_length=point.mean_acceptance_length,
        basis="forecast",
        verdict=verdict,
        at=Fixed(point.num_speculative_tokens),
    )


def _highest_speedup(record: ForecastRecord) -> float:
    return max(p.speedup.estimate for p in record.points if p.speedup)


def _mean(bounds: Sequence[float | None]) -> float | None:
    """The geometric mean; None if a bound is unknown."""
    known = [bound for bound in bounds if bound is not None]
    return geometric_mean(known) if len(known) == len(bounds) else None
