"""Each p-value is at most alpha in a share alpha of calls, and near 0 for its fault."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import chi2, kstwo, multinomial

from specbench.verify.evidence import Floats, JointCounts, SumMoments
from specbench.verify.statistics import (
    TAIL,
    control_p_value,
    detectable,
    joint_p_value,
    serial_p_value,
    tail_p_value,
    temperature_p_value,
    tokens_for_control,
    uniform_p_value,
)

pytestmark = pytest.mark.slow  # thousands of simulated calls

NUM_CALLS = 2000
NUM_TOKENS = 500


def draws(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).random((NUM_CALLS, NUM_TOKENS))


@pytest.mark.parametrize("p_value", [tail_p_value, uniform_p_value, serial_p_value])
def test_sound_tokens_have_the_stated_false_alarm_rate(p_value: Callable[[Floats], float]) -> None:
    p_values = np.array([p_value(row) for row in draws()])
    for alpha in (0.05, 0.005):
        alarms = (p_values < alpha).mean()
        print(f"{p_value.__name__}: {alarms:.4f} alarms where {alpha} is stated")
        assert alarms < alpha + 4 * (alpha / NUM_CALLS) ** 0.5


def test_p_values_are_corrected_for_every_tested_share() -> None:
    """Four tokens in the least likely 2^-20: 20 shares, on two sides each; the mean of ratios."""
    assert tail_p_value(np.full(4, 2.0**-21)) == pytest.approx(2 * 20 * 2.0**-80)
    ratios = {0.8: np.log(8), 1.0: 0.0, 1.25: np.log(8)}
    assert temperature_p_value(ratios) == pytest.approx(1 / 8)


def test_a_few_wrongly_accepted_drafts_are_detected_in_the_tail() -> None:
    tokens_N = np.random.default_rng(1).random(8192)
    tokens_N[:16] = 1e-5  # 0.2%
    assert tail_p_value(tokens_N) < 1e-10
    assert uniform_p_value(tokens_N) > 0.01


def test_biased_and_reused_noise_is_detected() -> None:
    rng = np.random.default_rng(0)
    tokens_N = rng.random(4096)
    assert uniform_p_value(tokens_N**1.2) < 1e-6
    assert serial_p_value(tokens_N.repeat(2)) < 1e-6
    # Sound noise is below this in one of 100,000 calls each.
    assert uniform_p_value(tokens_N) > 1e-5 < serial_p_value(tokens_N)


def test_the_uniform_test_is_exact_for_any_number_of_tokens() -> None:
    for num_tokens in (1, 2, 50, 20_000):
        ordered_N = np.sort(np.random.default_rng(num_tokens).random(num_tokens))
        above = max((i + 1) / num_tokens - x for i, x in enumerate(ordered_N))
        below = max(x - i / num_tokens for i, x in enumerate(ordered_N))
        expected = kstwo.sf(max(above, below), num_tokens)
        assert uniform_p_value(ordered_N[::-1]) == pytest.approx(expected, rel=1e-12)


def log_likelihoods(probs_V: Floats, tokens_N: Floats) -> dict[float, float]:
    scores = {}
    for factor in (0.7, 0.8, 1.0, 1.25):
        scores_V = np.log(probs_V) / factor
        scores_V -= np.log(np.exp(scores_V).sum())
        scores[factor] = float(scores_V[tokens_N].sum())
    return scores


def test_the_temperature_test_detects_only_another_temperature() -> None:
    rng = np.random.default_rng(0)
    probs_V = rng.dirichlet(np.ones(20))
    cold_V = probs_V**1.25 / (probs_V**1.25).sum()
    alarms = 0
    for _ in range(NUM_CALLS):
        sound = log_likelihoods(probs_V, rng.choice(20, NUM_TOKENS, p=probs_V))
        alarms += temperature_p_value(sound) < 0.05
    assert alarms / NUM_CALLS <= 0.05
    cold = log_likelihoods(probs_V, rng.choice(20, 4 * NUM_TOKENS, p=cold_V))
    assert temperature_p_value(cold) < 1e-6


def test_the_control_p_value_is_reached_in_80_percent_of_calls() -> None:
    rng = np.random.default_rng(0)
    probs_V = rng.dirichlet(np.ones(20))
    cold_V = probs_V**1.25 / (probs_V**1.25).sum()
    ratio_V = np.log(cold_V / probs_V)
    mean = cold_V @ ratio_V
    variance = cold_V @ ratio_V**2 - mean**2
    control = control_p_value(SumMoments(NUM_TOKENS * mean, NUM_TOKENS * variance), 3)
    calls = (rng.choice(20, NUM_TOKENS, p=cold_V) for _ in range(NUM_CALLS))
    reached = [temperature_p_value(log_likelihoods(probs_V, call)) <= control for call in calls]
    print(f"a control of {control:.2g} was reached in {np.mean(reached):.1%}")
    assert 0.77 < np.mean(reached) < 0.90
    assert control < 0.05
    assert control_p_value(SumMoments(0.0, 0.0), 3) == 1.0


def joint(observed_C: Floats, probs_C: Floats) -> float:
    counts = JointCounts(observed_C=observed_C, probability_C=probs_C, num_tokens=2)
    return joint_p_value(counts)


def chi_square(observed_NC: Floats, probs_C: Floats) -> Floats:
    expected_NC = probs_C * observed_NC.sum(1, keepdims=True)
    statistic_N = ((observed_NC - expected_NC) ** 2 / expected_NC).sum(1)
    return np.asarray(chi2.sf(statistic_N, len(probs_C) - 1))


# Eight of nine texts are expected 5 times in 1,024, or 0.5 times: a chi-square fails there.
RARE = {each: np.array([each] * 8 + [1 - 8 * each]) for each in (5 / 1024, 0.5 / 1024)}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("each", RARE)
def test_sound_rare_texts_have_the_stated_false_alarm_rate(each: float) -> None:
    """20,000 calls: at a share of 2e-4, 4 alarms are expected, and more than 13 in 7 of 100,000."""
    rng = np.random.default_rng(0)
    draws_NC = rng.multinomial(1024, RARE[each], 20_000).astype(float)
    p_values = np.array([joint(row_C, RARE[each]) for row_C in draws_NC])
    many_NC = rng.multinomial(1024, RARE[each], 400_000).astype(float)
    control = chi_square(many_NC, RARE[each])

    for alpha, most in ((2e-4, 13), (1e-3, 40), (1e-2, 260)):
        print(f"{alpha}: {(p_values < alpha).sum()} alarms, chi-square {(control < alpha).mean()}")
        assert (p_values < alpha).sum() <= most
    # 80 alarms are expected; it raises nearly five times as many.
    assert (control < 2e-4).sum() > 160, "the simulation sees a test that breaks its word"


def test_the_mean_ratio_of_all_counts_is_one() -> None:
    """All ways in which 6 texts fall into 3 cells: 1 / ratio is a p-value, exactly."""
    probs_C = np.array([0.7, 0.28, 0.02])
    counts = [(a, b, 6 - a - b) for a in range(7) for b in range(7 - a)]
    chances = np.array([multinomial.pmf(each, 6, probs_C) for each in counts])
    p_values = np.array([joint(np.array(each, dtype=float), probs_C) for each in counts])

    assert chances.sum() == pytest.approx(1)
    for alpha in np.unique(p_values):
        assert chances[p_values <= alpha].sum() <= alpha + 1e-12
    assert (chances / p_values)[p_values < 1].sum() <= 1


def test_another_distribution_of_short_texts_is_detected() -> None:
    rng = np.random.default_rng(0)
    probs_C = rng.dirichlet(np.ones(100))
    cold_C = probs_C**1.2 / (probs_C**1.2).sum()
    caught = [
        joint(rng.multinomial(5000, cold_C).astype(float), probs_C) < 2e-4 for _ in range(800)
    ]
    print(f"a distribution that is 17% colder: found in {np.mean(caught):.0%} of calls")
    assert np.mean(caught) > 0.8


@pytest.mark.parametrize("alpha", [1e-3, 1e-5])
def test_tokens_for_control_is_the_fewest_tokens_below_alpha(
    alpha: float,
) -> None:
    needed = tokens_for_control(SumMoments(4.0, 7.0), 4096, 6, alpha)
    enough, fewer = (SumMoments(4.0 * s, 7.0 * s) for s in (needed / 4096, 0.8 * needed / 4096))
    assert control_p_value(enough, 6) < alpha <= control_p_value(fewer, 6)
    assert tokens_for_control(SumMoments(0.0, 0.0), 4096, 6, alpha) == np.inf


def test_an_impossible_text_has_p_value_0() -> None:
    counts = JointCounts(
        observed_C=np.array([5.0, 1.0]), probability_C=np.array([1.0, 0.0]), num_tokens=1
    )
    assert joint_p_value(counts) == 0


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("num_tokens", [2000, 16384])
def test_a_detectable_deviation_is_found_in_80_percent_of_calls(num_tokens: int) -> None:
    alpha = 1e-3
    power = detectable(num_tokens, alpha)
    rng = np.random.default_rng(0)

    def detection_rate(share: float, excess: float) -> float:
        calls = []
        for _ in range(600):
            tokens_N = rng.random(num_tokens)
            below = rng.random(num_tokens) < share + excess
            moved_N = np.where(below, share * tokens_N, share + (1 - share) * tokens_N)
            calls.append(tail_p_value(moved_N) < alpha)
        return float(np.mean(calls))

    assert 0.72 < detection_rate(0.5, power.shift) < 0.9
    assert detection_rate(TAIL, power.tail) > 0.72  # other shares may also see it
    assert power.tail < power.shift / 5
