"""Counts and reports of a server: acceptance by both conventions, rounds and KV tokens."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from specbench.metrics import acceptance, memory, rounds, speed
from specbench.metrics.acceptance import vllm_counts
from specbench.metrics.cell import CellData
from specbench.metrics.rounds import break_even_length, round_s
from specbench.metrics.speed import decode_tokens_per_s
from specbench.metrics.summary import summarize
from specbench.metrics.validity import cell_warnings, judge_cell
from specbench.records import Kind, RequestCounts
from tests.served_sessions import Sweep, cell_of, served_sweep

# 24 tokens after the first in 8 rounds that accept 1, 3, 1, 1 and 2 times 0, 1, 2, 3 and 4 drafts.
NUM_REQUESTS = 8 * 6


@pytest.fixture(scope="module")
def cell() -> CellData:
    return cell_of(served_sweep(), 4)


def counted(cell: CellData, change: Callable[[RequestCounts], RequestCounts]) -> CellData:
    """The cell with other counts."""
    return replace(cell, requests=tuple(replace(r, counts=change(r.counts)) for r in cell.requests))


def with_sessions(cell: CellData, **changed: object) -> CellData:
    return replace(cell, servers=tuple(replace(s, **changed) for s in cell.servers))


def test_acceptance_is_that_of_the_requests_own_counts(cell):
    assert acceptance.mean_acceptance_length(cell) == 1 + 16 / 8
    assert acceptance.mean_acceptance_length_per_request(cell) == 1 + 16 / 8
    assert acceptance.acceptance_rate(cell) == 16 / 32
    assert acceptance.acceptance_histogram(cell) == tuple(NUM_REQUESTS * n for n in (1, 3, 1, 1, 2))
    assert acceptance.acceptance_rate_per_position(cell) == (7 / 8, 4 / 8, 3 / 8, 2 / 8)
    assert rounds.num_rounds(cell) == NUM_REQUESTS * 8
    counts = vllm_counts(cell)
    assert counts is not None
    assert (counts.num_spec_steps, counts.num_spec_tokens) == (NUM_REQUESTS * 8, 4)


def test_rounds_without_drafts_count_even_if_the_histogram_omits_them(cell):
    """Two more rounds than in the histogram, as of a lookup that found nothing."""
    other = counted(cell, lambda counts: replace(counts, num_rounds=10))
    assert acceptance.mean_acceptance_length(other) == 1 + 16 / 10
    assert acceptance.mean_acceptance_length_when_drafted(other) == 1 + 16 / 8
    assert acceptance.acceptance_rate_per_position(other)[0] == 7 / 10
    assert acceptance.acceptance_histogram(other)[0] == NUM_REQUESTS * 3
    assert not judge_cell(other)


def test_metrics_by_position_are_absent_without_a_histogram(cell):
    other = counted(cell, lambda counts: replace(counts, num_by_accepted=None))
    assert acceptance.mean_acceptance_length(other) == 1 + 16 / 8
    assert acceptance.acceptance_rate_per_position(other) is None
    assert acceptance.conditional_acceptance_rate(other) is None
    assert acceptance.acceptance_histogram(other) is None
    assert acceptance.alpha(other) is None
    assert vllm_counts(other) is None


def test_a_request_without_counts_leaves_the_cell_to_the_servers_counters(cell):
    first, *rest = cell.requests
    other = replace(cell, requests=(replace(first, counts=None), *rest))
    assert acceptance.mean_acceptance_length(other) == pytest.approx(1 + 16.5 / 8)
    assert acceptance.mean_acceptance_length_per_request(other) == 1 + 16 / 8
    assert rounds.num_rounds(other) == NUM_REQUESTS * 8
    assert not judge_cell(other)


def test_the_engines_own_figure_counts_past_the_ends_of_answers(cell):
    """Every other prompt accepts one draft past its end: 16.5 per request instead of 16."""
    assert acceptance.mean_acceptance_length_of_engine(cell) == pytest.approx(1 + 16.5 / 8)
    assert acceptance.num_overshot(cell) == NUM_REQUESTS / 2
    assert acceptance.mean_acceptance_length(cell) == 1 + 16 / 8


def without_counts(cell: CellData) -> CellData:
    """As with a server's defaults: no counts per request, only counters."""
    return replace(cell, requests=tuple(replace(r, counts=None) for r in cell.requests))


def test_counters_give_acceptance_and_rounds_if_requests_do_not(cell):
    plain = without_counts(cell)
    # Every other request of 8 rounds accepts one draft past its end: 16.5 on average.
    assert acceptance.mean_acceptance_length(plain) == pytest.approx(1 + 16.5 / 8)
    assert acceptance.mean_acceptance_length_of_engine(plain) == pytest.approx(1 + 16.5 / 8)
    assert acceptance.acceptance_rate(plain) == pytest.approx(16.5 / 32)
    assert acceptance.acceptance_rate_per_position(plain) == pytest.approx(
        (7.5 / 8, 4 / 8, 3 / 8, 2 / 8)
    )
    assert rounds.num_rounds(plain) == NUM_REQUESTS * 8
    assert round_s(plain) == pytest.approx(round_s(cell))
    assert break_even_length(plain) == pytest.approx(break_even_length(cell))
    assert not judge_cell(plain)


def test_counters_are_those_of_the_cells_own_setting():
    """Four concurrent requests ask twice as much; the other setting's counters are not included."""
    for rows, num_requests in ((1, NUM_REQUESTS), (4, 2 * NUM_REQUESTS)):
        plain = without_counts(cell_of(served_sweep(), 4, rows))
        assert rounds.num_rounds(plain) == num_requests * 8
        assert acceptance.mean_acceptance_length(plain) == pytest.approx(1 + 16.5 / 8)


