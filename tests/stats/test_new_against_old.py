"""The one implementation of each statistic against those that it replaces, on random inputs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specbench import costs
from specbench.gate import comparison
from specbench.lossless import statistics as lossless
from specbench.metrics import acceptance as metrics
from specbench.metrics.cell import CellData
from specbench.metrics.rounds import round_s_p95
from specbench.metrics.serving import _p95
from specbench.pairing import why
from specbench.pairing.compromise import find_compromise
from specbench.pairing.objective import Candidate, Pick, _plainness, shared_pick
from specbench.pairing.recommend import TIE
from specbench.pairing.replay import Replayed
from specbench.records import RoundLog
from specbench.stats import acceptance, intervals
from specbench.stats.acceptance import RoundCounts
from specbench.stats.break_even import break_even_acceptance
from specbench.stats.multiple_testing import holm, mean_ratio_p_value
from specbench.stats.paired import paired_log_ratio
from specbench.stats.percentiles import p95
from specbench.stats.regret import minimax_regret
from specbench.stats.spread import Spread, combined, jackknife, of_mean
from tests.cell_keys import KEY
from tests.metrics.conftest import request
from tests.pairing.conftest import summary

CASES = 400
EXACT = {"rel": 1e-12, "abs": 1e-13}


@pytest.mark.parametrize("seed", range(CASES))
def test_holm(seed):
    rng = np.random.default_rng(seed)
    p = rng.random(rng.integers(0, 20)) ** rng.integers(1, 6)
    p = np.round(p, int(rng.integers(1, 8)))  # ties, zeros and ones among them
    assert holm(p) == comparison.holm(p.tolist()) == lossless.holm(p).tolist()


@pytest.mark.parametrize("seed", range(CASES))
def test_the_mean_of_likelihood_ratios(seed):
    rng = np.random.default_rng(seed)
    logs = rng.normal(0, 10 ** rng.uniform(-2, 2), rng.integers(1, 12))
    found = {1.0: 0.0} | {2.0 + i: log for i, log in enumerate(logs)}
    assert mean_ratio_p_value(logs) == pytest.approx(lossless.temperature_p_value(found), **EXACT)


@pytest.mark.parametrize("seed", range(CASES))
def test_jackknife(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    over, under = np.exp(rng.normal(0, rng.uniform(0, 2), (2, n)))
    old = intervals.log_ratio([over], [under])
    weights = (over / over.sum() + under / under.sum()) / 2
    if n < 2:
        assert jackknife([0.0], [1.0]) is None
        return
    new = jackknife(np.log(over.sum() - over) - np.log(under.sum() - under), weights)
    gate = comparison._jackknife(np.log(over.sum() - over) - np.log(under.sum() - under), weights)
    if new is None:
        assert old.standard_error is None
        assert gate is None
        return
    assert new.standard_error == pytest.approx(old.standard_error, **EXACT)
    assert new.degrees_of_freedom == pytest.approx(old.degrees_of_freedom, **EXACT)
    assert (gate.standard_error, gate.degrees_of_freedom) == pytest.approx(
        (new.standard_error, new.degrees_of_freedom), **EXACT
    )


def random_spread(rng):
    """Exact ones, and ones of infinite freedom, among them."""
    error = 0.0 if rng.random() < 0.1 else float(np.exp(rng.normal(-3, 2)))
    freedom = math.inf if error == 0 or rng.random() < 0.1 else float(rng.uniform(1, 50))
    return error, freedom


@pytest.mark.parametrize("seed", range(CASES))
def test_satterthwaite(seed):
    rng = np.random.default_rng(seed)
    ours = [random_spread(rng) for _ in range(2)]
    one, other = (Spread(standard_error=e, degrees_of_freedom=f) for e, f in ours)
    new = combined(one, other)
    ratios = [
        intervals.LogRatio(log=0.1, standard_error=e, degrees_of_freedom=f, num_prompts=7)
        for e, f in ours
    ]
    old = intervals.product(*ratios)
    assert new.standard_error == pytest.approx(old.standard_error, **EXACT)
    assert new.degrees_of_freedom == pytest.approx(old.degrees_of_freedom, **EXACT)
    if any(e and math.isfinite(f) for e, f in ours) or not any(e for e, _ in ours):
        gate = comparison._sum(
            *(comparison.Spread(standard_error=e, degrees_of_freedom=f) for e, f in ours)
        )
        assert new.standard_error == pytest.approx(gate.standard_error, **EXACT)
        assert new.degrees_of_freedom == pytest.approx(gate.degrees_of_freedom, **EXACT)


@pytest.mark.parametrize("seed", range(CASES))
def test_student_t(seed):
    rng = np.random.default_rng(seed)
    error, freedom = random_spread(rng)
    spread = Spread(standard_error=error, degrees_of_freedom=freedom)
    ratio = intervals.LogRatio(
        log=float(rng.normal()), standard_error=error, degrees_of_freedom=freedom, num_prompts=9
    )
    old = intervals.interval(ratio)
    assert math.exp(ratio.log - spread.margin()) == pytest.approx(old.low, **EXACT)
    assert math.exp(ratio.log + spread.margin()) == pytest.approx(old.high, **EXACT)
    effect = intervals.minimum_detectable_effect(ratio)
    assert math.expm1(spread.detectable()) == pytest.approx(effect, **EXACT)
    loss, limit, false_alarm = rng.normal(0, 0.1), rng.uniform(0, 0.1), rng.uniform(1e-4, 0.1)
    gate = comparison.Comparison(
        loss=loss,
        limit=limit,
        spread=comparison.Spread(standard_error=error, degrees_of_freedom=freedom),
    )
    assert spread.p_value(loss - limit) == pytest.approx(gate.p_value, **EXACT)
    assert loss + spread.margin(0.3) == pytest.approx(gate.bound(0.3), **EXACT)
    assert spread.detectable(1 - false_alarm) == pytest.approx(
        gate.detectable(false_alarm), **EXACT
    )


@pytest.mark.parametrize("seed", range(CASES))
def test_means(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=rng.integers(1, 20))
    old, new = intervals.mean_interval(values), of_mean(values)
    if new is None:
        assert old.low is None
        return
    assert old.high - old.estimate == pytest.approx(new.margin(), **EXACT)
    costs_a, costs_b = np.exp(rng.normal(0, 0.01, (2, len(values))))  # none far off
    residuals = costs_a / costs_a.mean() - costs_b / costs_b.mean()
    paired = paired_log_ratio(costs_a, costs_b)
    assert of_mean(residuals) == Spread(
        standard_error=pytest.approx(paired.standard_error, **EXACT),
        degrees_of_freedom=paired.degrees_of_freedom,
    )


@pytest.mark.parametrize("seed", range(CASES))
def test_regret(seed):
    rng = np.random.default_rng(seed)
    workloads = [f"w{i}" for i in range(rng.integers(2, 5))]
    ks = sorted({0, *rng.integers(1, 9, 4).tolist()})
    speeds = {w: {k: float(rng.uniform(0.5, 2)) if k else 1.0 for k in ks} for w in workloads}
    if rng.random() < 0.5:
        speeds = {w: {k: round(v, 1) for k, v in of.items()} for w, of in speeds.items()}
    for w in workloads:  # some K are not measured everywhere
        if rng.random() < 0.3 and len(ks) > 2:
            speeds[w].pop(int(rng.choice(ks[1:])))
    shared = [k for k in ks if all(k in of for of in speeds.values())]
    best = {w: max(of.values()) for w, of in speeds.items()}
    new = minimax_regret([{w: speeds[w][k] for w in workloads} for k in shared], best, tie=TIE)
    cells = [
        summary(k, v - 0.1, v, v + 0.1, workload=w)
        for w, of in speeds.items()
        for k, v in of.items()
    ]
    if any(cell.key.num_speculative_tokens for cell in cells):
        old = find_compromise([c for c in cells if c.speedup])
        assert shared[new.place] == old.num_speculative_tokens
        assert new.regret == old.regret
    picks = [
        Pick(
            question=type("Question", (), {"workload": w})(),
            best=None,
            candidates=(),
            ways=tuple(
                Candidate(key=c.key, value=1.0, rate=v, cautious_rate=v, broken=())
                for c in cells
                if c.key.workload == w
                for v in [speeds[w][c.key.num_speculative_tokens]]
            ),
        )
        for w in workloads
    ]
    way = shared_pick(picks)
    assert way.key.num_speculative_tokens == shared[new.place]
    assert way.regret == new.regret
    assert _plainness(way.key)[-1] == way.key.num_speculative_tokens


def random_rounds(rng, k):
    """Chains, and sometimes trees; short drafts, and texts that end inside their drafts."""
    n = int(rng.integers(1, 40))
    drafted = rng.integers(0, k + 1, n)
    accepted = np.minimum(rng.geometric(rng.uniform(0.2, 1), n) - 1, drafted)
    if rng.random() < 0.2:
        drafted = np.where(drafted > 0, drafted + rng.integers(0, 5, n), 0)
    emitted = accepted + (rng.random(n) < 0.9) * 1
    return [tuple(map(int, column)) for column in (drafted, accepted, np.maximum(emitted, 1))]


@pytest.mark.parametrize("seed", range(CASES))
def test_acceptance(seed):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 9))
    drafted, accepted, emitted = random_rounds(rng, k)
    new = RoundCounts.of_rounds(drafted, accepted, emitted, k)
    log = RoundLog(
        num_drafted=drafted,
        num_accepted=accepted,
        num_emitted=emitted,
        round_s=tuple(rng.random(len(drafted)).tolist()),
    )
    cell = CellData(key=replace(KEY, num_speculative_tokens=k), requests=(request("a", log),))
    is_tree = max(drafted) > k
    assert new.mean_acceptance_length == metrics.mean_acceptance_length(cell)
    assert new.mean_acceptance_length_when_drafted == metrics.mean_acceptance_length_when_drafted(
        cell
    )
    assert new.acceptance_rate == metrics.acceptance_rate(cell)
    assert new.per_position == metrics.acceptance_rate_per_position(cell)
    assert new.conditional == metrics.conditional_acceptance_rate(cell)
    assert metrics.alpha(cell) == (None if is_tree or not any(drafted) else new.alpha)
    assert round_s_p95(cell) == _p95(list(log.round_s)) == p95(log.round_s)

    histogram = tuple(float(accepted.count(a)) for a in range(k + 1))
    old = Replayed(
        num_speculative_tokens=k,
        num_rounds=new.num_rounds,
        num_drafted=new.num_drafted,
        num_accepted=new.num_accepted,
        num_emitted=new.num_emitted,
        num_drafting=new.num_drafting,
        num_rejecting=new.num_rejecting,
        acceptance_histogram=histogram,
    )
    for mine, theirs in ((new, old), (new + new, old + old)):
        assert mine.mean_acceptance_length == theirs.mean_acceptance_length
        assert mine.acceptance_rate == theirs.acceptance_rate
        assert mine.per_position == theirs.acceptance_rate_per_position
        assert mine.conditional == theirs.conditional_acceptance_rate
        assert is_tree or mine.alpha == theirs.alpha


@pytest.mark.parametrize("seed", range(CASES))
def test_rates_by_position(seed):
    rng = np.random.default_rng(seed)
    rates = (rng.random(rng.integers(0, 9)) * (rng.random() < 0.9)).tolist()
    alpha, k = float(rng.random()), int(rng.integers(0, 17))
    assert acceptance.expected_tokens_by_k(rates) == pytest.approx(
        costs.expected_tokens_by_k(rates), **EXACT
    )
    assert acceptance.expected_tokens_iid(alpha, k) == pytest.approx(
        costs.expected_tokens_iid(alpha, k), **EXACT
    )
    joint = acceptance.joint_rates(rates)
    assert acceptance.conditional_rates(joint) == costs.conditional_rates(joint)
    assert acceptance.mean_length_at(joint) == pytest.approx(
        costs.expected_tokens_by_k(rates)[-1], **EXACT
    )


@pytest.mark.parametrize("seed", range(CASES))
def test_break_even(seed):
    """The bisection stopped at 1e-6."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 17))
    steps = float(rng.choice([rng.uniform(0.5, k + 2), 1.0, k + 1]))
    old, new = why.break_even_acceptance(k, steps), break_even_acceptance(k, steps)
    assert (old is None) == (new is None)
    assert old is None or new == pytest.approx(old, abs=1e-6)


@pytest.mark.parametrize("seed", range(CASES))
def test_kolmogorov_smirnov(seed):
    from scipy.stats import kstest

    rng = np.random.default_rng(seed)
    numbers = rng.random(int(np.exp(rng.uniform(0, 10)))) ** rng.choice([1.0, 1.05])
    new = kstest(numbers, "uniform", method="exact").pvalue
    assert new == pytest.approx(lossless.uniform_p_value(numbers), **EXACT)
