"""Top-p by its threshold keeps what a sort in float64 keeps; ties stay or go together."""

import itertools
import time

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import TopPLogitsWarper

from specbench.decode.sampling import likeliest, nucleus
from specbench.forward.kernels import sampling as kernels

ROWS = {7: 4_000, 97: 3_000, 1_000: 2_000, 4_096: 800, 20_000: 200}  # by width: 10,000 in all
NEAR = 1e-6  # a cut this near to top_p may fall on either side


def sorted_nucleus(scores_NV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The tokens that stay, and how near the mass ahead of each is to top_p; float64."""
    ordered, order_NV = scores_NV.sort(-1, descending=True)
    mass_NV = scores_NV.double().softmax(-1).gather(-1, order_NV)
    ahead_NV = mass_NV.cumsum(-1) - mass_NV
    is_tied_NV = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.diff()], 1) == 0
    is_tied_NV[:, 0] = False
    ahead_NV = ahead_NV.masked_fill(is_tied_NV, 0.0).cummax(-1).values

    def by_token(sorted_NV: Tensor) -> Tensor:
        return torch.zeros_like(sorted_NV).scatter(-1, order_NV, sorted_NV)

    return by_token(ahead_NV < top_p), by_token((ahead_NV - top_p).abs())


def cut_otherwise(probs_NV: Tensor, scores_NV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The tokens that stay in only one of ours and a sort's nucleus, and those that a sort keeps.

    AssertionError if one is not so near to top_p that it may fall on either side.
    """
    stays_NV, distance_NV = sorted_nucleus(scores_NV, top_p)
    possible_NV = scores_NV.softmax(-1) > 0  # underflow: staying or not is the same
    differs_NV = ((probs_NV > 0) != stays_NV) & possible_NV
    assert (distance_NV[differs_NV] < NEAR).all()
    return differs_NV, stays_NV


def of_all_kinds(generator: torch.Generator, num: int, width: int) -> Tensor:
    """Flat and sharp ones, some in bfloat16 with many ties, some cut by top-k before."""
    scales_N1 = torch.tensor([0.05, 1.0, 3.0, 30.0]).repeat(num)[:num, None]
    scores_NV = torch.randn(num, width, generator=generator) * scales_N1
    scores_NV[num // 2 :] = scores_NV[num // 2 :].bfloat16().float()
    cut_N = torch.arange(num) % 5 == 0
    scores_NV[cut_N, : width // 2] = -torch.inf
    return scores_NV


@pytest.mark.parametrize("width", ROWS)
def test_nucleus_keeps_the_tokens_that_a_sort_keeps(width):
    generator = torch.Generator().manual_seed(width)
    for part in range(ROWS[width] // 200):
        scores_NV = of_all_kinds(generator, 200, width)
        top_p = (0.01, 0.3, 0.5, 0.9, 0.999)[part % 5]
        probs_NV = nucleus(scores_NV, top_p)
        cut_otherwise(probs_NV, scores_NV, top_p)
        torch.testing.assert_close(probs_NV.sum(-1), torch.ones(200))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("width", ROWS)
def test_top_k_and_top_p_keep_what_a_sort_keeps(width):
    generator = torch.Generator().manual_seed(width)
    for top_k, top_p in itertools.product((1, 6, width // 2), (0.01, 0.3, 0.9, 0.999)):
        scores_NV = of_all_kinds(generator, 40, width)
        probs_NV = likeliest(scores_NV, top_k, top_p)
        kth_N1 = scores_NV.sort(-1, descending=True).values[:, top_k - 1, None]
        cut_NV = scores_NV.masked_fill(scores_NV < kth_N1, -torch.inf)
        differs_NV, stays_NV = cut_otherwise(probs_NV, cut_NV, top_p)
        same_N = ~differs_NV.any(-1)
        left_NV = cut_NV.masked_fill(~stays_NV, -torch.inf).softmax(-1)
        torch.testing.assert_close(probs_NV[same_N], left_NV[same_N])


def test_a_planted_error_of_the_nucleus_cut_is_detected():
    scores_NV = of_all_kinds(torch.Generator().manual_seed(0), 100, 97)
    with pytest.raises(AssertionError):
        cut_otherwise(nucleus(scores_NV, 0.89), scores_NV, 0.9)


@pytest.mark.parametrize("top_p", [0.2, 0.5, 0.9])
def test_nucleus_equals_transformers_without_ties(top_p):
    scores_NV = torch.randn(500, 313, generator=torch.Generator().manual_seed(1)) * 3
    theirs = TopPLogitsWarper(top_p)(None, scores_NV).softmax(-1)
    torch.testing.assert_close(nucleus(scores_NV, top_p), theirs)


def test_transformers_keeps_some_ties_at_the_cut_and_we_keep_all():
    scores_NV = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    top_p = float(scores_NV.softmax(-1)[0, :2].sum()) - 0.01  # the second of five reaches it
    assert (TopPLogitsWarper(top_p)(None, scores_NV).softmax(-1) > 0).sum() == 2
    assert (nucleus(scores_NV, top_p) > 0).tolist() == [[True, True, True, True, False]]


def test_nucleus_takes_any_leading_shape_and_a_single_token():
    scores = torch.randn(2, 3, 5, 11, generator=torch.Generator().manual_seed(2))
    whole = nucleus(scores, 0.7)
    assert whole.shape == scores.shape
    assert torch.equal(whole[1, 2, 4], nucleus(scores[1, 2, 4], 0.7))
    assert nucleus(torch.tensor([-0.0, 0.0]), 0.4).tolist() == [0.5, 0.5]
    assert nucleus(torch.tensor([-5.0]), 0.1).tolist() == [1.0]


def test_nan_logits_give_nan_without_an_index_out_of_bounds():
    """An index out of bounds is a sticky error there."""
    scores_NV = torch.tensor([[1.0, torch.nan, 2.0], [torch.inf, 1.0, 2.0]])
    assert nucleus(scores_NV, 0.5).isnan().any(-1).tolist() == [True, True]
    assert likeliest(scores_NV, 2, 0.5).isnan().any(-1).tolist() == [True, True]


@pytest.mark.parametrize(
    ("num_rows", "ratio"),
    [pytest.param(8, 2, marks=pytest.mark.slow), pytest.param(72, 3, marks=pytest.mark.long)],
)
def test_nucleus_is_at_least_twice_as_fast_as_a_sort(num_rows, ratio):
    """Over 128,000 tokens, interleaved; seen: 4."""

    def sort(scores_NV: Tensor) -> Tensor:
        ordered, order_NV = scores_NV.sort(-1)
        dropped_NV = ordered.softmax(-1).cumsum(-1) <= 0.1
        dropped_NV = torch.zeros_like(dropped_NV).scatter_(-1, order_NV, dropped_NV)
        return scores_NV.masked_fill(dropped_NV, -torch.inf).softmax(-1)

    scores_NV = torch.randn(num_rows, 128_000, generator=torch.Generator().manual_seed(3)) * 3
    seconds: dict[str, list[float]] = {"sort": [], "ours": []}
    for _ in range(3):
        for name, work in (("sort", sort), ("ours", lambda scores: nucleus(scores, 0.9))):
            begin_s = time.process_time()
            work(scores_NV)
            seconds[name].append(time.process_time() - begin_s)
    print({name: min(times) for name, times in seconds.items()})
    assert min(seconds["sort"]) > ratio * min(seconds["ours"])


@pytest.mark.sampled(one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize(("width", "num"), [(1, 4), (7, 8), (97, 8), (1_025, 4), (9_001, 2)])
def test_the_nucleus_kernel_equals_torch_in_tokens_and_probs(width: int, num: int) -> None:
    generator = torch.Generator().manual_seed(width)
    for top_p in (0.01, 0.5, 0.9, 0.999):
        scores_NV = of_all_kinds(generator, num, width) if width > 1 else torch.randn(num, 1)
        whole_NV = scores_NV.softmax(-1)
        probs_NV = kernels.nucleus(scores_NV, whole_NV, top_p)
        differs_NV, _ = cut_otherwise(probs_NV, scores_NV, top_p)
        same_N = ~differs_NV.any(-1)
        torch.testing.assert_close(probs_NV[same_N], nucleus(scores_NV, top_p)[same_N])


def test_equal_tokens_at_the_cut_stay_together() -> None:
    scores_NV = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    whole_NV = scores_NV.softmax(-1)
    top_p = float(whole_NV[0, :2].sum()) - 0.01  # the second of five reaches it
    kept_NV = kernels.nucleus(scores_NV, whole_NV, top_p)
    assert (kept_NV > 0).tolist() == [[True, True, True, True, False]]


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        (1.0, 1.0 + 2.0**-23, [False, True]),  # the last bit of float32
        (-1.0, -1.0 - 2.0**-23, [True, False]),
        (-1.0, 1.0, [False, True]),
        (-0.0, 0.0, [True, True]),
    ],
)
def test_the_nucleus_compares_the_last_bit_and_ignores_the_sign_of_zero(
    first: float, second: float, stays: list[bool]
) -> None:
    half_NV = torch.full((1, 2), 0.5)
    assert (kernels.nucleus(torch.tensor([[first, second]]), half_NV, 0.4) > 0).tolist() == [stays]


def test_top_p_reached_exactly_admits_no_further_token() -> None:
    scores_NV, whole_NV = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.25, 0.25]])
    assert kernels.nucleus(scores_NV, whole_NV, 0.5).tolist() == [[1.0, 0.0, 0.0]]


def test_nan_logits_stay_nan_in_the_nucleus_kernel() -> None:
    scores_NV = torch.tensor([[1.0, torch.nan, 2.0], [torch.inf, 1.0, 2.0]])
    probs_NV = kernels.nucleus(scores_NV, scores_NV.softmax(-1), 0.5)
    assert probs_NV.isnan().all()


def test_the_nucleus_of_a_row_does_not_depend_on_its_batch() -> None:
    scores_NV = of_all_kinds(torch.Generator().manual_seed(0), 8, 1_030)
    wider_NV = torch.cat([scores_NV, scores_NV.flip(0)], 1)[:, :1_030]  # not contiguous
    whole_NV = scores_NV.softmax(-1)
    together = kernels.nucleus(wider_NV, whole_NV, 0.8)
    alone = kernels.nucleus(scores_NV[3:4], whole_NV[3:4], 0.8)
    assert torch.equal(together[3:4], alone)
