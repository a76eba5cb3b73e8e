"""The plan of a race: how a confirmation divides the time left, and which starts it keeps."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest

from specbench.bench.served.race import (
    CONFIRMED_TO,
    SPARE,
    SessionTimes,
    confirms_open,
    dropped,
    explore_share,
    is_fixed,
    others_left,
    to_confirm,
)
from specbench.bench.served.sessions import cycle_of, served_cells
from specbench.stats.crossed import MIN_CYCLES, MOST_PLANNED, expected_noise
from specbench.stats.machine_noise import MachineKind
from specbench.stats.spread import MIN_UNITS
from tests.bench.fake_runs import write_prompts
from tests.bench.served.served_runs import SIX, plan_of

SERVER = MachineKind.SERVER
TIMES = SessionTimes(start_s=2.0, prompt_s=0.5)
INVALID = 2.0  # a cell with a larger speedup is not valid


@pytest.mark.parametrize("left_s", [60.0, 100.0, 300.0, 1000.0])
@pytest.mark.parametrize("num_sessions", [4, 8])
def test_no_other_division_of_the_time_left_has_a_narrower_interval(left_s, num_sessions):
    sessions = TIMES.confirming(left_s, num_sessions, most=35, kind=SERVER)
    margins = {
        (cycles, num): noise.spread(cycles).margin()
        for num in range(MIN_UNITS, 36)
        for cycles in range(MIN_CYCLES, 13)
        if SPARE * cycles * num_sessions * TIMES.session_s(num) <= left_s
        and (noise := expected_noise(num, SERVER))
    }
    assert sessions.margin == pytest.approx(min(margins.values(), default=math.inf))
    assert not margins or sessions.num_prompts in {num for _, num in margins}


def test_more_time_and_fewer_starts_narrow_the_interval():
    margins = [
        TIMES.confirming(left_s, 4, most=35, kind=SERVER).margin for left_s in (40, 80, 160, 320)
    ]
    assert all(longer < shorter for shorter, longer in pairwise(margins))
    assert (
        TIMES.confirming(160.0, 8, most=35, kind=SERVER).margin
        > TIMES.confirming(160.0, 4, most=35, kind=SERVER).margin
    )


def test_an_unsteady_machine_gets_more_cycles_of_fewer_prompts():
    unsteady = TIMES.confirming(150.0, 4, most=35, kind=MachineKind.UNSTEADY_CPU)
    assert unsteady.num_prompts < TIMES.confirming(150.0, 4, most=35, kind=SERVER).num_prompts


def test_too_little_time_for_two_cycles_promises_nothing():
    assert TIMES.confirming(20.0, 4, most=35, kind=SERVER) == (MIN_UNITS, math.inf)
    assert TIMES.confirming(-5.0, 4, most=35, kind=SERVER) == (MIN_UNITS, math.inf)


@pytest.mark.parametrize("left_s", [50.0, 155.9, 156.1, 700.0, 10_000.0])
def test_a_fixed_number_of_prompts_is_planned_in_whole_cycles(left_s):
    """A session of 35 prompts takes 19.5 s, two cycles of four sessions 156 s."""
    num_cycles = min(int(left_s / (4 * TIMES.session_s(35))), MOST_PLANNED)
    noise = expected_noise(35, MachineKind.SERVER)
    margin = noise.spread(num_cycles).margin() if num_cycles >= MIN_CYCLES else math.inf
    assert TIMES.confirming(SPARE * left_s, 4, 35, SERVER, is_fixed=True) == (
        35,
        pytest.approx(margin),
    )


def test_requests_that_are_served_together_need_no_number_of_prompts():
    alone = TIMES.confirming(300.0, 4, 3, SERVER, is_fixed=True)
    together = TIMES.confirming(300.0, 4, 3, SERVER, is_fixed=True, are_together=True)
    assert (alone.margin, together.num_prompts) == (math.inf, 3)
    assert together.margin < CONFIRMED_TO


@pytest.fixture
def raced(tmp_path):
    """Makes plans of a race over a workload of so many prompts."""

    def plan(num_in_all, **changes):
        many = write_prompts(tmp_path / "many.jsonl", [f"prompt {i}" for i in range(num_in_all)])
        return plan_of(tmp_path, workloads=(many,), **{"budget_s": 600.0, **changes})

    return plan


@pytest.mark.parametrize(
    ("num_in_all", "changes", "explored", "others", "share"),
    [
        pytest.param(40, {}, 20, 20, 0.5, id="half of the prompts"),
        pytest.param(9, {}, 9, 0, 0.8, id="too few for two halves"),
        pytest.param(40, {"num_prompts": 30}, 30, 0, 0.8, id="too few others"),
        pytest.param(40, {"num_prompts": 24}, 24, 16, 0.5, id="enough others"),
        pytest.param(40, {"num_speculative_tokens": (0, 4)}, 40, 0, 1.0, id="no choice"),
        pytest.param(9, {"concurrency": (4,)}, 9, 0, 0.5, id="other passes"),
        pytest.param(40, {"engines": ("builtin", "vllm")}, 40, 0, 0.8, id="not only servers"),
    ],
)
def test_a_choice_leaves_prompts_and_time_for_its_confirmation(
    raced, num_in_all, changes, explored, others, share
):
    plan = raced(num_in_all, **changes)
    assert len(plan.measured(plan.workloads[0])) == explored
    assert (others_left(plan), explore_share(plan, "vllm")) == (others, share)
    assert confirms_open(plan) == (others > 0 or "concurrency" in changes)


@pytest.mark.parametrize(
    ("num_in_all", "changes", "expected"),
    [
        (40, {}, False),
        (9, {}, True),
        (40, {"num_requests": 50}, True),
        (40, {"concurrency": (1, 4)}, True),
    ],
)
def test_only_single_requests_on_other_prompts_vary_in_number(raced, num_in_all, changes, expected):
    assert is_fixed(raced(num_in_all, **changes)) is expected


def summary_of(speedup):
    """A summary whose requests within an SLO gain what its decoding loses."""
    interval, decoding = (SimpleNamespace(estimate=x) for x in (speedup, 1 / speedup))
    decided = SimpleNamespace(speedup=interval)
    return SimpleNamespace(valid=speedup <= INVALID, speedup=decoding, as_decided=decided)


@pytest.fixture
def two_workloads(tmp_path):
    """Cells of two workloads at K = 0, 2, 4 and 6, and their speedups by workload and K."""
    names = ("code", "chat")
    files = [write_prompts(tmp_path / f"{name}.jsonl", SIX) for name in names]
    plan = plan_of(tmp_path, workloads=tuple(files), num_speculative_tokens=(0, 2, 4, 6))
    cells = served_cells(plan, "vllm")

    def measured(**speedups):
        return {
            cell.key.id: summary_of(of_k[cell.key.draft.k])
            for cell in cells
            for name, of_k in speedups.items()
            if name in cell.key.condition.workload and cell.key.draft.k in of_k
        }

    return cells, measured


def sessions_in(left_s):
    return lambda left: TIMES.confirming(left_s, len([*cycle_of(left, 0)]), 35, SERVER)


def ks_of(cells):
    return {cell.key.draft.k for cell in cells}


def only(cells, *ks):
    return tuple(cell for cell in cells if cell.key.draft.k in (0, *ks))


def test_a_start_that_is_the_fastest_of_a_setting_is_dropped_last(two_workloads):
    cells, measured = only(two_workloads[0], 2, 4), two_workloads[1]
    # K = 2 has the higher mean, but K = 4 is as far behind nowhere.
    by_mean = measured(code={2: 1.5, 4: 1.6}, chat={2: 1.5, 4: 0.9})
    assert ks_of(cells) - ks_of(c for c in cells if c.key.id in dropped(cells, by_mean, 4)) == {
        0,
        2,
    }
    beaten = measured(code={2: 1.5, 4: 1.4}, chat={2: 1.1, 4: 1.0})
    assert {4} == ks_of(c for c in cells if c.key.id in dropped(cells, beaten, 4))
    unknown = measured(code={2: 0.5})
    assert {4} == ks_of(c for c in cells if c.key.id in dropped(cells, unknown, 4))


def test_a_start_that_is_valid_nowhere_is_dropped_first(two_workloads):
    cells, measured = two_workloads
    cells = [cell for cell in cells if cell.key.draft.k < 6]
    wrong = measured(code={2: 2.5, 4: 0.9}, chat={2: 2.5, 4: 0.8})
    assert {2} == ks_of(c for c in cells if c.key.id in dropped(cells, wrong, 4))
    all_wrong = measured(code={2: 2.5, 4: 2.4}, chat={2: 2.5, 4: 2.7})
    assert {2} == ks_of(c for c in cells if c.key.id in dropped(cells, all_wrong, 4))


def test_a_start_that_is_second_everywhere_is_dropped_before_the_fastest_of_a_setting(
    two_workloads,
):
    cells, measured = two_workloads
    best_of_one = measured(code={2: 1.5, 4: 1.6, 6: 0.8}, chat={2: 1.5, 4: 0.8, 6: 1.6})
    assert ks_of(c for c in cells if c.key.id in dropped(cells, best_of_one, 6)) == {2}


def test_slower_starts_are_confirmed_only_if_the_margin_stays_small(two_workloads):
    cells, measured = only(two_workloads[0], 2, 4), two_workloads[1]
    beaten = measured(code={2: 1.5, 4: 1.4}, chat={2: 1.1, 4: 1.0})
    kept, sessions = to_confirm(cells, beaten, sessions_in(100.0))
    assert (ks_of(kept), sessions) == ({0, 2}, TIMES.confirming(100.0, 4, most=35, kind=SERVER))
    kept, sessions = to_confirm(cells, beaten, sessions_in(2000.0))
    assert ks_of(kept) == {0, 2, 4}
    assert sessions.margin <= CONFIRMED_TO


def test_the_fastest_of_each_setting_is_confirmed_if_an_interval_is_possible(two_workloads):
    cells, measured = only(two_workloads[0], 2, 4), two_workloads[1]
    split = measured(code={2: 1.5, 4: 1.6}, chat={2: 1.5, 4: 0.9})
    kept, sessions = to_confirm(cells, split, sessions_in(100.0))
    assert ks_of(kept) == {0, 2, 4}
    assert CONFIRMED_TO < sessions.margin < math.inf
    kept, _ = to_confirm(cells, split, sessions_in(40.0))
    assert ks_of(kept) == {0, 2}
