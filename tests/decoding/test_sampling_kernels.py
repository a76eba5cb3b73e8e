"""Our sampling kernels, in Triton's interpreter: top-p by its threshold keeps what a sort in
float64 keeps, and ties stay or go together; draws are those of torch's operations, in a few
launches.
"""

import itertools
import time

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import TopPLogitsWarper

from specbench.decode.growth import Frontier, grow_static
from specbench.decode.sampling import (
    Purpose,
    Sampler,
    draw,
    exponential,
    likeliest,
    nucleus,
    uniform,
)
from specbench.decode.state import State
from specbench.decode.verifier import verify
from specbench.forward.kernels import availability
from specbench.forward.kernels import sampling as kernels
from specbench.forward.tree import StaticTree
from specbench.records import Sampling
from specbench.topology import Topology
from tests.decoding.fake_cuda import DEVICE, HostWatch, fake_cuda
from tests.decoding.launches import Launches

ROWS = {7: 4_000, 97: 3_000, 1_000: 2_000, 4_096: 800, 20_000: 200}  # by width: 10,000 in all
NEAR = 1e-6  # a cut this near to top_p may fall on either side


def sorted_nucleus(scores_NV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The tokens that stay, and how close the mass before each is to top_p; float64."""
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
    """Tokens that are in only one of our nucleus and a sort's, and the tokens that a sort keeps.

    AssertionError if one is not so near to top_p that it may fall on either side.
    """
    stays_NV, distance_NV = sorted_nucleus(scores_NV, top_p)
    possible_NV = scores_NV.softmax(-1) > 0  # underflow: staying or not is the same
    differs_NV = ((probs_NV > 0) != stays_NV) & possible_NV
    assert (distance_NV[differs_NV] < NEAR).all()
    return differs_NV, stays_NV


def of_all_kinds(generator: torch.Generator, num: int, width: int) -> Tensor:
    """Flat and sharp distributions, some in bfloat16 with many ties, some cut by top-k before."""
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
    """An index out of bounds is a sticky error on a GPU."""
    scores_NV = torch.tensor([[1.0, torch.nan, 2.0], [torch.inf, 1.0, 2.0]])
    assert nucleus(scores_NV, 0.5).isnan().any(-1).tolist() == [True, True]
    assert likeliest(scores_NV, 2, 0.5).isnan().any(-1).tolist() == [True, True]


@pytest.mark.parametrize(
    ("num_rows", "ratio"),
    [pytest.param(8, 2, marks=pytest.mark.slow), pytest.param(72, 3, marks=pytest.mark.long)],
)
def test_nucleus_is_at_least_twice_as_fast_as_a_sort(num_rows, ratio):
    """The number of launches over 128,000 tokens, interleaved; observed: 4."""

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


WIDTHS = {1: 8, 7: 24, 1_000: 24, 1_025: 12, 4_099: 4, 32_003: 1}  # draws by vocabulary
NEAR_TIE = 1e-5  # of a logarithm: two tokens this near may change places
RATES = [[0.5, 0.2, 0.1, 0.05]] * 5
WARM = Sampling(temperature=1.0)


def places(generator: torch.Generator, num_rows: int, num_places: int) -> tuple[Tensor, Tensor]:
    """Seeds of 64 bits and positions, whose rows are slices of one tensor."""
    seeds_B = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator)
    wider_BT = torch.randint(0, 2**31, (num_rows, num_places + 3), generator=generator)
    return seeds_B, wider_BT[:, 2 : 2 + num_places]


@pytest.mark.parametrize("purpose", list(Purpose))
def test_uniform_numbers_are_those_of_torch_to_the_last_bit(purpose: Purpose) -> None:
    seeds_B, positions_BT = places(torch.Generator().manual_seed(purpose), 50, 61)
    for turns_T in (None, torch.arange(61)):
        ours = kernels.uniform(seeds_B, positions_BT, purpose, turns_T, len(Purpose))
        assert torch.equal(ours, uniform(seeds_B, positions_BT, purpose, turns_T))
    same_BT = positions_BT[:, :1].expand(-1, 61)
    ours = kernels.uniform(seeds_B, same_BT, purpose, None, len(Purpose))
    assert torch.equal(ours, uniform(seeds_B, same_BT, purpose))


def test_exponential_noise_is_that_of_torch_but_for_the_last_digit() -> None:
    seeds_B, positions_BT = places(torch.Generator().manual_seed(1), 3, 4)
    ours = kernels.exponential(seeds_B, positions_BT, Purpose.DRAFT, 5_001)
    theirs = exponential(seeds_B, positions_BT, Purpose.DRAFT, 5_001)
    assert float(theirs.min()) < 1e-4
    torch.testing.assert_close(ours, theirs, rtol=5e-7, atol=0)
    # The smallest there is: 1 less it is 1 in float32.
    rarest = (torch.tensor([0]), torch.tensor([[0]]), Purpose.DRAFT, 1)
    assert float(kernels.exponential(*rarest)) == float(exponential(*rarest)) == 2.0**-33


def scores_of(weights_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:
    """The competing logarithms, float64."""
    shape = weights_BTV.shape
    noise_BTV = exponential(seeds_B, positions_BT, Purpose.TARGET, shape[2])
    return weights_BTV.double().log() - noise_BTV.double().log()


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.long), torch.bfloat16]
)
def test_sampled_tokens_equal_those_that_torch_draws(dtype: torch.dtype) -> None:
    num = num_ties = 0
    for width, num_draws in WIDTHS.items():
        generator = torch.Generator().manual_seed(width)
        num_rows, num_places = max(num_draws // 4, 1), min(num_draws, 4)
        seeds_B, positions_BT = places(generator, num_rows, num_places)
        logits_BTV = torch.randn(num_rows, num_places, width, generator=generator) * 3
        logits_BTV = logits_BTV.to(dtype)
        probs_BTV = (logits_BTV.float() / 0.7).softmax(-1)
        probs_BTV[..., ::3] = 0.0
        logits_BTV[..., ::3] = -torch.inf
        if width == 1:
            probs_BTV, logits_BTV = torch.ones_like(probs_BTV), torch.ones_like(logits_BTV)
        place = (seeds_B, positions_BT, Purpose.TARGET)
        expected_BT = draw(probs_BTV, *place)
        scores_BTV = scores_of(probs_BTV, seeds_B, positions_BT)
        best_BT = scores_BTV.amax(-1)
        for drawn_BT in (
            kernels.race(probs_BTV, *place, None),
            kernels.race(logits_BTV, *place, 0.7),
        ):
            differs_BT = drawn_BT != expected_BT
            own_BT = scores_BTV.gather(-1, drawn_BT[..., None])[..., 0]
            assert bool((best_BT - own_BT < NEAR_TIE).all())
            num, num_ties = num + num_draws, num_ties + int(differs_BT.sum())
    print(f"{dtype}: {num} draws, {num_ties} between two tokens within {NEAR_TIE:g}")
    assert num_ties <= num // 100


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_nan_logits_never_give_a_token_out_of_bounds(
    temperature: float | None,
) -> None:
    """It would be a sticky error on a GPU."""
    logits_BTV = torch.zeros(1, 5, 1_030)
    logits_BTV[:, 0] = -torch.inf
    logits_BTV[:, 1] = torch.nan
    logits_BTV[:, 2, 1_025] = torch.nan
    logits_BTV[:, 3, 1_029] = torch.inf
    logits_BTV[:, 4, 1:] = torch.inf
    place = (torch.tensor([3]), torch.arange(5)[None], Purpose.TARGET)
    drawn_BT = kernels.race(logits_BTV, *place, temperature)
    assert drawn_BT.tolist() == [[0, 0, 1_025, 1_029, 1]]


def launched(sampling: Sampling, num_nodes: int) -> dict[str, int]:
    """The number of kernels of a draw at 5 places of 4 rows, and of a rejection tree; 128,000
    tokens.

    A sync raises by itself, HostWatch raises at a copy.
    """

    def logits(num: int) -> Tensor:
        return torch.zeros(4, num, 128_000, device=DEVICE, dtype=torch.bfloat16)

    def feed(frontier: Frontier) -> Tensor:
        return logits(frontier.tokens_BW.shape[1])

    sampler = Sampler(sampling)
    with fake_cuda():
        topology = Topology.of_accuracies(RATES, num_nodes - 1)
        tree, state = StaticTree(topology, DEVICE), State.allocate(4, 64, [], DEVICE)
        root_BV, logits_BNV, own_BTV = logits(1)[:, 0], logits(num_nodes), logits(5)
        places_BN = torch.zeros(4, num_nodes, dtype=torch.long, device=DEVICE)
        with HostWatch():
            with Launches() as pick:
                sampler.pick(own_BTV, state.seed_B, places_BN[:, :5])
            with Launches() as grow:
                proposal = grow_static(tree, state, root_BV, feed, sampler)
            with Launches() as judge:
                verify(proposal, logits_BNV, sampler, state.seed_B, places_BN)
    return {"pick": pick.total, "grow": grow.total, "judge": judge.total}


@pytest.mark.parametrize(
    ("sampling", "most"),
    [
        (WARM, {"pick": 2, "grow": 66, "judge": 112}),
        (Sampling(temperature=1.0, top_p=0.9), {"pick": 20, "grow": 141, "judge": 142}),
        (Sampling(temperature=1.0, top_k=50), {"pick": 8, "grow": 81, "judge": 118}),
        (Sampling(temperature=1.0, top_k=50, top_p=0.9), {"pick": 18, "grow": 131, "judge": 138}),
    ],
)
def test_launches_do_not_grow_with_the_nodes_of_a_tree(
    sampling: Sampling, most: dict[str, int]
) -> None:
    small, large = launched(sampling, 16), launched(sampling, 60)
    print(f"{sampling}: 16 nodes {small}, 60 nodes {large}")
    assert all(large[name] <= most[name] for name in most)
    assert small["judge"] == large["judge"], "both have up to four siblings"


def test_without_triton_torch_draws_the_same_in_more_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = launched(WARM, 16)
    monkeypatch.setattr(availability, "DEVICES", set())
    theirs = launched(WARM, 16)
    assert theirs["pick"] > 10 * ours["pick"]
    assert theirs["judge"] > ours["judge"]
