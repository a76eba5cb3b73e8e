"""The second implementation of sampling, compared with that of transformers."""

import math

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specbench.decode.sampling import Sampler
from specbench.records import Sampling
from specbench.verify.distribution import (
    allowed,
    identity,
    log_likelihoods,
    ratio_to_expect,
    surprise,
    token_distribution,
)

SAMPLINGS = [
    Sampling(temperature=0.7),
    Sampling(temperature=1.0),
    Sampling(temperature=1.3, top_k=5),
    Sampling(temperature=0.8, top_p=0.9),
    Sampling(temperature=1.5, top_k=20, top_p=0.6),
    Sampling(temperature=1.0, top_k=1),
    Sampling(temperature=1.0, top_p=0.01),
]
LOGITS_NV = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_it_is_the_distribution_of_transformers_and_of_our_sampler(sampling: Sampling) -> None:
    scores_NV = TemperatureLogitsWarper(sampling.temperature)(None, LOGITS_NV.double())
    if sampling.top_k:
        scores_NV = TopKLogitsWarper(sampling.top_k)(None, scores_NV)
    if sampling.top_p < 1:
        scores_NV = TopPLogitsWarper(sampling.top_p)(None, scores_NV)
    probs_NV = token_distribution(LOGITS_NV, sampling)
    torch.testing.assert_close(probs_NV, scores_NV.softmax(-1))
    torch.testing.assert_close(probs_NV.float(), Sampler(sampling).probs(LOGITS_NV))


def test_slack_keeps_tokens_that_rounding_may_have_cut() -> None:
    logits_NV = torch.tensor([[3.0, 2.0, 2.0 - 1e-6, 0.0]])
    slack_N1 = torch.tensor([[1e-5]])
    sampling = Sampling(temperature=1.0, top_k=2)
    assert allowed(logits_NV, sampling).tolist() == [[True, True, False, False]]
    assert allowed(logits_NV, sampling, slack_N1).tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("slack", [0.0, 0.01, 1.43, 5.0])
def test_slack_moves_the_odds_of_the_nucleus_and_never_lets_all_in(slack: float) -> None:
    """Were what is ahead exp(-slack) times as likely beside the rest, it would fill top-p."""
    sampling = Sampling(temperature=1.0, top_p=0.9)
    edge = 0.9 / (0.9 + 0.1 * math.exp(-slack))
    for ahead, stays in ((edge - 1e-6, True), (edge + 1e-6, False)):
        p_N3 = torch.tensor([[ahead, (1 - ahead) * 0.6, (1 - ahead) * 0.4]], dtype=torch.float64)
        kept = allowed(p_N3.log(), sampling, torch.tensor([[slack]]))
        assert kept.tolist() == [[True, stays, False if slack < 4 else kept[0, 2].item()]]


def test_surprise_is_the_mass_of_less_likely_tokens() -> None:
    probs_NV = torch.tensor([[0.5, 0.1, 0.3, 0.1]], dtype=torch.float64).expand(4, -1)
    tokens_N = torch.arange(4)
    none, half = torch.zeros(4), torch.full((4,), 0.5)
    expected = torch.tensor([0.5, 0.1, 0.2, 0.0], dtype=torch.float64)
    torch.testing.assert_close(surprise(probs_NV, tokens_N, none), expected)
    torch.testing.assert_close(surprise(probs_NV, tokens_N, half), expected + probs_NV[0] / 2)


def test_placed_orders_tokens_by_id() -> None:
    probs_NV = torch.tensor([[0.5, 0.1, 0.3, 0.1]], dtype=torch.float64).expand(4, -1)
    expected = torch.tensor([0.0, 0.5, 0.6, 0.9], dtype=torch.float64)
    torch.testing.assert_close(identity(probs_NV, torch.arange(4), torch.zeros(4)), expected)
    found = identity(probs_NV, torch.arange(4), torch.full((4,), 0.5))
    torch.testing.assert_close(found, expected + probs_NV[0] / 2)


def test_a_token_in_the_far_tail_keeps_its_digits() -> None:
    probs_NV = torch.tensor([[1 - 3e-17, 2e-17, 1e-17]], dtype=torch.float64)
    found = surprise(probs_NV, torch.tensor([1]), torch.zeros(1))
    assert float(found) == pytest.approx(1e-17)


@pytest.mark.parametrize("sampling", SAMPLINGS[:5], ids=str)
def test_the_likelihood_at_another_temperature(sampling: Sampling) -> None:
    probs_NV = token_distribution(LOGITS_NV, sampling)
    tokens_N = probs_NV.argmax(-1)
    scores_NV = (LOGITS_NV.double() / (0.8 * sampling.temperature)).where(
        probs_NV > 0, torch.tensor(-torch.inf, dtype=torch.float64)
    )
    expected = scores_NV.log_softmax(-1).gather(1, tokens_N[:, None]).sum()
    colder, own = log_likelihoods(probs_NV, tokens_N, (0.8, 1.0))
    assert colder == pytest.approx(float(expected))
    assert own == pytest.approx(float(probs_NV.amax(-1).log().sum()))


@pytest.mark.parametrize("sampling", SAMPLINGS[:5], ids=str)
def test_the_expected_ratio_of_colder_tokens(sampling: Sampling) -> None:
    """Token after token of the vocabulary, those that are cut having no part in it."""
    probs_NV = token_distribution(LOGITS_NV, sampling)
    mean = variance = 0.0
    for probs_V in probs_NV:
        kept_V = probs_V[probs_V > 0]
        colder_V = kept_V**1.25 / (kept_V**1.25).sum()
        ratio_V = (colder_V / kept_V).log()
        mean += float(colder_V @ ratio_V)
        variance += float(colder_V @ ratio_V**2 - (colder_V @ ratio_V) ** 2)
    assert ratio_to_expect(probs_NV, 0.8) == pytest.approx((mean, variance))
