"""Which states a row holds, on slots that a reader can count."""

import torch

from specbench.forward.state_slots import StateSlots

CPU = torch.device("cpu")


def fed(slots: StateSlots, *positions: int) -> list[bool]:
    """Whether each token of row 0 is fed, at those positions."""
    (is_fed_T,) = slots.point(torch.tensor([positions]), 0).tolist()
    return is_fed_T


def test_a_forward_that_is_timed_between_rounds_leaves_no_state() -> None:
    slots = StateSlots(num_rows=1, num_slots=4, device=CPU)
    assert fed(slots, 0, 1) == [True, True]
    with slots.nothing_kept():
        assert fed(slots, 2, 3, 4) == [False, False, False]
    assert [slots.holds(0, position) for position in (1, 2, 3)] == [True, True, False]
    assert fed(slots, 2, 3) == [True, True]


def test_a_token_is_fed_only_after_a_state_that_is_held() -> None:
    slots = StateSlots(num_rows=1, num_slots=4, device=CPU)
    assert fed(slots, 0, 1, 2) == [True, True, True]
    assert fed(slots, 5) == [False]  # nobody fed tokens 3 and 4
    assert fed(slots, 1, 2) == [True, True]  # rolled back
