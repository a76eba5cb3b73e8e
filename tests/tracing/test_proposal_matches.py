"""The accepted part of a proposal on a traced text, and the chance of a sampled draft, by hand."""

import itertools
import math

import pytest
import torch

from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Purpose, Sampler, draw
from specbench.decode.verifier import verify
from specbench.errors import UsageError
from specbench.forward.tree import Tree, ancestors_of
from specbench.records import Sampling
from specbench.tracing.trace import NOTHING, ProposalMatches, kept_given_text, refuse_drawn_tree

# A prompt of two tokens, then the output 10 11 12 13 14; the rows are at output tokens 0 and 3.
TEXT = torch.tensor([1, 2, 10, 11, 12, 13, 14, *[NOTHING] * 9])
SIZE = 7
LENGTHS = torch.tensor([[2], [5]])


def added(proposal: Proposal) -> ProposalMatches:
    matches = ProposalMatches()
    matches.add([0, 3], proposal, LENGTHS, TEXT, SIZE)
    return matches


def chances(matches: ProposalMatches) -> list[tuple[float, ...]]:
    return [matches.chances(start, [1.0] * 5) for start in (0, 3)]


def test_a_traced_chain_is_accepted_up_to_the_first_mismatch():
    drafts = torch.tensor([[11, 12, 9, 14], [14, NOTHING, NOTHING, NOTHING]])
    matches = added(Proposal(drafts, torch.tensor([4, 4])))

    # After token 3 one token of the text is left; past the end no draft matches.
    assert chances(matches) == [(1.0, 1.0, 0.0), (1.0,)]
    assert matches.num_drafted == {0: 4, 3: 4}


def test_inactive_drafts_are_not_accepted_in_a_trace():
    matches = added(Proposal(torch.tensor([[11, 12], [14, 7]]), torch.tensor([1, 0])))

    assert chances(matches) == [(1.0,), ()]
    assert matches.num_drafted == {0: 1, 3: 0}


def test_a_traced_tree_is_followed_along_the_text():
    """0 -> (11, 9), 11 -> (9, 12), 12 -> 13 twice; the last node is inactive."""
    parents_BK = torch.tensor([[0, 0, 1, 1, 4, 4]]).expand(2, -1)
    seen_BNN, depths_BN = ancestors_of(parents_BK, 3)
    is_active_BK = torch.tensor([[True] * 5 + [False], [True] * 6])
    tree = Tree(parents_BK, depths_BN, seen_BNN, is_active_BK, 3)
    drafts = torch.tensor([[11, 9, 9, 12, 8, 13], [9, 14, 14, 14, 14, 14]])
    matches = added(Proposal(drafts, is_active_BK.sum(1), None, tree))

    assert chances(matches) == [(1.0, 1.0, 0.0), (1.0,)]
    assert matches.num_drafted == {0: 5, 3: 6}


def test_a_level_of_a_tree_without_drafts_is_not_rejected():
    """0 -> 11 -> 12; the second node is inactive in the first row, both are in the second."""
    parents_BK = torch.tensor([[0, 1]]).expand(2, -1)
    seen_BNN, depths_BN = ancestors_of(parents_BK, 2)
    is_active_BK = torch.tensor([[True, False], [False, False]])
    tree = Tree(parents_BK, depths_BN, seen_BNN, is_active_BK, 2)
    drafts = torch.tensor([[11, 12], [14, 7]])
    matches = added(Proposal(drafts, is_active_BK.sum(1), None, tree))

    assert chances(matches) == [(1.0,), ()]


def test_a_sampled_chain_has_the_probabilities_of_the_texts_tokens():
    probs = torch.full((2, 3, 16), 0.01)
    probs[0, 0, 11], probs[0, 1, 12], probs[0, 2, 13], probs[1, 0, 14] = 0.2, 0.9, 0.0, 0.3
    drafts = torch.tensor([[11, 12, 13], [14, 0, 0]])
    matches = added(Proposal(drafts, torch.tensor([3, 3]), probs))

    target = [1.0, 0.4, 0.5, 0.6, 0.6]
    assert matches.chances(0, target) == pytest.approx((0.5, 1.0, 0.0))
    assert matches.chances(3, target) == pytest.approx((0.5,))


def test_acceptance_chances_end_at_a_certain_rejection():
    probs = torch.full((2, 3, 16), 0.5)
    probs[:, 0] = 0.0
    matches = added(Proposal(torch.zeros(2, 3, dtype=torch.long), torch.tensor([3, 3]), probs))

    assert matches.chances(0, [0.5] * 5) == (0.0,)


