"""Each check of hybrids fails if a state is rolled back wrongly."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from specbench.decode import rows
from specbench.decode.rows import Rows
from specbench.forward.runner import StockRunner
from specbench.forward.slot_cache import SlotCache, StateSlots
from specbench.forward.state_layers import LayerState, _PrecomputedModule
from tests.decoding.conftest import Plant
from tests.hybrids.checks import (
    Subject,
    check_rows_that_come_and_go,
    check_second_turn,
    check_short_answer,
    check_side_by_side,
    subject,
)

pytestmark = pytest.mark.slow


def side_by_side(of: Subject) -> None:
    check_side_by_side(of, (3,))


def second_turn(of: Subject) -> None:
    check_second_turn(of, of.near)


def reload(of: Subject) -> None:  # noqa: ARG001 - it has capacity for more drafts
    side_by_side(subject.__wrapped__("LFM2"))


class Bug(NamedTuple):
    function: Any
    right: str
    wrong: str
    check: Callable[[Subject], None]
    family: str = "Qwen3.5"


BUGS = {
    "state one token ahead": Bug(
        StateSlots.select_steps,
        "self._empty_slot, first_B1 + reads_BT)",
        "self._empty_slot, first_B1 + (reads_BT + 1) % S)",
        side_by_side,
        "LFM2",
    ),
    "state one token behind": Bug(
        StateSlots.select_steps,
        "self._empty_slot, first_B1 + reads_BT)",
        "self._empty_slot, first_B1 + (reads_BT - 1) % S)",
        side_by_side,
    ),
    "drafts are not rolled back": Bug(
        StateSlots.select_steps,
        "reads_BT = positions_BT == 0, positions_BT % S",
        "reads_BT = positions_BT == 0, held_BS[:, :-1].argmax(1, keepdim=True) + positions_BT * 0",
        side_by_side,
    ),
    "state of another row": Bug(
        StateSlots.select_steps,
        "self._empty_slot, first_B1 + reads_BT)",
        "self._empty_slot, first_B1.roll(1, 0) + reads_BT)",
        side_by_side,
        "LFM2",
    ),
    "rows begin at the first": Bug(StateSlots._first, " + first_row", "", side_by_side),
    "too few states": Bug(
        StockRunner.reserve, "num_drafts + STATES_BESIDE_DRAFTS", "num_drafts", reload, "LFM2"
    ),
    "window of the convolution off by one": Bug(
        LayerState.load,
        '_states")[i] = state',
        '_states")[i] = state.roll(1, -1) if kind == "conv" else state',
        side_by_side,
        "LFM2",
    ),
    "products of the token before": Bug(
        _PrecomputedModule.__call__,
        "self.token : self.token + 1",
        "max(self.token - 1, 0) : max(self.token, 1)",
        side_by_side,
    ),
    "padding enters a state": Bug(
        rows._group_fills,
        "are_padded or len(fill.prompt_ids)",
        "True or len(fill.prompt_ids)",
        side_by_side,
    ),
    "a row moves without its state": Bug(
        SlotCache.copy_row, "self.states is not None", "False", check_rows_that_come_and_go
    ),
    "a draft feeds what it has no state for": Bug(
        StateSlots.select_steps,
        ".cumsum(1) > 0",
        ".cumsum(1) >= 0",
        check_rows_that_come_and_go,
    ),
    "keys of tokens that are not fed": Bug(
        StockRunner._slots_of,
        "torch.where(is_fed_BT, positions_BT, self.cache.max_len - 1)",
        "positions_BT",
        check_rows_that_come_and_go,
        "Falcon-H1",
    ),
    "any prefix is kept": Bug(
        Rows.num_cached,
        "is_last and all(r.can_continue(row, num_cached) for r in self._runners)",
        "True",
        check_short_answer,
    ),
    "a state that is not held is kept": Bug(
        StateSlots.has_state,
        "bool(self._positions_RS",
        "True or bool(self._positions_RS",
        check_short_answer,
    ),
}


# What make test plants; the others are in make test-long.
SAMPLE = ("state one token ahead", "state of another row", "window of the convolution off by one")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=[] if f in SAMPLE else pytest.mark.long) for f in BUGS],
)
def test_a_planted_rollback_fault_is_detected(fault: str, plant: Plant) -> None:
    bug = BUGS[fault]
    of = subject(bug.family)
    plant(bug.function, bug.right, bug.wrong)

    with pytest.raises(AssertionError):
        bug.check(of)


@pytest.mark.long
def test_rollback_checks_pass_without_a_fault() -> None:
    for family in {bug.family for bug in BUGS.values()}:
        of = subject(family)
        for check in {bug.check for bug in BUGS.values() if bug.family == family}:
            check(of)


@pytest.mark.long
def test_a_layer_that_cannot_continue_its_scan_is_detected_on_loading() -> None:
    assert subject("Qwen3.5").target.continues  # type: ignore[attr-defined]
    assert not subject("Jamba").target.continues  # type: ignore[attr-defined]
