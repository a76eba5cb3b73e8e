from dataclasses import replace

import pytest

from specbench.metrics.registry import measure
from specbench.records import AnswerCheck, MemoryRecord

TARGET = MemoryRecord(
    target="demo",
    drafter="none",
    weights_bytes=1000,
    kv_bytes_per_token=10,
    peak_allocated_bytes=1500,
    process_peak_bytes=9000,
)
PAIR = MemoryRecord(
    target="demo",
    drafter="draft",
    weights_bytes=1200,
    kv_bytes_per_token=12,
    peak_allocated_bytes=1900,
    process_peak_bytes=9100,
)


def test_a_cell_shows_the_pair_and_the_baseline_only_the_target(cell, baseline_cell):
    pair = measure(replace(cell, memory_target=TARGET, memory_pair=PAIR))
    alone = measure(replace(baseline_cell, memory_target=TARGET))
    assert (pair["weights_bytes"], alone["weights_bytes"]) == (1200, 1000)
    assert (pair["kv_bytes_per_token"], alone["kv_bytes_per_token"]) == (12, 10)
    assert (pair["peak_allocated_bytes"], alone["peak_allocated_bytes"]) == (1900, 1500)
    assert "speculation_cost_bytes" not in alone


def test_speculation_costs_the_difference_of_the_peaks_in_tokens_of_the_targets_context(cell):
    given = measure(replace(cell, memory_target=TARGET, memory_pair=PAIR))
    assert given["speculation_cost_bytes"] == 400
    assert given["speculation_cost_tokens"] == 40


@pytest.mark.parametrize("process_peak_bytes", [9000, 9_999_999, None])
def test_without_the_cuda_allocator_the_cost_is_computed(cell, process_peak_bytes):
    """The peaks of a process are noise next to a small drafter: they change nothing."""
    pair = replace(
        PAIR,
        peak_allocated_bytes=None,
        process_peak_bytes=process_peak_bytes,
        state_bytes_per_row=7,
    )
    given = measure(replace(cell, memory_target=TARGET, memory_pair=pair))
    longest = max(r.num_prompt_tokens + r.num_output_tokens for r in cell.requests)
    assert given["speculation_cost_bytes"] == 200 + 2 * longest + 7
    assert given["speculation_cost_tokens"] == (207 + 2 * longest) / 10


def test_an_unmeasured_peak_is_absent_and_never_zero(cell):
    given = measure(replace(cell, memory_target=TARGET))
    assert not [name for name in given if name.endswith("_bytes")]


def test_energy_is_divided_by_all_output_tokens(cell):
    assert "joules_per_token" not in measure(cell)
    metered = tuple(replace(r, energy_j=6.5) for r in cell.requests)
    # 8 + 5 tokens
    assert measure(replace(cell, requests=metered))["joules_per_token"] == pytest.approx(1.0)


def test_num_checked_at_once_is_a_mean_over_all_requests(cell):
    assert "num_checked_at_once" not in measure(cell)
    first, second = cell.requests
    check = AnswerCheck(num_drafted=9, num_accepted=4, num_emitted=5, seconds=0.1)
    checked = replace(cell, requests=(replace(first, answer_check=check), second))
    assert measure(checked)["num_checked_at_once"] == 2.5


def test_rounds_output_tokens_and_failures_are_counted(cell):
    given = measure(cell)
    assert (given["num_rounds"], given["num_output_tokens"], given["num_failed"]) == (5, 13, 0)
