"""Greedy texts by the target's logits: the bound of a tie, and the end of a text."""

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specbench.decode.sampling import Sampler
from specbench.engines.engine import Work
from specbench.records import Kind, Sampling
from specbench.verify.collect import Collector, EngineUnderTest, VerificationPrompt
from specbench.verify.judge import Finding, is_tie, judge
from specbench.verify.reference_model import (
    ReferenceModel,
    allowed,
    expected_log_ratio,
    identity,
    log_likelihoods,
    surprise,
    token_distribution,
)

BEST, WORSE = 3, 5
EOS, MAX_NEW_TOKENS = 6, 4
ENGINE: Any = SimpleNamespace(name="fake", eos_ids=(EOS,))


class FixedLogits(ReferenceModel):
    """A target with the same logits after every text."""

    def __init__(self, logits_V: Tensor) -> None:
        self._logits_V = logits_V

    def logits(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Iterator[Tensor]:  # noqa: ARG002
        yield self._logits_V.expand(len(output_ids), -1)


def reference(dtype: torch.dtype, num_steps: int) -> FixedLogits:
    """The best logit is 16, with 16 eps in the last place; WORSE is `num_steps` of these below."""
    logits_V = torch.zeros(7, dtype=dtype)
    logits_V[BEST] = 16
    logits_V[WORSE] = 16 - num_steps * 16 * torch.finfo(dtype).eps
    return FixedLogits(logits_V)


@pytest.mark.parametrize(
    ("dtype", "num_steps", "tie"),
    [
        (torch.float32, 31, True),
        (torch.float32, 32, True),
        (torch.float32, 33, False),
        (torch.bfloat16, 7, True),
        (torch.bfloat16, 8, True),
        (torch.bfloat16, 9, False),
        (torch.float16, 8, True),
        (torch.float16, 9, False),
    ],
)
def test_a_near_tie_ends_at_its_step_limit(dtype: torch.dtype, num_steps: int, tie: bool) -> None:
    model = reference(dtype, num_steps)

    left = model.divergence("p0", [1], expected=[BEST, BEST], actual=[BEST, WORSE])
    (departed,) = model.departures("p0", [1], [BEST, WORSE])

    assert left is not None
    assert (left.position, departed.position) == (1, 1)
    assert left.steps == departed.steps == num_steps
    assert is_tie(left) is is_tie(departed) is tie


def test_a_shorter_text_diverges_at_its_end() -> None:
    divergence = reference(torch.float32, 1).divergence("p0", [1], [BEST, BEST], [BEST])
    assert divergence is not None
    assert (divergence.position, divergence.found, divergence.steps) == (1, None, None)


def greedy(text: tuple[int, ...], baseline: tuple[int, ...] | None = None) -> Finding:
    """The verdict on a text of a target whose best token is always BEST, or WORSE by a tie."""
    logits_V = torch.zeros(7)
    logits_V[BEST] = logits_V[WORSE] = logits_V[EOS] = 16
    question = VerificationPrompt(id="p0", prompt_ids=(1,), max_new_tokens=MAX_NEW_TOKENS)
    collector = Collector(FixedLogits(logits_V), [question], seed=0)
    k = 0 if baseline is None else 4
    case = EngineUnderTest("demo/x", ENGINE, Work(drafter="x", method="ngram", k=k))
    (finding,) = judge([collector.greedy(case, [text], None if baseline is None else [baseline])])
    return finding


@pytest.mark.parametrize(
    "text", [(BEST,) * MAX_NEW_TOKENS, (BEST, EOS), (EOS,), (BEST, BEST, BEST, EOS)]
)
def test_a_text_may_end_with_eos_or_with_the_last_requested_token(text):
    assert greedy(text).lossless
    assert greedy(text, baseline=(WORSE,) * MAX_NEW_TOKENS).lossless  # a tie, then another end


@pytest.mark.parametrize(
    ("text", "position", "kind"),
    [
        ((), 0, Kind.STOPS_EARLY),
        ((BEST, BEST), 2, Kind.STOPS_EARLY),
        ((BEST, EOS, BEST, BEST), 2, Kind.RUNS_PAST),
        ((BEST, EOS, WORSE, BEST), 2, Kind.RUNS_PAST),  # and a tie after the end
        ((BEST, EOS, BEST, WORSE), 2, Kind.RUNS_PAST),
        ((BEST,) * (MAX_NEW_TOKENS + 1), MAX_NEW_TOKENS, Kind.RUNS_PAST),
    ],
)
def test_a_text_that_ends_elsewhere_is_a_mismatch(text, position, kind):
    for baseline in (None, (WORSE,) * MAX_NEW_TOKENS):
        finding = greedy(text, baseline)
        assert (finding.verdict, finding.first_divergence.position) == ("mismatch", position)
        assert [reason.kind for reason in finding.reasons] == [kind]


def test_an_end_that_k_0_shares_is_not_a_fault_of_speculation():
    cut = (BEST, BEST)
    assert greedy(cut, baseline=cut).verdict == "identical"


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
def test_token_distribution_equals_transformers_and_our_sampler(sampling: Sampling) -> None:
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
def test_slack_widens_the_nucleus_by_its_odds(slack: float) -> None:
    """If what is ahead had exp(-slack) times its odds against the rest, it would fill top-p."""
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


def test_identity_is_the_cumulative_probability_by_token_id() -> None:
    probs_NV = torch.tensor([[0.5, 0.1, 0.3, 0.1]], dtype=torch.float64).expand(4, -1)
    expected = torch.tensor([0.0, 0.5, 0.6, 0.9], dtype=torch.float64)
    torch.testing.assert_close(identity(probs_NV, torch.arange(4), torch.zeros(4)), expected)
    actual = identity(probs_NV, torch.arange(4), torch.full((4,), 0.5))
    torch.testing.assert_close(actual, expected + probs_NV[0] / 2)


def test_surprise_keeps_its_precision_in_the_far_tail() -> None:
    probs_NV = torch.tensor([[1 - 3e-17, 2e-17, 1e-17]], dtype=torch.float64)
    actual = surprise(probs_NV, torch.tensor([1]), torch.zeros(1))
    assert float(actual) == pytest.approx(1e-17)


@pytest.mark.parametrize("sampling", SAMPLINGS[:5], ids=str)
def test_log_likelihoods_are_those_at_another_temperature(sampling: Sampling) -> None:
    probs_NV = token_distribution(LOGITS_NV, sampling)
    tokens_N = probs_NV.argmax(-1)
    scores_NV = (LOGITS_NV.double() / (0.8 * sampling.temperature)).where(
        probs_NV > 0, torch.tensor(-torch.inf, dtype=torch.float64)
    )
    expected = scores_NV.log_softmax(-1).gather(1, tokens_N[:, None]).sum()
    colder, unscaled = log_likelihoods(probs_NV, tokens_N, (0.8, 1.0))
    assert colder == pytest.approx(float(expected))
    assert unscaled == pytest.approx(float(probs_NV.amax(-1).log().sum()))


@pytest.mark.parametrize("sampling", SAMPLINGS[:5], ids=str)
def test_the_expected_log_ratio_equals_a_loop_over_tokens(sampling: Sampling) -> None:
    """Token after token of the vocabulary; the ones that are cut have no share."""
    probs_NV = token_distribution(LOGITS_NV, sampling)
    mean = variance = 0.0
    for probs_V in probs_NV:
        kept_V = probs_V[probs_V > 0]
        colder_V = kept_V**1.25 / (kept_V**1.25).sum()
        ratio_V = (colder_V / kept_V).log()
        mean += float(colder_V @ ratio_V)
        variance += float(colder_V @ ratio_V**2 - (colder_V @ ratio_V) ** 2)
    assert expected_log_ratio(probs_NV, 0.8) == pytest.approx((mean, variance))