def test_without_counts_and_counters_there_is_no_figure_of_rounds(cell):
    loads = tuple(replace(load, counters={}, num_accepted_at=()) for load in cell.loads)
    plain = without_counts(with_sessions(cell, client=loads))
    for figure in (round_s, break_even_length, acceptance.mean_acceptance_length):
        assert figure(plain) is None
    assert round_s(cell_of(served_sweep(), 0)) is not None


def test_acceptance_is_unknown_if_fewer_tokens_than_rounds_were_counted(cell):
    """SGLang counts the tokens of all rounds, but not all of those of aborted requests."""

    def of(num_tokens: int) -> CellData:
        counters = {"num_rounds": 40.0, "num_tokens": num_tokens, "num_requests": 6.0}
        loads = tuple(replace(load, counters=counters) for load in cell.loads)
        return without_counts(with_sessions(cell, client=loads))

    assert acceptance.mean_acceptance_length(of(126)) == 3.0
    assert acceptance.mean_acceptance_length(of(40)) is None


def test_a_failed_request_keeps_the_counters_rounds_per_token(cell):
    """Counters have 48 requests, of which one failed in the client."""
    plain = without_counts(cell)
    first, *rest = plain.requests
    torn = replace(plain, requests=(replace(first, finish_reason="failed"), *rest))
    assert round_s(torn) == pytest.approx(round_s(replace(plain, requests=tuple(rest))))


def test_round_seconds_are_decode_seconds_per_counted_round():
    cell = cell_of(served_sweep(Sweep(wobble=0.0, differing=0.0)), 4)
    assert round_s(cell) == pytest.approx(0.24 / 8)  # 24 tokens in 8 rounds
    # A step of K = 0 is 0.48 s / 24 tokens.
    assert break_even_length(cell) == pytest.approx(0.24 / 8 / (0.48 / 24))
    base = cell_of(served_sweep(Sweep(wobble=0.0)), 0)
    assert round_s(base) == pytest.approx(0.02)
    assert break_even_length(base) is None


def test_tokens_in_the_first_event_take_no_decode_seconds():
    cell = cell_of(served_sweep(Sweep(wobble=0.0, differing=0.0)), 4)
    early = replace(cell, requests=tuple(replace(r, num_first=4) for r in cell.requests))
    assert decode_tokens_per_s(early) == pytest.approx(21 / 0.24)
    # 21 of 24 tokens are timed, and so are as many of the 8 rounds.
    assert round_s(early) == pytest.approx(0.24 / (8 * 21 / 24))


def test_a_step_of_a_server_is_decode_seconds_per_timed_token():
    cell = cell_of(served_sweep(Sweep(wobble=0.0)), 0)
    first, *rest = (replace(r, num_first=4) for r in cell.requests)
    assert round_s(replace(cell, requests=(first, *rest))) == pytest.approx(0.48 / 21)
    untimed = replace(first, decode_s=None)
    assert round_s(replace(cell, requests=(untimed, *rest))) == pytest.approx(0.48 / 21)


def test_speculation_reduces_the_kv_cache_capacity(cell):
    assert memory.kv_capacity_tokens(cell) == 18_000
    assert memory.kv_capacity_lost_tokens(cell) == 2_000
    assert memory.kv_capacity_lost_tokens(cell_of(served_sweep(), 0)) is None
    assert memory.kv_capacity_lost_tokens(with_sessions(cell, kv_tokens=None)) is None


def test_preemptions_are_summed_over_sessions(cell):
    assert speed.num_preemptions(cell) == 4
    first, *rest = cell.servers
    assert (
        speed.num_preemptions(replace(cell, servers=(replace(first, num_preemptions=None), *rest)))
        is None
    )


def test_the_built_in_engine_has_no_server_metrics(steady):
    (summary,) = summarize([steady])
    assert not {"num_cycles", "num_preemptions", "kv_capacity_tokens"} & set(summary.metrics)


def test_a_gpu_that_throttled_under_either_side_makes_a_cell_invalid(cell):
    hot = {"throttle_reasons": ("hw_slowdown",)}
    reason = Kind.SERVER_THROTTLED(reasons=("hw_slowdown",))
    assert judge_cell(with_sessions(cell, **hot)) == (reason,)
    base = tuple(replace(server, **hot) for server in cell.baseline_servers)
    assert judge_cell(replace(cell, baseline_servers=base)) == (reason,)


def test_a_server_at_its_gpus_power_cap_is_noted(cell):
    capped = with_sessions(cell, throttle_reasons=("sw_power_cap",))
    assert judge_cell(capped) == ()
    assert Kind.SERVER_POWER_CAPPED() in cell_warnings(capped)


def test_few_rounds_or_impossible_counts_make_a_cell_invalid(cell):
    few = replace(cell, requests=cell.requests[:3])
    assert Kind.TOO_FEW_ROUNDS(needed=30) in judge_cell(few)
    wrong = counted(cell, lambda counts: replace(counts, num_accepted=40))
    assert Kind.LENGTH_OUTSIDE in {reason.kind for reason in judge_cell(wrong)}
    torn = counted(cell, lambda counts: replace(counts, num_rounds=5))
    assert Kind.HISTOGRAM_NEGATIVE() in judge_cell(torn)


def test_texts_are_compared_if_a_server_returns_no_token_ids(cell):
    def hide_ids(requests):
        return tuple(replace(r, output_ids=(), num_tokens=25) for r in requests)

    same = replace(cell, requests=hide_ids(cell.requests), baseline=hide_ids(cell.baseline))
    assert summarize([same])[0].warnings == ()
    other = replace(same, requests=(replace(same.requests[0], text="else"), *same.requests[1:]))
    assert summarize([other])[0].warnings == (Kind.OUTPUTS_DIFFER(differing=1, compared=48),)
