"""Which K a budget pays for first, and which come back: by hand, for cells without an engine."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from specbench.bench.first_ks import SECURED, Share, brought_back, put_off, told
from specbench.records import Auto, CellKey, Fixed
from tests.cell_keys import BASE_KEY, KEY, with_axes

OTHER = with_axes(KEY, pairing="demo/other")


def cells(*keys: CellKey) -> Any:
    return cast(Any, [SimpleNamespace(key=key) for key in keys])


def at(*ks: int, of: CellKey = KEY) -> list[CellKey]:
    return [of.at(Fixed(k)) for k in ks]


def ks(ids: frozenset[str], of: CellKey = KEY) -> list[int]:
    return [k for k in range(1, 17) if of.at(Fixed(k)).id in ids]


def share(num_cells: float) -> Share:
    return Share(left_s=num_cells * SECURED * 2.0, cell_s=2.0)


@pytest.mark.parametrize(
    ("num_cells", "waiting"),
    [
        (4, [1, 3, 4, 6, 8]),  # K = 0 and 2, 5, 7
        (3, [1, 2, 4, 5, 6, 8]),
        (1, [1, 2, 3, 4, 6, 7, 8]),  # one K at least
        (8.9, [4]),  # seven K
        (9, []),
    ],
)
def test_few_k_are_spread_over_their_range(num_cells: float, waiting: list[int]) -> None:
    found = put_off(cells(BASE_KEY, *at(*range(8, 0, -1))), share(num_cells))
    assert ks(found) == waiting
    assert len(found) == len(waiting)


def test_each_drafter_has_its_share_and_neither_k_0_nor_auto_waits() -> None:
    every = cells(BASE_KEY, KEY.at(Auto(8)), *at(2, 4), *at(1, 2, 3, of=OTHER))
    found = put_off(every, share(2 + 2))
    assert (ks(found), ks(found, OTHER)) == ([2], [1, 3])
    assert len(found) == 3
    assert put_off(cells(BASE_KEY, KEY.at(Auto(8))), share(0)) == frozenset()


def test_a_cell_that_takes_no_time_is_always_paid_for() -> None:
    assert put_off(cells(BASE_KEY, *at(1, 2, 3)), Share(left_s=0.0, cell_s=0.0)) == frozenset()


@pytest.mark.parametrize(
    ("leader", "room", "back"),
    [
        (7, 9, [6, 8]),
        (7, 1, [6]),  # as near as 8, and cheaper
        (2, 9, [1, 3, 4]),
        (2, 2, [1, 3]),
        (5, 9, [3, 4, 6]),
        (5, 2, [4, 6]),  # 3 is further off
        (5, 0, []),
        (5, -2, []),
    ],
)
def test_the_neighbours_of_the_best_come_back_the_nearest_first(
    leader: int, room: int, back: list[int]
) -> None:
    waiting, measured = cells(*at(1, 3, 4, 6, 8)), cells(BASE_KEY, *at(2, 5, 7))
    assert ks(brought_back(waiting, measured, at(leader), room)) == back


def test_a_leader_brings_back_its_own_drafters_k_alone() -> None:
    waiting = cells(*at(3, 5), *at(3, of=OTHER))
    measured = cells(BASE_KEY, *at(2, 4), *at(5, of=OTHER))
    found = brought_back(waiting, measured, at(4), 9)
    assert (ks(found), ks(found, OTHER)) == ([3, 5], [])
    both = brought_back(waiting, measured, [*at(2), *at(5, of=OTHER)], 9)
    assert (ks(both), ks(both, OTHER)) == ([3], [3])


def test_what_is_put_off_is_told_with_what_would_do() -> None:
    every = cells(BASE_KEY, *at(1, 2, 3, 4, 5))
    effort = SimpleNamespace(effort=SimpleNamespace(budget_s=60.0))
    plan = cast(Any, SimpleNamespace(settings=effort, conditions=[1, 2]))
    later = frozenset(key.id for key in at(1, 3))
    assert list(told(every, frozenset(), share(9), 10.0, plan)) == []
    assert list(told(every, later, share(2), 10.0, plan)) == [
        "demo, code: the budget first pays for 5 prompts at K = 0, 2, 4 and 5; K beside the best "
        "follow if time is left"
    ]
    # 10 s are spent, and two questions want 5 prompts of 2 cells that take 2 s: 50 / 0.8.
    (said,) = told(every, later, share(1), 10.0, plan)
    assert said == (
        "demo, code: a budget of 60 s is too small for the 5 prompts that an interval needs, "
        "about 62 s would do; measuring K = 0, 2, 4 and 5 alone"
    )
