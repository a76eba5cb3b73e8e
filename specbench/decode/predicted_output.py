"""A predicted output, checked at once when its prompt is in: prefill as verification.

Where the two part, rounds resume. Source: SPEC-RL (arXiv:2509.23232), which verifies an earlier
answer to the same prompt in one pass and decodes on from its longest prefix that holds.
"""

from typing import NamedTuple

import torch

from specbench.decode.drafter import PredictsOutput
from specbench.decode.round import Verifier, finish_round
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.state import FURTHEST
from specbench.footprint import PREFILL_LOGITS, rounded_up


class Checked(NamedTuple):
    """What the check of one row gave."""

    tokens: list[int]  # emitted
    num_drafted: int
    num_accepted: int
    is_done: bool


def check_predicted_output(
    rows: Rows, row: int, sampler: Sampler, verifier: Verifier
) -> Checked | None:
    """Feed a row what its drafter predicts of the output; emit what the target accepts of it.

    The row has its first token. It takes as many forwards as bound the memory of their logits,
    and stops at the first whose drafts were not all accepted. None where nothing was expected.
    Waits for the device.
    """
    drafter = rows.drafter
    assert isinstance(drafter, PredictsOutput), "only such a drafter is asked"
    state = rows.state.rows(row, 1)
    length, left = torch.cat([state.length_B, state.budget_B]).tolist()
    at_once = min(rows.prefill_chunk, PREFILL_LOGITS // rows.target.vocab_size, FURTHEST)
    if rows.target.most_drafts is not None:
        at_once = min(at_once, rows.target.most_drafts + 1)
    tokens: list[int] = []
    num_drafted = num_accepted = 0
    while left > 1:  # the last token of a budget is the target's own
        proposal = drafter.predicted_output(state, min(max(at_once - 1, 1), left - 1))
        drafted = 0 if proposal is None else int(proposal.num_drafted_B)
        if proposal is None or not drafted:
            break
        proposal = proposal._replace(tokens_BK=proposal.tokens_BK[:, :drafted])
        span = min(rounded_up(length + drafted + 1), rows.capacity)
        report_BR = finish_round(rows.target, drafter, state, sampler, proposal, span, verifier)
        _, accepted, emitted, left, *said = report_BR[0].tolist()
        drafter.catch_up(state, emitted, span)  # more than a round's `propose` looks back
        length += emitted
        tokens += said[:emitted]
        num_drafted += drafted
        num_accepted += accepted
        if accepted < drafted:
            break
    return Checked(tokens, num_drafted, num_accepted, left == 0) if tokens else None
