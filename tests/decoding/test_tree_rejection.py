"""All families of a tree judged together give the texts of siblings judged one after the other."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.growth import Frontier, grow_static
from specbench.decode.sampling import Purpose, Sampler, draw, uniform
from specbench.decode.state import State
from specbench.decode.verifier import Verdict, verify
from specbench.forward.tree import StaticTree, Tree
from specbench.records import Sampling
from specbench.topology import Topology

CPU = torch.device("cpu")
ROWS = 16


class Case(NamedTuple):
    proposal: Proposal
    logits_BNV: Tensor
    seed_B: Tensor
    positions_BN: Tensor


def one_by_one(case: Case, sampler: Sampler, row: int) -> tuple[list[int], list[int]]:
    """The accepted nodes of one row and its tokens, node by node as defined.

    Source: Yang et al. 2024 (arXiv:2402.14160); Chen et al. 2024, Sequoia (arXiv:2402.12374).
    """
    proposal, tree = case.proposal, case.proposal.tree
    assert tree is not None
    assert tree.families is not None
    assert proposal.probs is not None
    seed_1, place_N = case.seed_B[row, None], case.positions_BN[row]
    q_of = dict(zip(tree.families.parents_I.tolist(), proposal.probs[row], strict=True))
    p_of = sampler.probs(case.logits_BNV[row])
    node, path, p_V, q_V = 0, [], p_of[0], q_of.get(0)
    for i, token in enumerate(proposal.tokens_BK[row].tolist()):
        if tree.parents_BK[row, i] != node or not tree.is_active_BK[row, i] or q_V[token] == 0:
            continue
        chance = uniform(
            seed_1, place_N[None, node, None], Purpose.ACCEPT, turns_T=torch.tensor([i])
        )[0, 0]
        if chance * q_V[token] <= p_V[token] and p_V[token] > 0:
            node, p_V, q_V = i + 1, p_of[i + 1], q_of.get(i + 1)
            path.append(node)
            continue
        left_V = (p_V - q_V).clamp(min=0)
        p_V = left_V / left_V.sum() if left_V.sum() > 0 else p_V
        q_V = q_V.index_fill(0, torch.tensor(token), 0.0)
        q_V = q_V / q_V.sum().clamp(min=1e-30)
    drawn = draw(p_V[None, None], seed_1, place_N[None, node, None], Purpose.TARGET)
    tokens = [int(proposal.tokens_BK[row, accepted - 1]) for accepted in path]
    return path, [*tokens, int(drawn)]


def random_topology(generator: torch.Generator, most: int) -> Topology:
    """Nodes below random parents, each with up to five children, the best ones."""
    num_children: dict[tuple[int, ...], int] = {(): 0}
    for _ in range(most):
        open_ones = [path for path, num in num_children.items() if num < 5]
        above = open_ones[int(torch.randint(len(open_ones), (1,), generator=generator))]
        num_children[*above, num_children[above]] = 0
        num_children[above] += 1
    return Topology.of_paths([path for path in num_children if path])


def drawn_case(seed: int, sampler: Sampler, vocab_size: int, most: int) -> Case:
    """A random tree drawn from a draft that is like the target; some rows have a small budget."""
    generator = torch.Generator().manual_seed(seed)
    tree = StaticTree(random_topology(generator, most), CPU)
    N = tree.topology.num_drafts + 1
    # Rounded, so that many tokens are equally likely.
    logits_BNV = torch.randn(ROWS, N, vocab_size, generator=generator).mul(4).round() / 2
    draft_BNV = logits_BNV + torch.randn(logits_BNV.shape, generator=generator).round()
    state = State.allocate(ROWS, 64, [], CPU)
    state.seed_B.copy_(torch.arange(ROWS) + ROWS * seed)
    state.length_B1.copy_(torch.randint(1, 30, (ROWS, 1), generator=generator))
    levels = iter(tree.topology.levels)

    def feed(_: Frontier) -> Tensor:
        return draft_BNV[:, list(next(levels).inner_nodes)]

    proposal = grow_static(tree, state, draft_BNV[:, 0], feed, sampler)
    assert proposal.tree is not None
    parents_I = proposal.tree.families.parents_I
    torch.testing.assert_close(proposal.probs, sampler.probs(draft_BNV[:, parents_I]))
    room_B = torch.randint(0, 7, (ROWS,), generator=generator)
    active = proposal.tree.truncated_to(room_B)
    places_BN = state.length_B1 + 1 + active.depths_BN
    return Case(proposal._replace(tree=active), logits_BNV, state.seed_B, places_BN)


def check(case: Case, sampler: Sampler) -> int:
    """The number of drafts accepted; AssertionError if a row's text differs."""
    verdict: Verdict = verify(
        case.proposal, case.logits_BNV, sampler, case.seed_B, case.positions_BN
    )
    assert verdict.path_BT is not None
    accepted = 0
    for row in range(ROWS):
        path, tokens = one_by_one(case, sampler, row)
        assert int(verdict.num_accepted_B[row]) == len(path)
        assert verdict.path_BT[row, : len(path) + 1].tolist() == [0, *path]
        assert verdict.tokens_BT[row, : len(tokens)].tolist() == tokens
        accepted += len(path)
    return accepted


SAMPLINGS = {
    "warm": Sampling(temperature=1.0),
    "cut to fewer tokens than children": Sampling(temperature=1.0, top_k=2),
    "nearly certain": Sampling(temperature=0.05),
    "nucleus": Sampling(temperature=1.3, top_p=0.7),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_tree_rejection_equals_judging_siblings_one_by_one(name: str) -> None:
    sampler, accepted = Sampler(SAMPLINGS[name]), 0
    for seed in range(40):
        case = drawn_case(seed, sampler, vocab_size=(5, 11, 200)[seed % 3], most=1 + seed % 20)
        accepted += check(case, sampler)
    assert accepted > 100, "drafts must be accepted as well as refused"


def test_drafts_of_probability_0_under_q_are_skipped() -> None:
    sampler = Sampler(Sampling(temperature=1.0, top_k=4))
    for seed in range(20):
        case = drawn_case(seed, sampler, vocab_size=11, most=12)
        tokens_BK = case.proposal.tokens_BK.roll(1, 0)  # another row's
        check(case._replace(proposal=case.proposal._replace(tokens_BK=tokens_BK)), sampler)


def test_tree_families_are_sorted_by_their_number_of_children() -> None:
    # 0 - 1, 2; 2 - 3, 4, 5; 4 - 6
    paths = [(0,), (1,), (1, 0), (1, 1), (1, 2), (1, 1, 0)]
    tree: Tree = StaticTree(Topology.of_paths(paths), CPU).of_rows(1)

    assert tree.families is not None
    assert tree.families.parents_I.tolist() == [2, 0, 4]
    assert tree.families.widths == [3, 2, 1]
    assert tree.families.drafts_K.tolist() == [2, 0, 5, 3, 1, 4]
    assert tree.families.places_N.tolist() == [1, -1, 0, -1, 2, -1, -1]
