"""Token recycling by hand: the tree's shape, its table, and the updates of the table."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Outcome, Proposal
from specbench.decode.round import finish_round, propose
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.token_recycling import TokenRecycling
from specbench.forward.runner import StockRunner
from specbench.records import Request, Sampling
from specbench.topology import likeliest_tree
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import decode, filled_rows, make_drafter
from tests.decoding.models import VOCAB_SIZE, exact_llama, plain_logits, ragged_prompts

UNKNOWN, R = 12, 8  # of a vocabulary of 12 tokens
GREEDY = Sampler(Sampling())


def recycling(**parameters: Any) -> TokenRecycling:
    drafter = make_drafter("token_recycling", CountingRunner(UNKNOWN), **parameters)
    assert isinstance(drafter, TokenRecycling)
    return drafter


def outcome(tokens: list[list[int]], best: list[list[list[int]]], emitted: list[int]) -> Outcome:
    """The drafter's input: the tokens fed, and logits with the given best ids."""
    logits_BNV = torch.zeros(len(tokens), len(tokens[0]), UNKNOWN)
    for row, nodes in enumerate(best):
        for node, ids in enumerate(nodes):
            # The ids that are not given come after them, in order.
            order = [*ids, *(i for i in range(UNKNOWN) if i not in ids)]
            logits_BNV[row, node, order] = torch.arange(UNKNOWN, 0, -1.0)
    nothing = torch.empty(0)
    return Outcome(
        torch.tensor(emitted), nothing, nothing, (), 64, torch.tensor(tokens), logits_BNV
    )


def state_at(*current: int) -> State:
    """Rows with the given current tokens."""
    state = State.allocate(len(current), 64, [], torch.device("cpu"))
    state.tokens_BC[:, 1] = torch.tensor(current)
    return state


def table(drafter: TokenRecycling) -> Tensor:
    (successors_XR,) = drafter.buffers
    assert isinstance(successors_XR, Tensor)
    return successors_XR


def test_the_likeliest_paths_make_the_tree() -> None:
    # Products: (0) .6, (0 0) .36, (1) .3, (0 0 0) .216, then (0 1) and (1 0) .18.
    assert likeliest_tree((0.6, 0.3), 4).paths == ((0,), (1,), (0, 0), (0, 0, 0))


def test_the_default_recycling_tree_is_deeper_for_better_ranks() -> None:
    paths = recycling()._trees[6].topology.paths

    deepest = [max(len(p) for p in paths if p[0] == rank) for rank in range(8)]
    assert len(paths) == 80
    assert deepest == sorted(deepest, reverse=True)
    assert (deepest[0], deepest[-1]) == (6, 2)


def test_k_limits_the_recycling_tree() -> None:
    drafter = recycling()

    assert [drafter.num_drafts(k) for k in (1, 2, 3, 4, 5, 6, 7)] == [8, 32, 60, 73, 79, 80, 80]
    assert drafter.capabilities.max_k == 6
    assert recycling(max_drafts=1).num_drafts(4) == 1


def test_the_drafts_are_read_from_the_table_rank_by_rank() -> None:
    # The tree of 4: (0) (1), (0 0), (0 0 0).
    drafter = recycling(max_drafts=4)
    assert drafter._trees[3].topology.paths == ((0,), (1,), (0, 0), (0, 0, 0))
    drafter.observe(state_at(1), outcome([[1, 5, 7]], [[[5, 6], [7], [3, 2]]], [1]))

    proposal = drafter.propose(state_at(1), 3, 64, GREEDY)

    assert proposal.tokens_BK.tolist() == [[5, 6, 7, 3]]
    assert proposal.num_drafted_B.tolist() == [4]
    assert proposal.depth == 3


def test_each_recycled_draft_is_the_successor_its_path_selects() -> None:
    drafter = counting()
    generator = torch.Generator().manual_seed(0)
    table(drafter)[:-1] = torch.rand(100, 100, generator=generator).topk(R).indices

    tokens = drafter.propose(state_at(3), 6, 64, GREEDY).tokens_BK[0].tolist()

    known = {(): 3} | dict(zip(drafter._trees[6].topology.paths, tokens, strict=True))
    for path in known.keys() - {()}:
        assert known[path] == int(table(drafter)[known[path[:-1]], path[-1]])


def test_drafts_after_an_unknown_token_are_inactive() -> None:
    drafter = recycling(max_drafts=4)
    drafter.observe(state_at(1), outcome([[1]], [[[5, 6]]], [1]))

    proposal = drafter.propose(state_at(1, 9), 3, 64, GREEDY)

    assert proposal.tree is not None
    assert proposal.tree.is_active_BK.tolist() == [[True, True, False, False], [False] * 4]
    assert proposal.num_drafted_B.tolist() == [2, 0]
    assert int(proposal.tokens_BK.max()) < UNKNOWN


