"""One metric of one cell in two runs: its change, the change that identical runs would show, and
the verdict on it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.doc import Doc
from specbench.gate.comparable import CellPair
from specbench.gate.figures import CellFigures, are_comparable, first_difference
from specbench.gate.tolerances import MetricKind, deviation_floor, kind_of, metric_name
from specbench.metrics.registry import Metric
from specbench.records import CellKey, Interval, Kind, Reason
from specbench.stats.crossed import MIN_CYCLES
from specbench.stats.machine_noise import ASSUMED_FREEDOM
from specbench.stats.spread import MIN_UNITS, UPPER, Uncertainty, combined, jackknife


class Runs(NamedTuple):
    """Number of pooled runs of each side."""

    baseline: int
    candidate: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How much worse a metric became.

    `loss` and `limit` are logarithms of ratios, positive if worse; if values are not all positive,
    shares of the baseline's value.
    """

    loss: float
    limit: float  # the loss that is tolerated
    spread: Uncertainty | None  # None: too few units for one
    is_log: bool = True

    @property
    def p_value(self) -> float | None:
        """The probability of a loss at least this large if the true one is at the limit."""
        return None if self.spread is None else self.spread.p_value(self.loss - self.limit)

    def bound(self, probability: float) -> float | None:
        """The upper bound of the true loss, in `probability` of all comparisons."""
        return None if self.spread is None else self.loss + self.spread.margin(probability)

    def detectable(self, false_alarm: float) -> float | None:
        """The loss beyond the limit that a test of this size detects in 80% of gates."""
        return None if self.spread is None else self.spread.detectable(1 - false_alarm)

    def as_change(self, loss: float, *, higher_is_better: bool) -> float:
        """A loss as a relative change of the metric: -0.05 is 5% less."""
        signed = -loss if higher_is_better else loss
        return math.expm1(min(signed, 700.0)) if self.is_log else signed  # within a float


def compare(
    baseline: CellFigures,
    candidate: CellFigures,
    name: str,
    tolerance: float,
    *,
    higher_is_better: bool,
    floor: float,
    runs: Runs,
) -> Comparison | None:
    """The change of a metric that both cells have; None if the baseline's is 0.

    `floor` is the deviation between identical runs that is assumed if no side shows one. The
    spread is the larger of two estimates. One is the paired jackknife over units, as in
    stats/spread.py: it contains differences between prompts. The other is the deviation between
    whole runs times sqrt(1 / runs + 1 / runs): it contains what the prompts of a run share. Both
    contain the noise of single prompts, so the larger one is the moment estimate of the sum of
    the variances (two-way layout, runs x prompts; Searle, Casella and McCulloch 1992, chapter 4).
    """
    before, after = baseline.figures[name], candidate.figures[name]
    values = (before.value, after.value, *(before.without or ()), *(after.without or ()))
    is_log = min(values) > 0
    if before.value == 0:
        return None
    scale: Callable[[float], float] = math.log if is_log else _shares_of(before.value)
    sign = -1.0 if higher_is_better else 1.0
    over_runs = _over_runs((before.deviation, after.deviation), floor, runs)
    if baseline.units or candidate.units:
        over_units = _over_units(baseline, candidate, name, scale)
    else:  # aggregates of another tool: only whole runs show their spread
        over_units = over_runs if sum(runs) > len(runs) else None
    return Comparison(
        loss=sign * (scale(after.value) - scale(before.value)),
        limit=_limit(tolerance, higher_is_better=higher_is_better) if is_log else tolerance,
        spread=_larger(over_units, over_runs) if over_units else None,
        is_log=is_log,
    )


def _limit(tolerance: float, *, higher_is_better: bool) -> float:
    """The tolerance as a logarithm: of a decrease if higher is better, else of an increase."""
    return -math.log1p(-tolerance) if higher_is_better else math.log1p(tolerance)


def _shares_of(whole: float) -> Callable[[float], float]:
    return lambda value: value / abs(whole)


