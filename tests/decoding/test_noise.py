"""The hash that replaces a generator: uniform, independent, and sharp for rare tokens.

Every bound is 5 standard errors: a false alarm rate below 1e-6 per comparison, with fixed seeds.
"""

import itertools
import math

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from specbench.decode.sampling import Purpose, draw, exponential, uniform

N = 200_000
POSITIONS_1N = torch.arange(N)[None]
SEED_1 = torch.tensor([7])


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's, of the two samples flattened."""
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]).double())[0, 1])


def uniformised(noise: Tensor) -> Tensor:
    """Exponential noise put through its own distribution function."""
    return 1 - torch.exp(-noise.double())


def tokens_noise(seeds_B: Tensor, num_positions: int, num_tokens: int) -> Tensor:
    """Uniformised target noise [B, T, V]."""
    positions_BT = torch.arange(num_positions).expand(len(seeds_B), -1)
    return uniformised(exponential(seeds_B, positions_BT, Purpose.TARGET, num_tokens))


@pytest.mark.parametrize("purpose", list(Purpose))
def test_uniform_noise_over_positions_and_over_seeds_is_uniform(purpose: Purpose) -> None:
    over_positions_N = uniform(SEED_1, POSITIONS_1N, purpose)[0]
    over_seeds_N = uniform(torch.arange(N), torch.full((N, 1), 3), purpose)[:, 0]

    for sample_N in (over_positions_N, over_seeds_N):
        assert float(sample_N.min()) > 0
        assert float(sample_N.max()) <= 1
        assert kstest(sample_N.numpy(), "uniform").pvalue > 1e-6


def test_exponential_noise_is_exponential_over_tokens_positions_and_seeds() -> None:
    noise = exponential(torch.arange(20), torch.arange(20).expand(20, -1), Purpose.TARGET, 500)

    assert float(noise.min()) > 0
    for sample in (noise[0, 0], noise[:, 0, 0], noise[0, :, 0], noise.flatten()):
        assert kstest(sample.numpy(), "expon").pvalue > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("batches", [30, pytest.param(100, marks=pytest.mark.long)])
def test_small_exponentials_have_the_expected_frequency(batches: int) -> None:
    B, T, V = 25, 20, 2_000  # a million draws per batch: one is expected below 1e-6
    below = {1e-4: 0, 1e-5: 0, 1e-6: 0}
    for batch in range(batches):
        seeds_B = torch.arange(batch * B, (batch + 1) * B)
        noise = exponential(seeds_B, torch.arange(T).expand(B, -1), Purpose.DRAFT, V)
        for limit in below:
            below[limit] += int((noise < limit).sum())

    for limit, count in below.items():
        expected = batches * B * T * V * -math.expm1(-limit)
        assert abs(count - expected) <= 5 * math.sqrt(expected), f"{limit}: {count}"


def test_small_exponentials_are_finer_than_steps_of_2_to_the_minus_24() -> None:
    # A token of probability 1e-7 wins by a draw near 1e-7; noise made from the large side of
    # the unit interval comes in steps of 2**-24 = 6e-8 and would misjudge such tokens.
    noise = exponential(torch.arange(50), torch.arange(20).expand(50, -1), Purpose.TARGET, 2_000)
    steps = noise[noise < 1e-5].double() * 2**24

    assert len(steps) >= 10
    assert float((steps - steps.round()).abs().max()) > 0.1


@pytest.mark.sampled(one_in=3, every=["a", "b"])
@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(Purpose, 2)))
def test_noise_of_different_purposes_is_uncorrelated(a: Purpose, b: Purpose) -> None:
    of_a, of_b = uniform(SEED_1, POSITIONS_1N, a), uniform(SEED_1, POSITIONS_1N, b)

    assert abs(correlation(of_a, of_b)) <= 5 / math.sqrt(N)


@pytest.mark.slow
def test_a_draft_is_independent_of_the_targets_draw_and_its_acceptance() -> None:
    V = 20
    draft_NV, target_NV = (
        uniformised(exponential(SEED_1, POSITIONS_1N, purpose, V))[0]
        for purpose in (Purpose.DRAFT, Purpose.TARGET)
    )
    accept_N = uniform(SEED_1, POSITIONS_1N, Purpose.ACCEPT)[0]

    assert abs(correlation(draft_NV, target_NV)) <= 5 / math.sqrt(N * V)
    for token in range(V):
        assert abs(correlation(draft_NV[:, token], accept_N)) <= 5 / math.sqrt(N)


def test_positions_near_each_other_are_independent() -> None:
    noise = uniform(SEED_1, POSITIONS_1N, Purpose.TARGET)[0]

    for apart in (1, 2, 3, 8):
        assert abs(correlation(noise[:-apart], noise[apart:])) <= 5 / math.sqrt(N - apart)


def test_seeds_near_each_other_are_independent_also_in_their_upper_half() -> None:
    seeds_B = torch.arange(2_000)
    noise = tokens_noise(seeds_B, 10, 10)
    shifted = tokens_noise(seeds_B + 2**32, 10, 10)

    assert abs(correlation(noise[:-1], noise[1:])) <= 5 / math.sqrt(noise[1:].numel())
    assert abs(correlation(noise, shifted)) <= 5 / math.sqrt(noise.numel())


def test_noise_differs_if_seed_and_position_are_swapped() -> None:
    # seed s at position p and seed p at position s must be different draws.
    noise = tokens_noise(torch.arange(300), 300, 5)
    swapped = noise.transpose(0, 1)
    off_diagonal = ~torch.eye(300, dtype=torch.bool)

    pairs = int(off_diagonal.sum()) * 5
    assert abs(correlation(noise[off_diagonal], swapped[off_diagonal])) <= 5 * math.sqrt(2 / pairs)


def test_noise_of_different_tokens_is_independent() -> None:
    noise = tokens_noise(torch.arange(200), 10, 100)

    for apart in (1, 2, 16, 64):
        a, b = noise[..., :-apart], noise[..., apart:]
        assert abs(correlation(a, b)) <= 5 / math.sqrt(a.numel())


def test_the_correlation_bound_finds_noise_that_is_reused() -> None:
    noise = uniform(SEED_1, POSITIONS_1N, Purpose.TARGET)
    mostly_fresh = torch.where(POSITIONS_1N % 50 == 0, noise, noise.roll(1))

    assert abs(correlation(noise, mostly_fresh)) > 5 / math.sqrt(N)


def test_a_token_is_drawn_in_proportion_to_its_weight() -> None:
    weights_V = torch.tensor([0.6, 0.3, 0.1, 0.0, 1e-3])
    drawn_N = draw(weights_V.expand(1, N, -1), SEED_1, POSITIONS_1N, Purpose.TARGET)[0]

    shares_V = weights_V.double() / weights_V.sum()
    counts_V = torch.bincount(drawn_N, minlength=5)
    assert counts_V[3] == 0
    assert bool(((counts_V - N * shares_V).abs() <= 5 * (N * shares_V).sqrt()).all())


def test_noise_depends_only_on_seed_position_purpose_and_token() -> None:
    alone = exponential(torch.tensor([5]), torch.tensor([[9]]), Purpose.DRAFT, 10)
    beside = exponential(torch.tensor([4, 5]), torch.tensor([[8, 9], [3, 9]]), Purpose.DRAFT, 30)

    assert torch.equal(alone[0, 0], beside[1, 1, :10])
