from dataclasses import replace

import pytest

from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.registry import measure
from specbench.records import AnswerCheck, LimitRecord
from tests.cell_keys import with_axes
from tests.made_records import made_block
from tests.metrics.conftest import BASE_KEY, KEY

# 12 GB at 100 GB/s are 0.12 s; the median round of the cell takes 0.16 s.
READ = LimitRecord(
    cell_id=KEY.id, device="cuda:0", copy_bytes_per_s=100e9, bytes_per_round=12_000_000_000
)
STARTED = LimitRecord(cell_id=KEY.id, device="cuda:0", launches_per_round=1.0, syncs_per_round=0.5)
NAMES = {
    "roofline_round_s",
    "roofline_ratio",
    "bandwidth_utilization",
    "launches_per_round",
    "syncs_per_round",
}


def test_the_roofline_is_the_bytes_of_a_round_over_the_bandwidth(cell):
    given = measure(replace(cell, limits=(READ,)))
    assert given["roofline_round_s"] == pytest.approx(0.12)
    assert given["roofline_ratio"] == pytest.approx(0.16 / 0.12)
    assert given["bandwidth_utilization"] == pytest.approx(0.75)


def test_a_baseline_step_is_compared_with_its_own_bytes(baseline_cell):
    # 6 GB at 100 GB/s are 0.06 s of a step of 0.10 s.
    limit = replace(READ, cell_id=BASE_KEY.id, bytes_per_round=6_000_000_000)
    given = measure(replace(baseline_cell, limits=(limit,)))
    assert given["bandwidth_utilization"] == pytest.approx(0.6)


def test_the_median_of_several_blocks_counts(cell):
    slow = replace(READ, copy_bytes_per_s=50e9)  # 0.24 s
    fast = replace(READ, copy_bytes_per_s=200e9)  # 0.06 s
    given = measure(replace(cell, limits=(slow, READ, fast)))
    assert given["roofline_round_s"] == pytest.approx(0.12)


def test_a_cpu_has_a_roofline_but_no_bandwidth_utilization(cell):
    given = measure(replace(cell, limits=(replace(READ, device="cpu"),)))
    assert given["roofline_ratio"] == pytest.approx(0.16 / 0.12)
    assert "bandwidth_utilization" not in given


def test_launches_and_waits_come_from_the_blocks_that_counted_them(cell):
    given = measure(replace(cell, limits=(READ, STARTED)))
    assert (given["launches_per_round"], given["syncs_per_round"]) == (1.0, 0.5)
    assert given["roofline_round_s"] == pytest.approx(0.12)


def test_zero_syncs_per_round_are_reported_as_0(cell):
    given = measure(replace(cell, limits=(replace(STARTED, syncs_per_round=0.0),)))
    assert given["syncs_per_round"] == 0.0


def test_a_gpu_is_idle_between_its_rounds(cell):
    # Rounds of 0.44 s and 0.31 s, 5 in all.
    requests = tuple(
        replace(r, decode_s=decode_s)
        for r, decode_s in zip(cell.requests, (0.64, 0.41), strict=True)
    )
    late = replace(cell, requests=requests, limits=(READ,))
    assert measure(late)["device_idle_s"] == pytest.approx((0.2 + 0.1) / 5)

    check = AnswerCheck(num_drafted=2, num_accepted=1, num_emitted=2, seconds=0.1)
    checked = (replace(requests[0], answer_check=check), requests[1])
    assert measure(replace(late, requests=checked))["device_idle_s"] == pytest.approx(0.2 / 5)

    sooner = tuple(replace(r, decode_s=0.3) for r in cell.requests)  # by the host's clock
    assert measure(replace(late, requests=sooner))["device_idle_s"] == 0.0

    assert "device_idle_s" not in measure(replace(late, limits=(replace(READ, device="cpu"),)))
    busy = with_axes(KEY, concurrency=4)
    assert "device_idle_s" not in measure(replace(late, key=busy))


def test_unmeasured_limits_are_absent_and_not_zero(cell):
    assert not NAMES & measure(cell).keys()
    unknown = LimitRecord(cell_id=KEY.id, device="cuda:0")
    assert not NAMES & measure(replace(cell, limits=(unknown,))).keys()
    no_rounds = tuple(replace(r, rounds=None) for r in cell.requests)
    given = measure(replace(cell, requests=no_rounds, limits=(READ,)))
    assert NAMES & given.keys() == {"roofline_round_s"}


def test_a_cell_gets_its_own_limits(cell):
    block = made_block("a", *cell.requests, *cell.baseline)
    other = replace(READ, cell_id=BASE_KEY.id)
    base, spec = aggregate_cells([BASE_KEY, KEY], [block], limits=[READ, other, STARTED])
    assert base.limits == (other,)
    assert spec.limits == (READ, STARTED)
