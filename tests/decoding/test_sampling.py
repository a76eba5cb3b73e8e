"""Temperature, top-k and top-p against figures worked by hand and transformers' warpers."""

import itertools

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specbench.decode.sampling import Sampler
from specbench.errors import UsageError
from specbench.records import Sampling

LOGITS_V = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()


def sampled_probs(**settings: float) -> list[float]:
    sampler = Sampler(Sampling(**{"temperature": 1.0, **settings}))
    probs: list[float] = sampler.probs(LOGITS_V).tolist()
    return probs


def test_at_temperature_1_the_distribution_is_the_softmax() -> None:
    assert sampled_probs() == pytest.approx([0.15, 0.5, 0.05, 0.3])


def test_at_temperature_one_half_probabilities_are_squared_and_rescaled() -> None:
    total = 0.15**2 + 0.5**2 + 0.05**2 + 0.3**2
    assert sampled_probs(temperature=0.5) == pytest.approx(
        [p**2 / total for p in (0.15, 0.5, 0.05, 0.3)]
    )


def test_at_temperature_0_the_distribution_is_one_hot_on_the_likeliest_token() -> None:
    sampler = Sampler(Sampling(temperature=0))

    assert sampler.is_greedy
    assert sampler.probs(LOGITS_V).tolist() == [0, 1, 0, 0]


def test_a_tie_at_temperature_0_goes_to_a_single_token() -> None:
    assert Sampler(Sampling()).probs(torch.zeros(2, 3)).sum(-1).tolist() == [1, 1]


def test_top_k_keeps_the_k_likeliest_and_rescales_them() -> None:
    assert sampled_probs(top_k=2) == pytest.approx([0, 0.5 / 0.8, 0, 0.3 / 0.8])


def test_top_k_of_1_is_greedy() -> None:
    assert sampled_probs(top_k=1) == [0, 1, 0, 0]


def test_top_k_beyond_the_vocabulary_changes_nothing() -> None:
    assert sampled_probs(top_k=9) == sampled_probs()


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.4, [1]), (0.51, [1, 3]), (0.79, [1, 3]), (0.81, [0, 1, 3]), (0.97, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: list[int]) -> None:
    probs = [0.15, 0.5, 0.05, 0.3]
    total = sum(probs[i] for i in kept)

    expected = [p / total if i in kept else 0 for i, p in enumerate(probs)]
    assert sampled_probs(top_p=top_p) == pytest.approx(expected)


def test_a_tiny_top_p_keeps_the_likeliest_token() -> None:
    assert sampled_probs(top_p=1e-12) == [0, 1, 0, 0]


def test_top_p_is_taken_after_temperature_and_top_k() -> None:
    # Squared and cut to two: 0.25 and 0.09, that is 0.735 and 0.265; the first reaches 0.7.
    assert sampled_probs(temperature=0.5, top_k=2, top_p=0.7) == [0, 1, 0, 0]
    assert sampled_probs(temperature=0.5, top_k=2, top_p=0.75) == pytest.approx(
        [0, 0.25 / 0.34, 0, 0.09 / 0.34]
    )


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    list(itertools.product((0.3, 1.0, 1.7), (0, 1, 5, 50), (0.1, 0.9, 1.0))),
)
def test_probs_equal_those_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    logits_NV = torch.randn(300, 97, generator=torch.Generator().manual_seed(0)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))

    ours = Sampler(Sampling(temperature=temperature, top_k=top_k, top_p=top_p)).probs(logits_NV)

    theirs = warpers(torch.zeros(300, 1, dtype=torch.long), logits_NV).softmax(-1)
    assert torch.equal(ours > 0, theirs > 0)
    torch.testing.assert_close(ours, theirs)


def test_half_precision_logits_are_sampled_in_float32() -> None:
    logits_V = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)

    assert Sampler(Sampling(temperature=0.7)).probs(logits_V).dtype == torch.float32


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -0.1}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"temperature.*top_k.*0"):
        Sampler(Sampling(**settings))
