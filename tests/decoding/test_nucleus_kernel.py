"""Our top-p kernel keeps what torch's operations keep; in Triton's interpreter."""

import pytest
import torch

from specbench.decode.nucleus import nucleus
from specbench.forward.kernels import nucleus as kernel
from tests.decoding.test_nucleus import NEAR, of_all_kinds, sorted_nucleus


@pytest.mark.sampled(one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize(("width", "num"), [(1, 4), (7, 8), (97, 8), (1_025, 4), (9_001, 2)])
def test_what_stays_is_what_a_sort_leaves_and_as_likely_as_by_torch(width: int, num: int) -> None:
    generator = torch.Generator().manual_seed(width)
    near = wrong = 0
    for top_p in (0.01, 0.5, 0.9, 0.999):
        scores_NV = of_all_kinds(generator, num, width) if width > 1 else torch.randn(num, 1)
        whole_NV = scores_NV.softmax(-1)
        probs_NV = kernel.nucleus(scores_NV, whole_NV, top_p)
        stays_NV, distance_NV = sorted_nucleus(scores_NV, top_p)
        differs_NV = ((probs_NV > 0) != stays_NV) & (whole_NV > 0)
        near += int((differs_NV & (distance_NV < NEAR)).sum())
        wrong += int((differs_NV & (distance_NV >= NEAR)).sum())
        same_N = ~differs_NV.any(-1)
        torch.testing.assert_close(probs_NV[same_N], nucleus(scores_NV, top_p)[same_N])
    print(f"width {width}: {wrong} tokens differ, and {near} within {NEAR:g} of top_p")
    assert wrong == 0


def test_equal_tokens_at_the_cut_stay_together() -> None:
    scores_NV = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    whole_NV = scores_NV.softmax(-1)
    top_p = float(whole_NV[0, :2].sum()) - 0.01  # the second of five reaches it
    kept_NV = kernel.nucleus(scores_NV, whole_NV, top_p)
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
def test_numbers_differ_by_their_last_bit_and_zeros_not_by_their_sign(
    first: float, second: float, stays: list[bool]
) -> None:
    half_NV = torch.full((1, 2), 0.5)
    assert (kernel.nucleus(torch.tensor([[first, second]]), half_NV, 0.4) > 0).tolist() == [stays]


def test_what_the_likelier_tokens_fill_to_the_brim_has_no_room_for_another() -> None:
    scores_NV, whole_NV = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.25, 0.25]])
    assert kernel.nucleus(scores_NV, whole_NV, 0.5).tolist() == [[1.0, 0.0, 0.0]]


def test_what_is_not_a_number_stays_none() -> None:
    scores_NV = torch.tensor([[1.0, torch.nan, 2.0], [torch.inf, 1.0, 2.0]])
    probs_NV = kernel.nucleus(scores_NV, scores_NV.softmax(-1), 0.5)
    assert probs_NV.isnan().all()


def test_rows_are_cut_alike_whatever_lies_beside_them() -> None:
    scores_NV = of_all_kinds(torch.Generator().manual_seed(0), 8, 1_030)
    wider_NV = torch.cat([scores_NV, scores_NV.flip(0)], 1)[:, :1_030]  # not contiguous
    whole_NV = scores_NV.softmax(-1)
    together = kernel.nucleus(wider_NV, whole_NV, 0.8)
    alone = kernel.nucleus(scores_NV[3:4], whole_NV[3:4], 0.8)
    assert torch.equal(together[3:4], alone)