def test_the_chance_of_a_draft_given_the_emitted_token_is_min_of_1_and_q_over_p():
    """The decoder's own verifier, 40,000 rounds of one draft, grouped by the emitted token.

    sum min(p, q) is the mean over tokens: right on average, wrong for each of them. The
    bound is 5 standard errors for each of 4 tokens: false alarms below 3e-6.
    """
    p_V = torch.tensor([0.5, 0.3, 0.15, 0.05])
    q_V = torch.tensor([0.1, 0.5, 0.1, 0.3])
    B = 40_000
    sampler, seeds_B = Sampler(Sampling(temperature=1.0)), torch.arange(B)
    positions_BN = torch.tensor([[5, 6]]).expand(B, -1)
    q_B1V = q_V.expand(B, 1, -1)
    drafts_B1 = draw(q_B1V, seeds_B, positions_BN[:, :1], Purpose.DRAFT)
    proposal = Proposal(drafts_B1, torch.ones(B, dtype=torch.long), q_B1V)
    verdict = verify(proposal, p_V.log().expand(B, 2, -1), sampler, seeds_B, positions_BN)

    emitted_B, mean = verdict.tokens_BT[:, 0], torch.minimum(p_V, q_V).sum()
    for token, (p, q) in enumerate(zip(p_V.tolist(), q_V.tolist(), strict=True)):
        kept = verdict.num_accepted_B[emitted_B == token].float()
        chance = kept_given_text(q, p)
        standard_error = max(chance * (1 - chance), 1e-4) ** 0.5 / len(kept) ** 0.5
        assert abs(float(kept.mean()) - chance) < 5 * standard_error
        assert abs(chance - float(mean)) > 0.1  # the control: the mean would fail here


# Two tokens. After 0 the drafter proposes 0 far too often, after 1 it is right: accepted tokens
# lead to contexts in which fewer drafts are accepted.
P_AFTER = torch.tensor([[0.5, 0.5], [0.3, 0.7]])
Q_AFTER = torch.tensor([[0.9, 0.1], [0.3, 0.7]])


def forecast_lengths(num_drafts: int) -> tuple[list[float], list[float]]:
    """P(a = 0 .. K) over all texts after token 0: replayed, and with sum min(p, q) instead."""
    overlaps = torch.minimum(P_AFTER, Q_AFTER).sum(1).tolist()
    replayed, summed = [0.0] * (num_drafts + 1), [0.0] * (num_drafts + 1)
    for tokens in itertools.product((0, 1), repeat=num_drafts):
        before = (0, *tokens[:-1])
        target = [float(P_AFTER[pair]) for pair in zip(before, tokens, strict=True)]
        text_C = torch.tensor([1, 0, *tokens, 0, *[NOTHING] * 8])
        proposal = Proposal(
            torch.tensor([tokens]), torch.tensor([num_drafts]), Q_AFTER[torch.tensor([before])]
        )
        matches = ProposalMatches()
        matches.add([0], proposal, torch.tensor([[1]]), text_C, 3 + num_drafts)
        weight = math.prod(target)
        for lengths, chances in (
            (replayed, matches.chances(0, [1.0, *target])),
            (summed, [overlaps[token] for token in before]),
        ):
            for kept in range(num_drafts + 1):
                stopped = 1 - chances[kept] if kept < num_drafts else 1.0
                lengths[kept] += weight * math.prod(chances[:kept]) * stopped
    return replayed, summed


def test_replayed_lengths_match_the_verifier_but_those_of_sum_min_p_q_do_not():
    """The verifier's rounds of three drafts: what is accepted depends on the tokens before.

    40,000 rounds, 5 standard errors for each of 4 lengths: false alarms below 3e-6.
    """
    K, B = 3, 40_000
    sampler, seeds_B = Sampler(Sampling(temperature=1.0)), torch.arange(B)
    positions_BN = torch.arange(2, 6).expand(B, -1)
    before_B1, drafts, probs = torch.zeros(B, 1, dtype=torch.long), [], []
    logits = [P_AFTER[before_B1].log()]
    for i in range(K):
        probs.append(Q_AFTER[before_B1])
        before_B1 = draw(probs[-1], seeds_B, positions_BN[:, i : i + 1], Purpose.DRAFT)
        drafts.append(before_B1)
        logits.append(P_AFTER[before_B1].log())
    proposal = Proposal(torch.cat(drafts, 1), torch.full((B,), K), torch.cat(probs, 1))
    verdict = verify(proposal, torch.cat(logits, 1), sampler, seeds_B, positions_BN)

    replayed, summed = forecast_lengths(K)
    for kept in range(K + 1):
        share = float((verdict.num_accepted_B == kept).float().mean())
        bound = 5 * math.sqrt(replayed[kept] * (1 - replayed[kept]) / B)
        assert abs(share - replayed[kept]) < bound
        assert kept == 0 or abs(share - summed[kept]) > bound  # the control


def test_a_sampled_tree_is_refused_by_name():
    parents_BK = torch.tensor([[0, 0]])
    seen_BNN, depths_BN = ancestors_of(parents_BK, 1)
    tree = Tree(parents_BK, depths_BN, seen_BNN, torch.ones(1, 2, dtype=torch.bool), 1)
    drafts, sizes = torch.tensor([[3, 4]]), torch.tensor([2])

    refuse_drawn_tree("bushy", Proposal(drafts, sizes, None, tree))
    with pytest.raises(UsageError, match=r"bushy.*tree"):
        refuse_drawn_tree("bushy", Proposal(drafts, sizes, torch.ones(1, 3, 9), tree))
