"""Simulated acceptance has the requested rates, independent between rows, on the device only.

Counts are compared by Pearson's chi-square at p > 1e-6: one false alarm in a million, and the
seeds are fixed.
"""

from itertools import pairwise

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.lossy import SyntheticVerifier, acceptance_rates
from specbench.decode.sampling import Purpose, Sampler, uniform
from specbench.decode.verifier import Verdict
from specbench.errors import UsageError
from specbench.forward.tree import StaticTree
from specbench.records import Sampling
from specbench.topology import Topology
from tests.decoding.fake_rounds import trace_round

GREEDY, WARM = Sampler(Sampling()), Sampler(Sampling(temperature=1.0))
DRAFT, TARGET = 1, 2  # the token of every draft, and the target's token at every position
NUM_ROWS, NUM_ROUNDS = 500, 40
ALARM = 1e-6


def verify_round(
    acceptance: tuple[float, ...],
    k: int,
    *,
    num_drafted: int | None = None,
    seeds_B: Tensor | None = None,
    first: int = 10,
    sampler: Sampler = GREEDY,
) -> Verdict:
    """One round whose rows all begin at position `first`, with B = NUM_ROWS seeds by default."""
    seed_B = torch.arange(NUM_ROWS) if seeds_B is None else seeds_B
    B = len(seed_B)
    proposal = Proposal(
        torch.full((B, k), DRAFT), torch.full((B,), k if num_drafted is None else num_drafted)
    )
    logits_BTV = torch.zeros(B, k + 1, 4)
    logits_BTV[..., TARGET] = 100.0
    positions_BT = torch.arange(first, first + k + 1).expand(B, -1)
    return SyntheticVerifier(acceptance)(proposal, logits_BTV, sampler, seed_B, positions_BT)


def histogram(acceptance: tuple[float, ...], k: int) -> list[int]:
    """The number of rounds that accepted 0 .. k drafts, over all rows and NUM_ROUNDS rounds."""
    kept = [verify_round(acceptance, k, first=100 * i).num_accepted_B for i in range(NUM_ROUNDS)]
    return torch.cat(kept).bincount(minlength=k + 1).tolist()


def p_value(counts: list[int], rates: tuple[float, ...]) -> float:
    """Chi-square p-value of the counts of 0 .. k; P(exactly i) = a_i - a_(i+1) with rates a."""
    reached = (1.0, *rates, 0.0)
    expected = [sum(counts) * (a - b) for a, b in pairwise(reached)]
    return float(chisquare(counts, expected).pvalue)


@pytest.mark.parametrize(
    ("acceptance", "rates"),
    [
        ((0.7,), (0.7, 0.49, 0.343)),
        ((0.8, 0.5, 0.45), (0.8, 0.5, 0.45)),
        ((0.9, 0.2, 0.1), (0.9, 0.2, 0.1)),
    ],
    ids=["alpha", "list", "steep list"],
)
def test_simulated_acceptance_keeps_drafts_at_the_given_rates(
    acceptance: tuple[float, ...], rates: tuple[float, ...]
) -> None:
    assert p_value(histogram(acceptance, 3), rates) > ALARM


def test_small_errors_of_simulated_rates_are_detected() -> None:
    counts = histogram((0.8, 0.5, 0.45), 3)

    assert p_value(counts, (0.8, 0.5, 0.42)) < ALARM
    assert p_value(counts, (0.8, 0.4, 0.36)) < ALARM  # 0.5 mistaken for a conditional rate


def test_simulated_acceptance_is_independent_between_rounds() -> None:
    first, second = (verify_round((0.5,), 1, first=n).num_accepted_B for n in (10, 12))
    pairs = torch.stack([(first == a) & (second == b) for a in (0, 1) for b in (0, 1)])

    assert chisquare(pairs.sum(1).tolist()).pvalue > ALARM


def test_simulated_acceptance_differs_between_rows() -> None:
    assert verify_round((0.5,), 4).num_accepted_B.unique().tolist() == [0, 1, 2, 3, 4]


def test_simulated_acceptance_depends_on_seed_and_position_only() -> None:
    kept_B = verify_round((0.7,), 4).num_accepted_B

    assert torch.equal(verify_round((0.7,), 4).num_accepted_B, kept_B)
    flipped_B = verify_round((0.7,), 4, seeds_B=torch.arange(NUM_ROWS).flip(0)).num_accepted_B
    assert torch.equal(flipped_B, kept_B.flip(0))


