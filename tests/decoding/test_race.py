"""Our kernels draw what torch's operations draw, and in a few launches; in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from specbench.decode.growth import Frontier, grow_static
from specbench.decode.sampling import Purpose, Sampler, draw, exponential, uniform
from specbench.decode.state import State
from specbench.decode.verifier import verify
from specbench.forward.kernels import availability
from specbench.forward.kernels import sampling as kernels
from specbench.forward.tree import StaticTree
from specbench.records import Sampling
from specbench.topology import Topology
from tests.decoding.fake_cuda import DEVICE, HostWatch, fake_cuda
from tests.decoding.launches import Launches

WIDTHS = {1: 8, 7: 24, 1_000: 24, 1_025: 12, 4_099: 4, 32_003: 1}  # draws by vocabulary
NEAR = 1e-5  # of a logarithm: two tokens this near may change places
RATES = [[0.5, 0.2, 0.1, 0.05]] * 5
WARM = Sampling(temperature=1.0)


def places(generator: torch.Generator, num_rows: int, num_places: int) -> tuple[Tensor, Tensor]:
    """Seeds of 64 bits and positions, which lie one row after the other as slices do."""
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
    """The logarithms that race, float64."""
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
            assert bool((best_BT - own_BT < NEAR).all())
            num, num_ties = num + num_draws, num_ties + int(differs_BT.sum())
    print(f"{dtype}: {num} draws, {num_ties} between two tokens within {NEAR:g}")
    assert num_ties <= num // 100


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_nan_logits_never_give_a_token_out_of_bounds(
    temperature: float | None,
) -> None:
    """That would be a sticky error on a GPU."""
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
    """How many kernels a draw at 5 places of 4 rows starts, and a rejection tree; 128,000 tokens.

    A sync raises by itself, a copy in HostWatch.
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