def _over_units(
    baseline: CellFigures, candidate: CellFigures, name: str, scale: Callable[[float], float]
) -> Uncertainty | None:
    """The spread over units: paired if both sides have the same ones, else both spreads added.

    The spreads of cycles are always added: they are different starts of a server.
    """
    before, after = (_left_out(cell, name, scale) for cell in (baseline, candidate))
    if before is None or after is None:
        return None
    if baseline.has_cycles and candidate.has_cycles:
        return _combined(_of_cycles(before), _of_cycles(after))
    shares = [np.array(cell.num_tokens) / sum(cell.num_tokens) for cell in (baseline, candidate)]
    if baseline.units == candidate.units:
        return _jackknife(after - before, (shares[0] + shares[1]) / 2)
    return _combined(_jackknife(before, shares[0]), _jackknife(after, shares[1]))


def _combined(before: Uncertainty | None, after: Uncertainty | None) -> Uncertainty | None:
    return combined(before, after) if before and after else None


def _left_out(
    cell: CellFigures, name: str, scale: Callable[[float], float]
) -> NDArray[np.float64] | None:
    figure = cell.figures[name]
    if figure.without is None:
        return None
    return np.array([scale(v) for v in figure.without or (figure.value,) * len(cell.units)])


def _jackknife(left_out: NDArray[np.float64], weights: NDArray[np.float64]) -> Uncertainty | None:
    """The jackknife; a figure that does not depend on the units is exact."""
    if len(left_out) and np.ptp(left_out) == 0:
        return Uncertainty(standard_error=0.0, degrees_of_freedom=math.inf)
    return jackknife(left_out, weights)


def _of_cycles(left_out: NDArray[np.float64]) -> Uncertainty | None:
    """The jackknife over cycles, which are few and have equal weights."""
    n = len(left_out)
    if n < MIN_CYCLES:
        return None
    return Uncertainty(
        standard_error=(n - 1) * float(left_out.std(ddof=1)) / math.sqrt(n),
        degrees_of_freedom=n - 1.0 if np.ptp(left_out) else math.inf,
    )


def _over_runs(
    deviations: tuple[float | None, float | None], floor: float, runs: Runs
) -> Uncertainty:
    """The deviation between runs, pooled over both sides; for few runs also with the floor, which
    counts as ASSUMED_FREEDOM runs unless the figure repeats exactly."""
    freedom = float(sum(runs) - len(runs))
    squares = sum(
        (count - 1) * (deviation or 0.0) ** 2
        for count, deviation in zip(runs, deviations, strict=True)
    )
    if freedom < ASSUMED_FREEDOM and floor:
        freedom, squares = freedom + ASSUMED_FREEDOM, squares + ASSUMED_FREEDOM * floor**2
    return Uncertainty(
        standard_error=math.sqrt(squares / freedom * sum(1 / n for n in runs)) if freedom else 0.0,
        degrees_of_freedom=freedom or math.inf,
    )


def _larger(first: Uncertainty, second: Uncertainty) -> Uncertainty:
    """The spread with the larger margin, which also grows if the spread itself is uncertain."""
    return max(first, second, key=lambda spread: spread.margin(0.95))


FALSE_ALARM = 0.05  # of a whole gate, over all its tests
OUTPUT_TOKENS = "output_tokens"  # the greedy text itself, which is always compared
SPEED = "decode_tokens_per_s"
SPEEDUP = "decode_speedup"  # it falls if K = 0 gets faster; only this metric is excused for that
CELL = "cell"  # in place of a metric, for a cell that cannot be judged
BASELINE, CANDIDATE = "baseline", "candidate"


