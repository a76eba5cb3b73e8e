"""One round as a pure device program: propose, verify, clip, commit.

Fixed shapes, no host sync, no Python branch on data, so that the same function runs eagerly
on a CPU and is captured as one graph on a GPU. K = 0 is the baseline, the same program.
Shape suffixes: B rows, K drafts, T = K + 1 checked positions.
"""

import torch
from torch import Tensor

from specbench.decoding.drafter import Drafter, Proposal
from specbench.decoding.runner import Runner
from specbench.decoding.sampling import Sampler
from specbench.decoding.state import State
from specbench.decoding.verifier import Verdict, verify


def run_round(
    target: Runner, drafter: Drafter, state: State, sampler: Sampler, *, k: int, span: int
) -> None:
    """Advance every row by its own number of tokens; `span` > every length + k."""
    finish_round(target, drafter, state, sampler, propose(drafter, state, sampler, k, span), span)


def propose(drafter: Drafter, state: State, sampler: Sampler, k: int, span: int) -> Proposal:
    """The drafter's half. Drafts that the budget could not keep count as not drafted."""
    proposal = drafter.propose(state, k, span, sampler)
    room_B = torch.where(state.done_B, 0, state.budget_B - 1)
    return proposal._replace(num_drafted_B=proposal.num_drafted_B.minimum(room_B))


def finish_round(
    target: Runner,
    drafter: Drafter,
    state: State,
    sampler: Sampler,
    proposal: Proposal,
    span: int,
) -> None:
    """The target's half: one forward over the drafts, the verdict, the commit."""
    T = proposal.tokens_BK.shape[1] + 1
    positions_BT = state.length_B[:, None] + torch.arange(T, device=state.length_B.device)
    tokens_BT = torch.cat([state.current_B[:, None], proposal.tokens_BK], 1)
    out = target.forward(tokens_BT, positions_BT, span, features=drafter.features)
    verdict = verify(proposal, out.logits, sampler, state.seed_B, positions_BT + 1)
    num_emitted_B = commit(state, proposal, verdict)
    drafter.observe(state, num_emitted_B, out.features)


def commit(state: State, proposal: Proposal, verdict: Verdict) -> Tensor:
    """Write the verdict's tokens up to and including the first end-of-text token.

    Returns num_emitted_B, 0 for finished rows. A draft past an end-of-text token is not
    counted as accepted.
    """
    T = verdict.tokens_BT.shape[1]
    places_T = torch.arange(T, device=verdict.tokens_BT.device)
    is_eos_BT = (verdict.tokens_BT[..., None] == state.eos_E).any(-1)
    first_eos_B = torch.where(is_eos_BT, places_T, T).amin(1)
    num_emitted_B = (verdict.num_accepted_B + 1).minimum(first_eos_B + 1)
    num_emitted_B = torch.where(state.done_B, 0, num_emitted_B)

    counts_B3 = torch.stack(
        [proposal.num_drafted_B, verdict.num_accepted_B.minimum(num_emitted_B), num_emitted_B], 1
    )
    state.log_RB3.index_copy_(0, state.round_1, counts_B3[None])
    state.round_1.add_(1)

    # All T tokens are written: those past num_emitted are garbage that the next round
    # overwrites before anyone reads it.
    state.tokens_BC.scatter_(1, state.length_B[:, None] + 1 + places_T, verdict.tokens_BT)
    state.length_B.add_(num_emitted_B)
    state.budget_B.sub_(num_emitted_B)
    state.done_B.logical_or_((first_eos_B < num_emitted_B) | (state.budget_B <= 0))
    return num_emitted_B
