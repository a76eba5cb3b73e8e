"""Speedups of sessions: figures by hand, and how often intervals cover what they claim.

2,000 simulated sweeps per case (simulated_sweeps.py has the noise); pytest -s prints the rates.
If sessions vary as is assumed for their kind of machine, 93 to 97% must cover the truth, of two
cycles 92%; if they vary less, 93% or more. At most 5% may report a gain if there is none: nominally
2.5%.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.stats import chi2
from scipy.stats import f as f_distribution

from specbench.metrics.validity import DIFFERING_SESSIONS
from specbench.stats.crossed import (
    FEWEST_PLANNED,
    MOST_PLANNED,
    PROMPT_SD,
    SessionNoise,
    crossed_speedup,
    cycles_needed,
    expected_noise,
    session_noise,
    sessions_p_value,
)
from specbench.stats.intervals import (
    LogRatio,
    interval,
    minimum_detectable_effect,
    speedup_ratio,
)
from specbench.stats.machine_noise import (
    ASSUMED_FREEDOM,
    MachineKind,
    MachineNoise,
    assumed_noise,
)
from specbench.stats.spread import MIN_UNITS, Uncertainty, combined, student_t
from tests.stats.simulated_sweeps import NOISES, Cells
from tests.stats.test_spread import spread

SWEEPS = 2_000
CASES = ((2, 40), (4, 10), (4, 40), (6, 40), (8, 10))  # cycles, prompts


def noise_of(cycle_sd: float, prompts: Uncertainty, freedom: float = 7.0) -> SessionNoise:
    """Cycles with this standard deviation of their log ratios."""
    cycles = MachineNoise(
        kind=MachineKind.SERVER,
        variance=cycle_sd**2,
        degrees_of_freedom=freedom,
        num_parts=1,
        shared=0.0,
    )
    return SessionNoise(cycles=cycles, prompts=prompts)


def cells(cycles: int = 4, prompts: int = 6, seed: int = 0) -> Cells:
    rng = np.random.default_rng(seed)
    shape = (2, cycles, prompts)
    return Cells(*rng.uniform(1, 2, shape), *rng.uniform(10, 99, shape))


def test_the_estimate_is_the_geometric_mean_over_cycles():
    ratio = crossed_speedup(
        base_s=[[4.0] * 5, [8.0] * 5],
        spec_s=[[2.0] * 5, [2.0] * 5],
        base_tokens=[[10.0] * 5, [10.0] * 5],
        spec_tokens=[[10.0] * 5, [20.0] * 5],
    )
    # 0.4 s per token against 0.2, then 0.8 against 0.1.
    assert math.exp(ratio.log) == pytest.approx(math.sqrt(2 * 8))
    assert ratio.num_prompts == 5


def test_the_variances_over_cycles_and_over_prompts_add_up():
    for seed in range(50):
        measured = cells(cycles=5, prompts=6, seed=seed)

        def logs(measured=measured, without=None):
            kept = [p for p in range(6) if p != without]
            base_s, spec_s, base_tokens, spec_tokens = (c[:, kept].sum(axis=1) for c in measured)
            return np.log(base_s / base_tokens / (spec_s / spec_tokens))

        # 4 degrees of freedom of 5 cycles are pooled with those of the assumed deviation.
        freedom = ASSUMED_FREEDOM + 4
        assumed = ASSUMED_FREEDOM * MachineKind.SERVER.assumed**2
        over_cycles = (((logs() - logs().mean()) ** 2).sum() + assumed) / freedom / 5
        left_out = np.array([logs(without=p).mean() for p in range(6)])
        over_prompts = 5 / 6 * ((left_out - left_out.mean()) ** 2).sum()
        ratio = crossed_speedup(*measured)
        assert ratio.log == pytest.approx(logs().mean())
        assert ratio.spread.standard_error**2 == pytest.approx(over_cycles + over_prompts)
        noise = session_noise(*measured)
        assert noise.cycles.variance == pytest.approx(5 * over_cycles)
        shares = np.mean([c / c.sum(axis=1, keepdims=True) for c in measured], axis=(0, 1))
        assert noise.prompts.degrees_of_freedom == pytest.approx(1 / (shares**2).sum() - 1)
        of_cycles = spread(math.sqrt(noise.cycles.variance / 5), freedom)
        expected = combined(noise.prompts, of_cycles)
        assert ratio.spread.margin() == pytest.approx(expected.margin())


def test_many_prompts_do_not_replace_cycles_in_the_margin():
    noise = noise_of(0.1 * math.sqrt(2), spread(0.1, 39.0), freedom=5.0)
    # Half of the variance has 5 degrees of freedom, half 39: 2**2 / (1 / 5 + 1 / 39) together.
    assert noise.spread(2).margin() == pytest.approx(
        math.sqrt(0.02) * student_t(4 / (1 / 5 + 1 / 39), 0.975)
    )
    assert noise.spread(10_000).margin() == pytest.approx(spread(0.1, 39.0).margin(), rel=1e-3)


@pytest.mark.parametrize("kind", MachineKind)
def test_equal_cycles_keep_a_share_of_the_assumed_deviation(kind):
    equal = Cells(*(np.repeat(column[:1], 4, axis=0) for column in cells()))
    noise = session_noise(*equal, prior=assumed_noise(kind))
    # 4 assumed degrees of freedom of 7: the cycles' own 3 found no variance.
    assert noise.cycles.variance == pytest.approx(kind.assumed**2 * 4 / 7)
    assert noise.of_cycles(4).degrees_of_freedom == 7


def test_a_failed_request_counts_on_neither_side():
    measured = cells()
    measured.spec_s[1, 2] = np.nan
    ratio = crossed_speedup(*measured)
    for column in measured:
        column[1, 2] = np.nan
    assert ratio == crossed_speedup(*measured)
    base_s, spec_s, base_tokens, spec_tokens = (np.nansum(column, axis=1) for column in measured)
    assert ratio.log == pytest.approx(np.log(base_s / base_tokens / (spec_s / spec_tokens)).mean())


def test_prompts_and_cycles_with_too_few_requests_are_ignored():
    whole = cells(cycles=5, prompts=7)
    left = [np.delete(np.delete(column, 3, axis=1), 2, axis=0) for column in whole]
    whole.base_s[[0, 1, 3, 4], 3] = np.nan  # a prompt that was served in one cycle only
    whole.spec_s[2, [2, 4, 5, 6]] = np.nan  # which then failed: 3 of 6 prompts are half of them
    assert crossed_speedup(*whole) != crossed_speedup(*left)
    whole.spec_s[2, 1] = np.nan
    assert crossed_speedup(*whole) == crossed_speedup(*left)
    assert session_noise(*whole) == session_noise(*left)


@pytest.mark.parametrize(("cycles", "prompts"), [(1, 40), (12, 4)])
def test_one_cycle_or_four_prompts_give_an_estimate_without_an_interval(cycles, prompts):
    measured = cells(cycles, prompts)
    assert interval(crossed_speedup(*measured)).low is None
    assert session_noise(*measured) is None
    assert session_noise(*cells(2, 5)) is not None


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.inf])
def test_impossible_entries_are_refused(wrong):
    measured = cells()
    measured.base_s[0, 0] = wrong
    with pytest.raises(ValueError, match="above 0"):
        crossed_speedup(*measured)


def test_columns_of_other_shapes_or_with_only_failures_are_refused():
    with pytest.raises(ValueError, match="cycles and prompts"):
        crossed_speedup(*(column[0] for column in cells()))
    with pytest.raises(ValueError, match="no request"):
        crossed_speedup(*(np.full((2, 5), np.nan) for _ in range(4)))


def test_noise_and_detectable_effect_are_estimated_before_a_sweep():
    noise = expected_noise(25, MachineKind.SHARED_CPU)
    assert noise.prompts == spread(PROMPT_SD / 5, 24.0)
    assert expected_noise(4, MachineKind.SHARED_CPU) is None
    over_cycles = spread(MachineKind.SHARED_CPU.assumed / 2, ASSUMED_FREEDOM)
    both = combined(over_cycles, noise.prompts)
    quantiles = student_t(both.degrees_of_freedom, 0.975) + student_t(both.degrees_of_freedom, 0.8)
    expected = math.expm1(both.standard_error * quantiles)
    assert noise.detectable_effect(4) == pytest.approx(expected)
    louder = noise_of(3 * MachineKind.SHARED_CPU.assumed, noise.prompts)
    assert louder.detectable_effect(4) > 2 * noise.detectable_effect(4)


def test_the_cycles_needed_are_the_fewest_that_show_the_effect():
    noise = noise_of(0.14, spread(0.2 / math.sqrt(40), 39.0))
    for effect in (0.17, 0.2, 0.25):
        n = cycles_needed([noise], effect)
        assert FEWEST_PLANNED < n <= MOST_PLANNED
        assert noise.detectable_effect(n) <= effect < noise.detectable_effect(n - 1)
    assert cycles_needed([noise], 5.0) == FEWEST_PLANNED
    most = noise.detectable_effect(MOST_PLANNED)
    assert cycles_needed([noise], most) == MOST_PLANNED
    assert cycles_needed([noise], most - 1e-6) is None
    limited_by_prompts = noise_of(0.14, spread(0.3, 39.0))
    assert cycles_needed([limited_by_prompts], most - 1e-6) is not None
    assert cycles_needed([limited_by_prompts, noise], most - 1e-6) is None  # each K counts


def test_the_noise_of_every_k_is_pooled():
    lucky = noise_of(0.0, spread(0.04, 39.0))
    other = noise_of(0.2, spread(0.05, 39.0))
    both = noise_of(0.2 / math.sqrt(2), spread(0.05, 39.0))
    needed = cycles_needed([lucky, other], 0.27)
    assert needed == cycles_needed([both], 0.27)
    assert cycles_needed([lucky], 0.27) < needed < cycles_needed([other], 0.27)
    # The largest of the prompts' parts counts.
    alike = noise_of(0.0, spread(0.08, 39.0))
    assert cycles_needed([alike, other], 0.27) > cycles_needed([lucky, other], 0.27)
    assert cycles_needed([lucky, lucky], 0.27) == FEWEST_PLANNED


def test_no_extra_cycles_are_planned_if_prompts_dominate_the_noise():
    prompts = spread(0.11, 39.0)
    allowed = noise_of(0.0, prompts).detectable_effect(MOST_PLANNED)
    noise = noise_of(0.2, prompts)
    few = cycles_needed([noise], 0.01)
    assert FEWEST_PLANNED < few < MOST_PLANNED
    assert noise.detectable_effect(few) <= 1.2 * allowed < noise.detectable_effect(few - 1)
    assert cycles_needed([noise_of(0.05, prompts)], 0.01) == FEWEST_PLANNED


def rates(ratios: Iterable[LogRatio]) -> tuple[float, float]:
    """How often intervals cover the true speedup, 1, and how often they are above it."""
    intervals = [interval(ratio) for ratio in ratios]
    covered = [run.low <= 1 <= run.high for run in intervals]
    return float(np.mean(covered)), float(np.mean([run.low > 1 for run in intervals]))


def simulated(
    name: str, cycles: int, prompts: int, estimate: Callable[..., LogRatio] | None = None
) -> tuple[float, float]:
    rng = np.random.default_rng(cycles * prompts)
    noise = NOISES[name]
    estimate = estimate or partial(crossed_speedup, prior=assumed_noise(noise.kind))
    [sweeps] = noise.sweeps(rng, SWEEPS, cycles, prompts)
    covered, helps = rates(estimate(*sweeps.sweep(i)) for i in range(SWEEPS))
    print(f"{name:12} {cycles} cycles, {prompts} prompts: {covered:.1%}, wrong helps {helps:.1%}")
    return covered, helps


@pytest.mark.sampled(one_in=6)
@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_crossed_intervals_have_their_nominal_coverage(name):
    for cycles, prompts in CASES:
        covered, helps = simulated(name, cycles, prompts)
        assert covered >= (0.92 if cycles == 2 else 0.93)
        assert covered <= 0.97 or NOISES[name].is_quieter
        assert helps < 0.05


def test_servers_that_differ_twice_as_much_as_assumed_are_covered_less():
    """What the assumption costs: with four cycles it has more weight than they."""
    noise = replace(NOISES["loaded CPU"], session=2 * NOISES["loaded CPU"].kind.assumed)
    [sweeps] = noise.sweeps(np.random.default_rng(0), SWEEPS, 4, 40)
    measured = [sweeps.sweep(i) for i in range(SWEEPS)]
    covered, _ = rates(crossed_speedup(*each, prior=assumed_noise(noise.kind)) for each in measured)
    print(f"4 cycles of servers twice as different as assumed: {covered:.1%}")
    assert 0.80 < covered < 0.93


def over_prompts_only(*columns: np.ndarray) -> LogRatio:
    """Negative control: as if all starts of a server were equal."""
    return speedup_ratio(*(column.sum(axis=0) for column in columns))


def without_assumption(*columns: np.ndarray) -> LogRatio:
    """Negative control: the variance of two cycles by themselves."""
    logs = np.log([np.nansum(column, axis=1) for column in columns])
    of_cycles = logs[0] - logs[1] - logs[2] + logs[3]
    cycles = spread(of_cycles.std(ddof=1) / math.sqrt(2), 1.0)
    ratio = crossed_speedup(*columns)
    return replace(ratio, prompts=combined(cycles, ratio.prompts), machine=None)


def test_an_interval_over_only_prompts_is_far_too_narrow():
    covered, helps = simulated("loaded CPU", 4, 40, over_prompts_only)
    assert covered < 0.75
    assert helps > 0.10
    # If servers hardly differ, there is nothing to miss.
    assert simulated("quiet GPU", 4, 40, over_prompts_only)[0] > 0.93


def test_two_cycles_need_the_assumed_deviation():
    covered, helps = simulated("loaded CPU", 2, 40, without_assumption)
    assert covered < 0.91
    assert helps > 0.04


def of_needed_length(sweep: Sequence[Cells]) -> LogRatio:
    """The first K's speedup after the number of cycles that the first four of all K require."""
    kind = NOISES["noisy CPU"].kind
    first = [cells.first(FEWEST_PLANNED) for cells in sweep]
    effect = math.expm1(abs(crossed_speedup(*first[0]).log))
    num_cycles = cycles_needed(
        [session_noise(*cells, prior=assumed_noise(kind)) for cells in first], effect
    )
    return crossed_speedup(*sweep[0].first(num_cycles or MOST_PLANNED), prior=assumed_noise(kind))