class GateVerdict(StrEnum):
    """The result for one metric of one cell; a whole gate has the worst one, the last here."""

    PASS = "pass"
    INCONCLUSIVE = "inconclusive"
    MISSING = "missing"  # not measured, or not valid
    REGRESSION = "regression"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgment:
    """The verdict on one metric of one cell."""

    cell: Annotated[CellKey, Doc("id of the baseline's cell")]
    metric: Annotated[
        str,
        Doc(
            "a metric's name, with `[i]` an entry of a list; `output_tokens`: the greedy text; "
            "`cell`: the cell was not measured validly",
            label="metric",
        ),
    ]
    kind: Annotated[MetricKind, Doc("`count`, `memory`, `ratio` (of seconds in one run) or `time`")]
    unit: Annotated[str, Doc("of `baseline` and `candidate`")]
    verdict: Annotated[GateVerdict, Doc("as that of the document", label="verdict")]
    baseline: Annotated[
        float | None,
        Doc("the value there; of several runs their geometric mean", label="before"),
    ] = None
    candidate: Annotated[float | None, Doc("the same, of the candidate", label="after")] = None
    change: Annotated[
        Interval | None,
        Doc("relative change of the metric: -0.05 is 5% less", "fraction", label="change +- 95%"),
    ] = None
    tolerance: Annotated[
        float | None,
        Doc(
            "the share by which it may be worse: 0.02 is 2%",
            "fraction",
            label="limit",
            form="{:limit}",
        ),
    ] = None
    p_value: Annotated[
        float | None,
        Doc(
            "of a loss beyond the tolerance, adjusted for the whole gate; absent if the figures "
            "repeat exactly"
        ),
    ] = None
    minimum_detectable_effect: Annotated[
        float | None,
        Doc(
            "the loss beyond the tolerance that is detected in 80% of gates",
            "fraction",
            label="MDE",
            form="{:effect}",
        ),
    ] = None
    minimum_detectable_loss: Annotated[
        float | None, Doc("the same, with the tolerance: a smaller loss might pass", "fraction")
    ] = None
    reason: Annotated[
        Reason | None, Doc("the reason of the verdict; absent if the numbers show it")
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricCase:
    """One metric of one cell in both runs, before it is judged."""

    pair: CellPair
    metric: Metric
    name: str  # of the figure: the metric's, or one entry of it
    tolerance: float
    comparison: Comparison | None  # None: absent on one side, or a baseline of 0
    speed: Comparison | None = None  # of a speedup on the same hardware: tokens per second
    noisy: tuple[str, ...] = ()  # of an absolute time: sides measured on a busy machine

    @property
    def is_test(self) -> bool:
        """Whether noise could make it fail."""
        spread = self.comparison.spread if self.comparison else None
        return spread is not None and spread.standard_error > 0 and not self.noisy

    @property
    def is_faster(self) -> bool:
        """Whether the cell got faster in tokens per second, beyond noise."""
        bound = self.speed.bound(1 - FALSE_ALARM) if self.speed else None
        return bound is not None and bound < 0

    @property
    def p_value(self) -> float:
        """The p-value of the test, before it is adjusted."""
        p_value = self.comparison.p_value if self.comparison else None
        assert p_value is not None, "only a test has one"
        return p_value


def cases_of(
    pair: CellPair,
    metric: Metric,
    requested: str,
    tolerance: float,
    *,
    runs: Runs,
    devices: Sequence[str],
    same_hardware: bool,
    noisy: tuple[str, ...] = (),
) -> Iterator[MetricCase]:
    """A case for the requested metric, or for each entry of a list, that the baseline has.

    Counts at an adaptive K have no case, since they depend on timing. `noisy`: sides whose machine
    was busy.
    """
    before, after = pair
    assert after is not None, "cases are of measured cells"
    if before.key.draft.is_adaptive and kind_of(metric) is MetricKind.COUNT:
        return
    is_relative = metric.name == SPEEDUP and same_hardware
    is_timed = all(SPEED in side.figures for side in (before, after))
    speed = None
    if is_relative and is_timed and BASELINE not in noisy:  # else the load changed, not the code
        floor = max(deviation_floor(MetricKind.TIME, device) for device in devices)
        speed = compare(before, after, SPEED, 0.0, higher_is_better=True, floor=floor, runs=runs)
    for name in before.figures:
        if requested not in (name, metric_name(name)):
            continue
        is_on_both = name in after.figures
        yield MetricCase(
            pair=pair,
            metric=metric,
            name=name,
            tolerance=tolerance,
            comparison=compare(
                before,
                after,
                name,
                tolerance,
                higher_is_better=metric.better == "higher",
                floor=max(deviation_floor(kind_of(metric), device) for device in devices),
                runs=runs,
            )
            if is_on_both
            else None,
            speed=speed,
            noisy=noisy if kind_of(metric) is MetricKind.TIME else (),
        )


def judge(case: MetricCase, p_value: float | None, *, num_tests: int) -> Judgment:
    """The verdict on a case, from its p-value adjusted for all tests of the gate.

    - REGRESSION: the interval of the loss excludes the tolerance.
    - PASS: the interval excludes any loss beyond the tolerance, or the loss is within it and a loss
      of as much again would be detected in 80% of gates.
    - INCONCLUSIVE otherwise: noise could hide, or cause, a loss beyond the tolerance.

    A `decode_speedup` passes on the same hardware if the cell itself got faster: then K = 0 got
    faster by more. An absolute time is INCONCLUSIVE if the machine of a side was busy, unless it
    passes and only the candidate's was.
    """
    before, after = case.pair.baseline, case.pair.candidate
    assert after is not None, "cases are of measured cells"
    comparison = case.comparison
    verdict, reason = _verdict(case, after, p_value, num_tests)
    effect = comparison.detectable(FALSE_ALARM / num_tests) if comparison else None
    # Load only slows: a candidate that passes under load is not worse.
    is_proven = verdict is GateVerdict.PASS and BASELINE not in case.noisy
    if case.noisy and not is_proven and verdict is not GateVerdict.MISSING:
        verdict, effect = GateVerdict.INCONCLUSIVE, None
        reason = Kind.MACHINE_BUSY(sides=case.noisy)
    is_higher_better = case.metric.better == "higher"
    detectable = whole = None
    if comparison is not None and effect is not None:
        detectable, whole = (
            abs(comparison.as_change(loss, higher_is_better=is_higher_better))
            for loss in (effect, comparison.limit + effect)
        )
    return Judgment(
        cell=before.key,
        metric=case.name,
        kind=kind_of(case.metric),
        unit=case.metric.unit,
        verdict=verdict,
        baseline=before.value(case.name),
        candidate=after.value(case.name),
        change=_change(comparison, higher_is_better=is_higher_better),
        tolerance=case.tolerance,
        p_value=p_value,
        minimum_detectable_effect=detectable,
        minimum_detectable_loss=whole,
        reason=reason,
    )


def judge_unusable(pair: CellPair, *, is_complete: bool) -> Judgment | None:
    """MISSING for a cell that is not valid on both sides, or not over all prompts in an incomplete
    candidate; None for a cell that can be judged.
    """
    before, after = pair
    if before.problems:
        reason = Kind.BASELINE_CELL_INVALID(because=before.problems)
    elif after is None:
        reason = Kind.NOT_MEASURED()
    elif after.problems:
        reason = Kind.CELL_INVALID(because=after.problems)
    elif not is_complete and not after.has_cycles and set(after.units) < set(before.units):
        reason = Kind.PARTLY_MEASURED(measured=len(after.units), planned=len(before.units))
    else:
        return None
    return Judgment(
        cell=before.key,
        metric=CELL,
        kind=MetricKind.COUNT,
        unit="",
        verdict=GateVerdict.MISSING,
        reason=reason,
    )


def judge_text(pair: CellPair, *, is_binding: bool) -> Judgment | None:
    """Whether greedy output is the same for equal prompts; None if it need not be.

    `is_binding`: device, torch and model are the same, so a difference is a regression.
    """
    before, after = pair
    if after is None or not before.texts or not after.texts:
        return None
    is_binding = is_binding and _arithmetic(before.key) == _arithmetic(after.key)
    changed = before.changed_prompts(after)
    common = [
        prompt
        for prompt, text in before.texts.items()
        if prompt in after.texts
        and prompt not in changed
        and are_comparable(text, after.texts[prompt])
    ]
    if not common:
        return None
    other = [prompt for prompt in common if before.texts[prompt] != after.texts[prompt]]
    reason = None
    if other:
        reason = (Kind.TEXTS_DIFFER if is_binding else Kind.TEXTS_MAY_DIFFER)(
            differing=len(other),
            compared=len(common),
            prompt=other[0],
            place=first_difference(before.texts[other[0]], after.texts[other[0]]),
        )
    is_regression = bool(other) and is_binding
    return Judgment(
        cell=before.key,
        metric=OUTPUT_TOKENS,
        kind=MetricKind.COUNT,
        unit="texts",
        verdict=GateVerdict.REGRESSION if is_regression else GateVerdict.PASS,
        baseline=len(common),
        candidate=len(common) - len(other),
        reason=reason,
    )


def _verdict(
    case: MetricCase, after: CellFigures, p_value: float | None, num_tests: int
) -> tuple[GateVerdict, Reason | None]:
    comparison, candidate = case.comparison, after.value(case.name)
    if candidate is None:
        return GateVerdict.MISSING, Kind.MISSING_IN_CANDIDATE()
    if comparison is None:
        return _against_zero(case, candidate)
    if comparison.spread is None:
        fewest = min(case.pair.baseline, after, key=lambda cell: len(cell.units))
        return GateVerdict.INCONCLUSIVE, _why_no_spread(fewest, case.name)
    if comparison.spread.standard_error == 0:
        is_worse = comparison.loss > comparison.limit
        return (GateVerdict.REGRESSION if is_worse else GateVerdict.PASS), None
    if p_value is not None and p_value <= FALSE_ALARM:
        if case.is_faster:
            return GateVerdict.PASS, Kind.PLAIN_GOT_FASTER()
        return GateVerdict.REGRESSION, None
    effect = comparison.detectable(FALSE_ALARM / num_tests)
    bound = comparison.bound(1 - FALSE_ALARM)
    assert effect is not None, "a spread gives both"
    assert bound is not None, "a spread gives both"
    is_beyond = comparison.loss > comparison.limit
    if bound < comparison.limit or (effect <= comparison.limit and not is_beyond):
        return GateVerdict.PASS, None
    if case.is_faster:
        return GateVerdict.PASS, Kind.PLAIN_MAY_BE_FASTER()
    return GateVerdict.INCONCLUSIVE, Kind.BEYOND_LIMIT() if is_beyond else Kind.LOSS_HIDDEN()


def _against_zero(case: MetricCase, candidate: float) -> tuple[GateVerdict, Reason | None]:
    """The verdict if the baseline is 0, so that losses have no relative size."""
    worse = candidate < 0 if case.metric.better == "higher" else candidate > 0
    if not worse:
        return GateVerdict.PASS, None
    is_exact = kind_of(case.metric) in (MetricKind.COUNT, MetricKind.MEMORY)
    verdict = GateVerdict.REGRESSION if is_exact else GateVerdict.INCONCLUSIVE
    return verdict, Kind.BASELINE_IS_ZERO()


def _why_no_spread(cell: CellFigures, name: str) -> Reason:
    if not cell.units:
        return Kind.WITHOUT_PROMPTS()
    if cell.has_cycles:
        return Kind.TOO_FEW_UNITS(units=(len(cell.units), "cycle"), needed=MIN_CYCLES)
    if len(cell.units) < MIN_UNITS:
        unit = "pass" if cell.key.condition.is_stream else "prompt"
        return Kind.TOO_FEW_UNITS(units=(len(cell.units), unit), needed=MIN_UNITS)
    return Kind.NEEDS_EVERY_PROMPT(metric=name)


def _change(comparison: Comparison | None, *, higher_is_better: bool) -> Interval | None:
    if comparison is None:
        return None
    ends = [comparison.bound(p) for p in (1 - UPPER, UPPER)]
    estimate, *rest = (
        None if loss is None else comparison.as_change(loss, higher_is_better=higher_is_better)
        for loss in (comparison.loss, *(reversed(ends) if higher_is_better else ends))
    )
    assert estimate is not None
    return Interval(estimate=estimate, low=rest[0], high=rest[1])


def _arithmetic(key: CellKey) -> tuple[str, str, str]:
    """The parts of a key that rounding, and so greedy text, depends on."""
    return key.condition.target, key.condition.dtype, key.condition.engine
