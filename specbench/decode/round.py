"""One round as a pure device program: propose, verify, clip, commit.

Shapes are fixed, without host sync or Python branches on data, so the same function runs eagerly
on a CPU and is captured as one graph on a GPU. The baseline, K = 0, is the same program.
Shape suffixes: B rows, K drafts, N = K + 1 nodes, T = depth + 1 tokens of a path (N in a
chain), R = 4 + T numbers reported.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.decode.drafter import Drafter, Outcome, Proposal, no_proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.decode.verifier import Verdict, verify
from specbench.forward.runner import Runner
from specbench.forward.tree import branches_of

# Decides which drafts are accepted, given the logits [B, N, V], seeds [B] and positions [B, N] of
# the tokens after the nodes; `verifier.verify` preserves the target's distribution.
Verifier = Callable[[Proposal, Tensor, Sampler, Tensor, Tensor], Verdict]


def run_round(
    target: Runner,
    drafter: Drafter,
    state: State,
    sampler: Sampler,
    *,
    k: int,
    span: int,
    verifier: Verifier = verify,
) -> Tensor:
    """Advance every row by its own number of tokens; `span` > every length + drafts.

    Returns report_BR: num_drafted, num_accepted, num_emitted, the remaining budget (0: the row is
    done), and T tokens, of which the first num_emitted are valid. The counts of a row that was done
    before are zeros.
    """
    proposal = propose(drafter, state, sampler, k, span)
    return finish_round(target, drafter, state, sampler, proposal, span, verifier)


def propose(drafter: Drafter, state: State, sampler: Sampler, k: int, span: int) -> Proposal:
    """The drafter's half of a round. Drafts that exceed the budget do not count as drafted."""
    if k == 0:
        return no_proposal(state)
    proposal = drafter.propose(state, k, span, sampler)
    room_B = (state.budget_B - 1).clamp(min=0)
    if proposal.tree is None:
        return proposal._replace(num_drafted_B=proposal.num_drafted_B.minimum(room_B))
    tree = proposal.tree.truncated_to(room_B)
    return proposal._replace(tree=tree, num_drafted_B=tree.is_active_BK.sum(1))


def finish_round(
    target: Runner,
    drafter: Drafter,
    state: State,
    sampler: Sampler,
    proposal: Proposal,
    span: int,
    verifier: Verifier = verify,
) -> Tensor:
    """The target's half of a round: one forward over the drafts, the verdict and the commit."""
    T = proposal.depth + 1
    positions_BT, next_BT = state.positions(0, T), state.positions(1, T)
    tokens_BN = torch.cat([state.tokens_at(state.length_B1), proposal.tokens_BK], 1)
    positions_BN, next_BN, branches = positions_BT, next_BT, None
    if proposal.tree is not None:
        positions_BN, branches = branches_of(proposal.tree, state.length_B1)
        next_BN = positions_BN + 1
    out = target.forward(
        tokens_BN,
        positions_BN,
        span,
        first_row=state.first_row,
        features=drafter.capabilities.features,
        branches=branches,
    )
    verdict = verifier(proposal, out.logits, sampler, state.seed_B, next_BN)
    features = out.features
    if verdict.path_BT is not None:
        # Before `commit` advances the lengths, the path moves to the slots of its positions.
        sources_BT = state.length_B1 + verdict.path_BT[:, 1:]
        target.move_slots(sources_BT, positions_BT[:, 1:], state.first_row)
        features = tuple(_gather_path(verdict.path_BT, feature) for feature in features)
    report_BR = commit(state, proposal, verdict, next_BT)
    drafter.observe(
        state,
        Outcome(
            num_emitted_B=report_BR[:, 2],
            positions_BT=positions_BT,
            following_BT=verdict.tokens_BT,
            features=features,
            span=span,
            tokens_BN=tokens_BN,
            logits_BNV=out.logits,
            path_BT=verdict.path_BT,
        ),
    )
    return report_BR


def commit(state: State, proposal: Proposal, verdict: Verdict, next_BT: Tensor) -> Tensor:
    """Write the verdict's tokens at `next_BT`, up to and including the first end-of-text token.

    Returns the report_BR of `run_round`. A draft past an end-of-text token does not count as
    accepted.
    """
    T = verdict.tokens_BT.shape[1]
    # Drafts past the budget were inactive, so this only limits rows that are done.
    num_accepted_B = verdict.num_accepted_B
    num_emitted_B = (num_accepted_B + 1).minimum(state.budget_B)
    # All T tokens are written: those past num_emitted are garbage that the next round
    # overwrites before anyone reads it.
    state.tokens_BC.scatter_(1, next_BT, verdict.tokens_BT)
    if len(state.eos_E):  # a shape, not data: skipped without end-of-text ids
        is_eos_BT = (verdict.tokens_BT[..., None] == state.eos_E).any(-1)
        first_eos_B = torch.where(is_eos_BT, state.places(T), T).amin(1)
        ends_B = first_eos_B < num_emitted_B
        num_emitted_B = num_emitted_B.minimum(first_eos_B + 1)
        num_accepted_B = num_accepted_B.minimum(num_emitted_B)
        state.budget_B.sub_(num_emitted_B).masked_fill_(ends_B, 0)
    else:
        state.budget_B.sub_(num_emitted_B)
    num_emitted_B1 = num_emitted_B[:, None]
    state.length_B1.add_(num_emitted_B1)
    counts = (proposal.num_drafted_B[:, None], num_accepted_B[:, None], num_emitted_B1)
    return torch.cat([*counts, state.budget_B[:, None], verdict.tokens_BT], 1)


def _gather_path(path_BT: Tensor, x_BNF: Tensor) -> Tensor:
    return x_BNF.gather(1, path_BT[..., None].expand(-1, -1, x_BNF.shape[2]))
