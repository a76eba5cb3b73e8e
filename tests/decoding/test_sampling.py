"""Temperature, top-k and top-p against figures worked by hand and transformers' warpers."""

import itertools
from collections.abc import Sequence

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


SHARES = (0.15, 0.5, 0.05, 0.3)


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, SHARES),
        ({"temperature": 0.5}, [p**2 for p in SHARES]),
        ({"top_k": 2}, [0, 0.5, 0, 0.3]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 9}, SHARES),  # more than the vocabulary
        # top-p keeps the fewest tokens that reach it
        ({"top_p": 1e-12}, [0, 1, 0, 0]),
        ({"top_p": 0.4}, [0, 1, 0, 0]),
        ({"top_p": 0.51}, [0, 0.5, 0, 0.3]),
        ({"top_p": 0.79}, [0, 0.5, 0, 0.3]),
        ({"top_p": 0.81}, [0.15, 0.5, 0, 0.3]),
        ({"top_p": 0.97}, SHARES),
        # After temperature and top-k: 0.25 and 0.09, that is 0.735 and 0.265; one reaches 0.7.
        ({"temperature": 0.5, "top_k": 2, "top_p": 0.7}, [0, 1, 0, 0]),
        ({"temperature": 0.5, "top_k": 2, "top_p": 0.75}, [0, 0.25, 0, 0.09]),
    ],
    ids=str,
)
def test_the_distribution_follows_temperature_top_k_and_top_p(
    settings: dict[str, float], shares: Sequence[float]
) -> None:
    probs = sampled_probs(**settings)
    assert probs == pytest.approx([share / sum(shares) for share in shares])
    assert [p > 0 for p in probs] == [share > 0 for share in shares]


def test_at_temperature_0_the_distribution_is_one_hot_on_the_likeliest_token() -> None:
    sampler = Sampler(Sampling(temperature=0))

    assert sampler.is_greedy
    assert sampler.probs(LOGITS_V).tolist() == [0, 1, 0, 0]


def test_a_tie_at_temperature_0_goes_to_a_single_token() -> None:
    assert Sampler(Sampling()).probs(torch.zeros(2, 3)).sum(-1).tolist() == [1, 1]


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