def test_a_token_fed_twice_takes_the_successors_of_its_last_node() -> None:
    drafter = recycling()

    drafter.observe(
        state_at(1, 1),
        outcome([[1, 2, 1], [4, 1, 2]], [[[5], [6], [7]], [[8], [9], [10]]], [2, 1]),
    )

    assert table(drafter)[[1, 2, 4], 0].tolist() == [9, 10, 8]


def test_a_finished_row_does_not_update_the_recycling_table() -> None:
    drafter = recycling()
    drafter.observe(state_at(1), outcome([[1, 2]], [[[5], [6]]], [1]))
    before = table(drafter).clone()

    drafter.observe(state_at(1, 2), outcome([[1, 3], [2, 1]], [[[7], [8]], [[9], [10]]], [0, 0]))
    assert torch.equal(table(drafter), before)

    drafter.observe(state_at(1, 2), outcome([[1, 3], [2, 1]], [[[7], [8]], [[9], [10]]], [1, 0]))
    assert table(drafter)[[1, 2, 3], 0].tolist() == [7, 6, 8]


def test_the_unknown_token_keeps_unknown_successors() -> None:
    drafter = recycling()
    everything = [list(range(UNKNOWN))]

    drafter.observe(state_at(1), outcome(everything, [[[0]] * UNKNOWN], [1]))

    assert table(drafter)[UNKNOWN].tolist() == [UNKNOWN] * R
    assert int(table(drafter)[:UNKNOWN].max()) < UNKNOWN


@pytest.mark.slow
@torch.no_grad()
def test_the_recycling_table_holds_the_top_tokens_of_plain_logits() -> None:
    """Every node's logits from a plain forward over its own text, rejected nodes included."""
    plain, prompt = exact_llama(seed=0), ragged_prompts()[0]
    target = StockRunner(exact_llama(seed=0))
    drafter = make_drafter("token_recycling", target)
    assert isinstance(drafter, TokenRecycling)
    request = Request(prompt_ids=prompt, max_new_tokens=60)
    rows = filled_rows(target, drafter, [request], capacity=256)
    expected = torch.full((VOCAB_SIZE + 1, R), VOCAB_SIZE)

    def learn(text: list[int], proposal: Proposal | None) -> None:
        """Enter the nodes of a round after `text`, in their order."""
        paths: list[list[int]] = [[]]
        if proposal is not None and proposal.tree is not None:
            parents = proposal.tree.parents_BK[0].tolist()
            for token, parent in zip(proposal.tokens_BK[0].tolist(), parents, strict=True):
                paths.append([*paths[parent], token])
        for path in paths:
            whole = [*text, *path]
            best_R = plain_logits(plain, torch.tensor([whole]))[0, -1].topk(R).indices
            expected[whole[-1]] = best_R

    learn(list(prompt), None)
    assert torch.equal(table(drafter), expected)
    for _ in range(6):
        text = rows.state.tokens_BC[0, : int(rows.state.length_B1) + 1].tolist()
        proposal = propose(drafter, rows.state, GREEDY, 4, 128)
        learn(text, proposal)
        finish_round(target, drafter, rows.state, GREEDY, proposal, 128)
        assert torch.equal(table(drafter), expected)


def num_kept(drafter: TokenRecycling, *first_tokens: int) -> list[tuple[int, ...]]:
    """Drafts kept in each round of requests that count up from a token, 12 tokens each."""
    requests = [Request(prompt_ids=(token,), max_new_tokens=12) for token in first_tokens]
    results = decode(CountingRunner(), drafter, requests, k=4)
    for token, result in zip(first_tokens, results, strict=True):
        assert result.output_ids == tuple(range(token + 1, token + 13))
    return [result.rounds.num_accepted for result in results]


def counting(**parameters: Any) -> TokenRecycling:
    drafter = make_drafter("token_recycling", CountingRunner(), **parameters)
    assert isinstance(drafter, TokenRecycling)
    return drafter


def test_with_a_warm_start_a_pass_continues_from_the_previous_one() -> None:
    drafter = counting(warm_start=True)

    assert num_kept(drafter, 3) == [(0,) * 11]  # it meets every number for the first time
    assert num_kept(drafter, 3) == [(4, 4, 0)]


def test_without_a_warm_start_a_pass_is_like_the_first() -> None:
    drafter = counting()

    assert num_kept(drafter, 3) == num_kept(drafter, 3) == [(0,) * 11]


def test_a_row_drafts_from_successors_seen_in_another_row() -> None:
    """The second row reaches 13 when the first has been at 13 .. 21, but not at 22 yet."""
    ahead, behind = num_kept(counting(), 13, 4)

    assert ahead == (0,) * 11
    assert behind == (0, 0, 0, 0, 0, 0, 0, 0, 2)
