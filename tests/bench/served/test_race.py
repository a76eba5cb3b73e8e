"""The plan of a race: how a confirmation divides the time left, and which starts it keeps."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest

from specbench.bench.served import race
from specbench.bench.served.race import (
    CONFIRMED_TO,
    SPARE,
    SessionTimes,
    dropped,
    explore_share,
    to_confirm,
)
from specbench.bench.served.sessions import served_cells
from specbench.stats.crossed import MIN_CYCLES, expected_noise
from specbench.stats.machine_noise import MachineKind
from specbench.stats.spread import MIN_UNITS
from tests.bench.fake_runs import write_prompts
from tests.bench.served.served_runs import SIX, plan_of

SERVER = MachineKind.SERVER
TIMES = SessionTimes(start_s=2.0, prompt_s=0.5)


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


def test_only_a_choice_leaves_time_for_a_confirmation(tmp_path):
    several = served_cells(plan_of(tmp_path), "vllm")
    assert explore_share(several) == 0.5
    assert explore_share([cell for cell in several if cell.key.draft.k in (0, 4)]) == 1.0


@pytest.fixture
def two_workloads(tmp_path, monkeypatch):
    """Cells of two workloads at K = 0, 2, 4 and 6, and their speedups by workload and K."""
    names = ("code", "chat")
    files = [write_prompts(tmp_path / f"{name}.jsonl", SIX) for name in names]
    plan = plan_of(tmp_path, workloads=tuple(files), num_speculative_tokens=(0, 2, 4, 6))
    cells = served_cells(plan, "vllm")
    monkeypatch.setattr(race, "machine_kind", lambda _: SERVER)
    monkeypatch.setattr(race, "paired_decode", lambda speedup: SimpleNamespace(speedup=speedup))

    def measured(**speedups):
        return {
            cell.key.id: of_k[cell.key.draft.k]
            for cell in cells
            for name, of_k in speedups.items()
            if name in cell.key.condition.workload and cell.key.draft.k in of_k
        }

    return cells, measured


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


def test_a_start_that_is_second_everywhere_is_dropped_before_the_fastest_of_a_setting(
    two_workloads,
):
    cells, measured = two_workloads
    best_of_one = measured(code={2: 1.5, 4: 1.6, 6: 0.8}, chat={2: 1.5, 4: 0.8, 6: 1.6})
    assert ks_of(c for c in cells if c.key.id in dropped(cells, best_of_one, 6)) == {2}


def test_slower_starts_are_confirmed_only_if_the_margin_stays_small(two_workloads):
    cells, measured = only(two_workloads[0], 2, 4), two_workloads[1]
    beaten = measured(code={2: 1.5, 4: 1.4}, chat={2: 1.1, 4: 1.0})
    kept, sessions = to_confirm(cells, beaten, TIMES, 100.0, 35)
    assert (ks_of(kept), sessions) == ({0, 2}, TIMES.confirming(100.0, 4, most=35, kind=SERVER))
    kept, sessions = to_confirm(cells, beaten, TIMES, 2000.0, 35)
    assert ks_of(kept) == {0, 2, 4}
    assert sessions.margin <= CONFIRMED_TO


def test_the_fastest_of_each_setting_is_confirmed_if_an_interval_is_possible(two_workloads):
    cells, measured = only(two_workloads[0], 2, 4), two_workloads[1]
    split = measured(code={2: 1.5, 4: 1.6}, chat={2: 1.5, 4: 0.9})
    kept, sessions = to_confirm(cells, split, TIMES, 100.0, 35)
    assert ks_of(kept) == {0, 2, 4}
    assert CONFIRMED_TO < sessions.margin < math.inf
    kept, _ = to_confirm(cells, split, TIMES, 40.0, 35)
    assert ks_of(kept) == {0, 2}
