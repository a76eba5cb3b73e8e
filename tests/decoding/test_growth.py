"""Chains of drafts end where the draft is not sure, by hand."""

import pytest
import torch
from torch import Tensor

from specbench.decode.growth import grow_block, grow_chain
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.records import Sampling

SURE, UNSURE = torch.tensor([4.0, 0.0, 0.0]), torch.tensor([0.0, 0.1, 0.0])  # 0.96 and 0.36
SAMPLERS = {"greedy": Sampling(), "warm": Sampling(temperature=1.0)}


def rows(num_rows: int) -> State:
    state = State.allocate(num_rows, 16, [], torch.device("cpu"))
    state.length_B1.fill_(3)
    state.budget_B.fill_(9)
    return state


@pytest.fixture(params=SAMPLERS.values(), ids=SAMPLERS)
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return Sampler(request.param)


def chain(sampler: Sampler, *rows_of_logits: list[Tensor], p_min: float) -> tuple[list[int], int]:
    """The drafts that count in each row, and the forwards after the first."""
    logits_BKV = torch.stack([torch.stack(logits) for logits in rows_of_logits])
    num_forwards = 0

    def follow(*_: Tensor) -> Tensor:
        nonlocal num_forwards
        num_forwards += 1
        return logits_BKV[:, num_forwards : num_forwards + 1]

    k = logits_BKV.shape[1]
    proposal = grow_chain(rows(len(rows_of_logits)), logits_BKV[:, 0], follow, k, sampler, p_min)
    assert proposal.tokens_BK.shape[1] <= num_forwards + 1
    return proposal.num_drafted_B.tolist(), num_forwards


def test_a_chain_ends_before_the_first_unsure_draft(sampler: Sampler) -> None:
    logits = [SURE, UNSURE, SURE, SURE]
    assert chain(sampler, logits, p_min=0.0) == ([4], 3)
    assert chain(sampler, logits, p_min=0.3) == ([4], 3)
    assert chain(sampler, logits, p_min=0.9) == ([1], 1)
    assert chain(sampler, logits[1:], p_min=0.9) == ([0], 1)


def test_rows_end_separately_and_drafting_stops_with_the_last(sampler: Sampler) -> None:
    first, second = [SURE, SURE, UNSURE, SURE], [UNSURE, SURE, SURE, SURE]
    assert chain(sampler, first, second, p_min=0.9) == ([2, 0], 2)


def test_a_block_is_cut_before_the_first_unsure_draft(sampler: Sampler) -> None:
    logits_BKV = torch.stack([torch.stack([SURE, SURE, UNSURE]), torch.stack([UNSURE, SURE, SURE])])
    proposal = grow_block(rows(2), logits_BKV, sampler, 0.9)
    assert proposal.num_drafted_B.tolist() == [2, 0]
    assert grow_block(rows(2), logits_BKV, sampler).num_drafted_B.tolist() == [3, 3]