@pytest.mark.parametrize(("share", "kept"), [(1.0, 4), (0.0, 0)])
def test_acceptance_rates_of_1_and_0_accept_all_and_none(share: float, kept: int) -> None:
    assert verify_round((share,), 4).num_accepted_B.unique().tolist() == [kept]


def test_missing_simulated_rates_are_0_and_extra_ones_are_ignored() -> None:
    assert verify_round((1.0, 1.0), 4).num_accepted_B.unique().tolist() == [2]
    assert verify_round((1.0, 1.0, 1.0), 2).num_accepted_B.unique().tolist() == [2]


def test_only_active_drafts_are_accepted() -> None:
    assert verify_round((1.0,), 4, num_drafted=2).num_accepted_B.unique().tolist() == [2]
    assert verify_round((1.0,), 4, num_drafted=0).num_accepted_B.unique().tolist() == [0]


@pytest.mark.parametrize("sampler", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_simulated_drafts_are_emitted_until_a_target_token_ends_the_round(sampler: Sampler) -> None:
    verdict = verify_round((0.6,), 3, sampler=sampler)

    for kept, tokens in zip(verdict.num_accepted_B.tolist(), verdict.tokens_BT, strict=True):
        assert tokens[: kept + 1].tolist() == [DRAFT] * kept + [TARGET]


def test_a_simulated_round_without_drafts_emits_one_token() -> None:
    verdict = verify_round((0.7,), 0)

    assert verdict.num_accepted_B.unique().tolist() == [0]
    assert verdict.tokens_BT.unique().tolist() == [TARGET]


def test_noise_of_one_purpose_differs_from_that_of_others() -> None:
    draws = {
        purpose: uniform(torch.tensor([7]), torch.arange(50)[None], purpose) for purpose in Purpose
    }
    synthetic = draws.pop(Purpose.SYNTHETIC)

    assert not any(torch.equal(synthetic, other) for other in draws.values())


def test_one_rate_is_conditional_and_several_are_per_position() -> None:
    assert acceptance_rates((0.5,), 3) == (0.5, 0.25, 0.125)
    assert acceptance_rates((0.5, 0.4), 3) == (0.5, 0.4, 0.0)
    assert acceptance_rates((0.5, 0.4, 0.3), 2) == (0.5, 0.4)
    assert acceptance_rates((0.5,), 0) == ()


@pytest.mark.parametrize(
    "values", [(), (1.1,), (-0.1,), (0.5, 0.6), (0.5, float("nan")), (0.5, -0.1)]
)
def test_impossible_simulated_acceptance_rates_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="0 to 1"):
        SyntheticVerifier(values)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
@pytest.mark.parametrize("acceptance", [(0.7,), (0.8, 0.5)], ids=["alpha", "list"])
def test_a_synthetic_round_neither_syncs_nor_copies(
    method: str, acceptance: tuple[float, ...]
) -> None:
    trace_round(method, 4, verifier=SyntheticVerifier(acceptance))


def test_a_synthetic_baseline_neither_syncs_nor_copies() -> None:
    trace_round("none", 0, verifier=SyntheticVerifier((0.7,)))


def test_a_tree_accepts_first_children_down_to_the_drawn_depth() -> None:
    """0 - 1 2, 1 - 3 4, 2 - 5, 3 - 6; the second row is truncated to depth 2."""
    paths = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
    tree = StaticTree(Topology.of_paths(paths), torch.device("cpu")).of_rows(2)
    tree = tree.truncated_to(torch.tensor([3, 2]))
    drafts_BK = torch.tensor([[11, 12, 13, 14, 15, 16]] * 2)
    proposal = Proposal(drafts_BK, tree.is_active_BK.sum(1), None, tree)
    logits_BNV = torch.zeros(2, 7, 20)
    logits_BNV[..., 7] = 100.0

    verdict = SyntheticVerifier((1.0, 1.0, 1.0))(
        proposal, logits_BNV, Sampler(Sampling()), torch.tensor([1, 2]), 5 + tree.depths_BN
    )

    assert verdict.num_accepted_B.tolist() == [3, 2]
    assert verdict.tokens_BT[0].tolist() == [11, 13, 16, 7]
    assert verdict.tokens_BT[1, :3].tolist() == [11, 13, 7]
    assert verdict.path_BT is not None
    assert verdict.path_BT.tolist() == [[0, 1, 3, 6], [0, 1, 3, 0]]