def until_it_is_significant(sweep: Sequence[Cells]) -> LogRatio:
    """Negative control: as many cycles as it takes until the interval excludes 1."""
    for num_cycles in range(FEWEST_PLANNED, MOST_PLANNED + 1):
        ratio = crossed_speedup(
            *sweep[0].first(num_cycles), prior=assumed_noise(NOISES["noisy CPU"].kind)
        )
        if abs(ratio.log) > ratio.spread.margin():
            break
    return ratio


@pytest.mark.long
def test_stopping_at_significance_loses_coverage():
    rng = np.random.default_rng(0)
    by_k = NOISES["noisy CPU"].sweeps(rng, SWEEPS, MOST_PLANNED, num_prompts=40, num_ks=3)
    sweeps = [[cells.sweep(i) for cells in by_k] for i in range(SWEEPS)]
    covered, helps = rates(map(of_needed_length, sweeps))
    print(f"as many cycles as needed: {covered:.1%}, wrong helps {helps:.1%}")
    assert 0.93 <= covered <= 0.97
    assert helps < 0.05
    covered, helps = rates(map(until_it_is_significant, sweeps[: SWEEPS // 4]))
    print(f"until it is significant: {covered:.1%}, wrong helps {helps:.1%}")
    assert covered < 0.90
    assert helps > 0.05


def test_an_effect_of_the_detectable_size_is_found_in_four_of_five_sweeps():
    rng = np.random.default_rng(0)
    noise = NOISES["loaded CPU"]
    [sweeps] = noise.sweeps(rng, SWEEPS, 6, 20)
    ratios = [
        crossed_speedup(*sweeps.sweep(i), prior=assumed_noise(noise.kind)) for i in range(SWEEPS)
    ]
    effect = math.log1p(np.mean([minimum_detectable_effect(ratio) for ratio in ratios]))
    detected = [ratio.log + effect > ratio.spread.margin() for ratio in ratios]
    assert np.mean(detected) == pytest.approx(0.80, abs=0.05)


def pooled(cells: Cells) -> Cells:
    """Concurrent requests give one figure per cycle."""
    return Cells(*(np.nansum(column, axis=-1, keepdims=True) for column in cells))


def test_prompts_served_together_have_an_interval_over_cycles_only():
    ratio = crossed_speedup(*pooled(cells(cycles=4, prompts=6)))
    logs = np.log([c.sum(axis=1) for c in cells(cycles=4, prompts=6)])
    of_cycles = logs[0] - logs[1] - logs[2] + logs[3]
    assert ratio.log == pytest.approx(of_cycles.mean())
    assumed = MachineKind.SERVER.assumed**2
    pooled_variance = (ASSUMED_FREEDOM * assumed + 3 * of_cycles.var(ddof=1)) / 7
    assert ratio.spread.standard_error == pytest.approx(math.sqrt(pooled_variance / 4))
    assert ratio.spread.degrees_of_freedom == pytest.approx(7.0)
    assert crossed_speedup(*pooled(cells(cycles=1, prompts=6))).spread is None


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(
    ("cycles", "name"), [(2, "loaded CPU"), (4, "loaded CPU"), (4, "quiet GPU")]
)
def test_an_interval_over_cycles_covers_other_starts(cycles, name):
    rng = np.random.default_rng(cycles)
    noise = replace(NOISES[name], prompt=0.0)
    [sweeps] = noise.sweeps(rng, SWEEPS, cycles, 10)
    measured = (pooled(sweeps.sweep(i)) for i in range(SWEEPS))
    covered, helps = rates(
        crossed_speedup(*each, prior=assumed_noise(noise.kind)) for each in measured
    )
    print(f"{name}, {cycles} cycles of passes: {covered:.1%}, wrong helps {helps:.1%}")
    assert covered >= 0.93
    assert covered <= 0.97 or noise.is_quieter
    assert helps < 0.05


def called_different(session_sd: float, num_sessions: int, *, slowdown: float, allowed: float):
    """How often a cell's sessions are reported as different, the first slower by `slowdown`."""
    rng = np.random.default_rng(num_sessions)
    shape = (SWEEPS, num_sessions, 20)
    logs = rng.normal(0.0, 0.5, (SWEEPS, 1, 20)) + rng.normal(0.0, session_sd, (*shape[:2], 1))
    logs[:, 0] -= math.log(slowdown)
    logs += rng.normal(0.0, 0.1, shape)  # of single requests
    return np.mean([sessions_p_value(cell, allowed) < DIFFERING_SESSIONS for cell in logs])


SESSION_SD, LOADED_SD = MachineKind.SERVER.assumed, MachineKind.SHARED_CPU.assumed


@pytest.mark.parametrize("session_sd", [SESSION_SD, LOADED_SD])
@pytest.mark.parametrize("num_sessions", [2, 3, 5])
def test_sessions_that_differ_by_chance_are_rarely_reported_as_different(session_sd, num_sessions):
    alarms = called_different(session_sd, num_sessions, slowdown=1.0, allowed=session_sd)
    assert alarms <= 0.003
    # Negative control: as if only single requests were noisy.
    control = called_different(session_sd, num_sessions, slowdown=1.0, allowed=1e-9)
    print(f"{num_sessions} sessions of {session_sd}: {alarms:.2%}, control {control:.0%}")
    assert control > 0.1


@pytest.mark.parametrize(
    ("session_sd", "deviations", "least", "most"),
    [
        (SESSION_SD, 4.5, 0.3, 0.6),
        (SESSION_SD, 6.7, 0.85, 1.0),
        (SESSION_SD, 9.4, 0.99, 1.0),
        (LOADED_SD, 3.4, 0.1, 0.3),
        (LOADED_SD, 6.5, 0.9, 1.0),
    ],
)
def test_a_slow_session_of_three_is_detected(session_sd, deviations, least, most):
    slowdown = math.exp(deviations * session_sd)
    noticed = called_different(session_sd, 3, slowdown=slowdown, allowed=session_sd)
    print(f"one of 3 sessions of {session_sd} slower by {slowdown:.2f}: {noticed:.1%}")
    assert least <= noticed <= most


def test_the_p_value_of_session_differences_is_from_an_f_test():
    logs = np.log([[1.0, 2.0, 1.0, 2.0, 4.0], [1.1, 1.9, 1.0, 2.0, 4.4], [1.5, 3.1, 1.4, 3.0, 6.0]])
    means = logs.mean(axis=1)
    rest = logs - means[:, None] - logs.mean(axis=0) + logs.mean()
    requests = (rest**2).sum() / 8 / 5
    freedom = (0.05**2 + requests) ** 2 / (requests**2 / 8)
    expected = f_distribution.sf(means.var(ddof=1) / (0.05**2 + requests), 2, freedom)
    assert sessions_p_value(logs, 0.05) == pytest.approx(expected)
    assert sessions_p_value(logs + np.arange(5), 0.05) == pytest.approx(expected)  # harder prompts
    assert sessions_p_value(logs[:1], 0.05) == sessions_p_value(logs[:, :4], 0.05) == 1.0
    alike = np.repeat([[0.0], [0.1], [0.3]], 5, axis=1)  # no noise of requests: chi-squared
    assert sessions_p_value(alike, 0.05) == pytest.approx(
        chi2.sf(alike.var(axis=0).sum() * 3 / 5 / 0.05**2, 2)
    )


@pytest.mark.parametrize("name", ["quiet GPU", "loaded CPU"])
def test_an_interval_holds_if_one_session_was_slow(name):
    noise = NOISES[name]
    [sweeps] = noise.sweeps(np.random.default_rng(0), SWEEPS, 4, 20)
    sweeps.base_s[:, 0] *= 1.3  # one of the two sessions of the first cycle, by 1.6
    measured = (sweeps.sweep(i) for i in range(SWEEPS // 2))
    covered, helps = rates(
        crossed_speedup(*each, prior=assumed_noise(noise.kind)) for each in measured
    )
    print(f"{name}, one slow session: {covered:.1%}, wrong helps {helps:.1%}")
    assert covered >= 0.92
    assert helps < 0.08


def test_prompts_served_together_add_no_noise() -> None:
    kind = MachineKind.SHARED_CPU
    together, apart = (expected_noise(num, kind) for num in (None, MIN_UNITS))
    assert together is not None
    assert apart is not None
    assert together.cycles == apart.cycles
    assert together.cycles.variance == pytest.approx(kind.assumed**2)
    assert together.prompts.standard_error == 0 < apart.prompts.standard_error
    assert expected_noise(MIN_UNITS - 1, kind) is None
