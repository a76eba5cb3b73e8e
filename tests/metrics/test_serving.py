"""Three requests over two rows; the third starts when the first is done.

K = 3  prefill   two rows: 5 tokens, 3 tokens   prefill   4 tokens   one row: 2 tokens
       0 .. 0.2  0.2 .. 0.3 .. 0.4              .. 0.5    .. 0.6     .. 0.7 s
K = 0  prefill   two rows: 4 * 2 tokens         prefill   2 * 2      one row: 2 * 1
       0 .. 0.2  0.2 .. 1.0                     .. 1.1    .. 1.5     .. 1.9 s
"""

from dataclasses import replace

import pytest

from specbench.metrics.cell import CellData, Pass
from specbench.metrics.pairs import Span, busy_span, paired_cpu, paired_decode, paired_end_to_end
from specbench.metrics.registry import measure
from specbench.records import (
    AnswerCheck,
    CellKey,
    MemoryRecord,
    PassRecord,
    RequestRecord,
    RoundLog,
    RoundTimeline,
)
from tests.cell_keys import with_axes
from tests.decide.cells import with_timeline
from tests.made_records import made_request
from tests.metrics.conftest import BASE_KEY, KEY
from tests.served_sessions import cell_of, served_sweep

STREAM = with_axes(KEY, concurrency=2)
BASE = with_axes(BASE_KEY, concurrency=2)


def served(
    key: CellKey,
    prompt: str,
    emitted: tuple[int, ...],
    arrived_s: float,
    first_s: float,
    end_s: float,
) -> RequestRecord:
    """A request with its first token at `first_s` and its last one at `end_s`."""
    rounds = RoundLog(
        num_drafted=tuple(n - 1 for n in emitted),
        num_accepted=tuple(n - 1 for n in emitted),
        num_emitted=emitted,
        round_s=(0.1,) * len(emitted),
    )
    return made_request(
        key.id,
        prompt,
        rounds,
        ttft_s=first_s - arrived_s,
        decode_s=end_s - first_s,
        total_s=end_s - arrived_s,
        arrived_s=arrived_s,
        queue_s=0.0,
    )


def spec_pass(block_id: str) -> Pass:
    requests = (
        served(STREAM, "a", (3, 1), 0.0, 0.2, 0.4),
        served(STREAM, "b", (2, 2, 2), 0.0, 0.2, 0.6),
        served(STREAM, "c", (2, 2), 0.4, 0.5, 0.7),
    )
    timeline = RoundTimeline(
        at_s=(0.2, 0.3, 0.5, 0.6),
        seconds=(0.1,) * 4,
        num_speculative_tokens=(3, 3, 3, 3),
        num_live=(2, 2, 2, 1),
        num_rows=(2, 2, 2, 2),
        num_emitted=(5, 3, 4, 2),
    )
    record = PassRecord(cell_id=STREAM.id, seconds=0.7, rounds=timeline, kv_bytes=640)
    return Pass(block_id, record, requests)


def base_pass(block_id: str) -> Pass:
    requests = (
        served(BASE, "a", (1,) * 4, 0.0, 0.2, 1.0),
        served(BASE, "b", (1,) * 6, 0.0, 0.2, 1.5),
        served(BASE, "c", (1,) * 4, 1.0, 1.1, 1.9),
    )
    timeline = RoundTimeline(
        at_s=(0.2, 0.4, 0.6, 0.8, 1.1, 1.3, 1.5, 1.7),
        seconds=(0.2,) * 8,
        num_speculative_tokens=(0,) * 8,
        num_live=(2, 2, 2, 2, 2, 2, 1, 1),
        num_rows=(2, 2, 2, 2, 2, 2, 1, 1),
        num_emitted=(2, 2, 2, 2, 2, 2, 1, 1),
    )
    return Pass(block_id, PassRecord(cell_id=BASE.id, seconds=1.9, rounds=timeline), requests)


def of_passes(key: CellKey, spec: list[Pass], base: list[Pass]) -> CellData:
    return CellData(
        key=key,
        requests=tuple(request for p in spec for request in p.requests),
        baseline=tuple(request for p in base for request in p.requests),
        passes=tuple(spec),
        baseline_passes=tuple(base),
    )


@pytest.fixture
def stream() -> CellData:
    """Two passes, next to those of the baseline."""
    blocks = ("first", "second")
    return of_passes(STREAM, [spec_pass(b) for b in blocks], [base_pass(b) for b in blocks])


def test_busy_tokens_count_rounds_and_first_tokens_between_the_first_and_last_full_round(stream):
    # 0.2 .. 0.6 s: 5 + 3 + 4 tokens of rounds and the first token of c, at 0.5 s.
    assert measure(stream)["busy_tokens_per_s"] == pytest.approx(13 / 0.4)


def test_tokens_of_a_check_after_prefill_count_with_its_first_token(stream):
    check = AnswerCheck(num_drafted=9, num_accepted=6, num_emitted=7, seconds=0.01)
    first, *later_passes = stream.passes
    *early, late = first.requests
    # Tokens of the last request are emitted while all rows are busy, those of the others before.
    given = tuple(replace(request, answer_check=check) for request in (*early, late))
    busy = replace(stream, passes=(first._replace(requests=given), *later_passes))
    assert measure(busy)["busy_tokens_per_s"] == pytest.approx((13 + 7 + 13) / 0.8)


def test_a_round_with_an_idle_row_counts_only_between_full_ones(stream):
    hole = with_timeline(stream, num_live=(2, 1, 2, 1))
    assert measure(hole)["busy_tokens_per_s"] == pytest.approx(13 / 0.4)
    late = with_timeline(stream, num_live=(1, 2, 2, 1))
    # The first pass has 0.3 .. 0.6 s with 3 + 4 + 1 tokens, the second 0.4 s with 13.
    assert measure(late)["busy_tokens_per_s"] == pytest.approx((8 + 13) / (0.3 + 0.4))


def test_a_pass_that_is_never_full_has_no_busy_rate(stream):
    wide = replace(stream, key=with_axes(STREAM, concurrency=4))
    assert "busy_tokens_per_s" not in measure(wide)
    assert measure(wide)["busy_share"] == 0.0
    assert paired_decode(wide) is None


def test_aggregate_tokens_per_s_cover_the_whole_pass(stream):
    assert measure(stream)["aggregate_tokens_per_s"] == pytest.approx(17 / 0.7)
    assert measure(stream)["busy_share"] == pytest.approx(0.4 / 0.7)


def test_user_tokens_per_s_is_the_mean_speed_of_one_request(stream):
    # a: 4 tokens in 0.2 s, b: 6 in 0.4 s, c: 4 in 0.2 s.
    assert measure(stream)["user_tokens_per_s"] == pytest.approx(20.0)


def test_padding_is_computed_but_unused(stream):
    assert measure(stream)["padding_efficiency"] == pytest.approx(7 / 8)


def test_the_speedup_of_many_rows_is_of_busy_tokens_per_second(stream):
    # K = 0: 0.2 .. 1.5 s with 12 tokens of rounds and the first token of c.
    given = measure(stream)
    assert given["decode_speedup"] == pytest.approx((13 / 0.4) / (13 / 1.3))
    assert given["end_to_end_speedup"] == pytest.approx(1.9 / 0.7)
    assert "cpu_speedup" not in given


def test_a_pass_is_the_unit_and_is_paired_with_its_own_block(stream):
    seconds = paired_decode(stream)
    assert seconds is not None
    assert seconds.base_s == pytest.approx([1.3, 1.3])
    assert seconds.spec_tokens == pytest.approx([13, 13])
    other = replace(stream, baseline_passes=(stream.baseline_passes[0],))
    whole = paired_end_to_end(other)
    assert whole is not None
    assert whole.spec_s == pytest.approx([0.7])
    assert paired_cpu(stream) is None


def test_with_arrivals_at_a_rate_the_speedup_is_over_seconds_per_token(stream):
    spec = replace(stream, key=with_axes(STREAM, request_rate=2.0))
    # Decoding: 0.8 + 1.3 + 0.8 s against 0.2 + 0.4 + 0.2 s, 14 tokens each.
    assert measure(spec)["decode_speedup"] == pytest.approx(2.9 / 0.8)
    # From arrival: 1.0 + 1.5 + 0.9 s against 0.4 + 0.6 + 0.3 s.
    assert measure(spec)["end_to_end_speedup"] == pytest.approx(3.4 / 1.3)
    seconds = paired_decode(spec)
    assert seconds is not None
    assert seconds.spec_s == pytest.approx([0.8, 0.8])  # a pass is still the unit


def test_a_single_token_that_ends_a_servers_busy_span_counts():
    requests = (
        served(STREAM, "a", (3,), 0.0, 0.1, 0.4),
        served(STREAM, "b", (9,), 0.0, 0.1, 1.0),
        served(STREAM, "c", (), 0.4, 0.6, 0.6),
    )
    record = PassRecord(cell_id=STREAM.id, seconds=1.0, rounds=None)
    span = busy_span(Pass("first", record, requests), 2)
    # 0 .. 0.6 s: 4 tokens of a, the first of b and 5 of its next 9, and that of c.
    assert span == Span(pytest.approx(0.6), pytest.approx(4 + 6 + 1))


def test_a_first_token_at_the_end_of_the_last_full_round_counts_and_one_at_the_start_does_not():
    requests = (
        served(STREAM, "a", (3, 1), 0.0, 0.25, 0.75),
        served(STREAM, "b", (2, 2), 0.0, 0.25, 0.75),
        served(STREAM, "c", (2,), 0.5, 0.75, 1.0),
    )
    timeline = RoundTimeline(
        at_s=(0.25, 0.5, 0.75),
        seconds=(0.25,) * 3,
        num_speculative_tokens=(3,) * 3,
        num_live=(2, 2, 1),
        num_rows=(2,) * 3,
        num_emitted=(5, 3, 2),
    )
    record = PassRecord(cell_id=STREAM.id, seconds=1.0, rounds=timeline)
    assert busy_span(Pass("first", record, requests), 2) == Span(0.5, 5 + 3 + 1)


def test_tokens_before_and_after_a_servers_busy_span_do_not_count():
    requests = (
        served(STREAM, "a", (3,), 0.0, 0.25, 1.0),
        served(STREAM, "b", (5,), 0.5, 0.75, 2.0),
        served(STREAM, "c", (4,), 2.0, 2.25, 3.0),
    )
    apart = PassRecord(cell_id=STREAM.id, seconds=3.0, rounds=None)
    span = busy_span(Pass("first", apart, requests), 2)
    # 0.5 .. 1 s: 2 of the 3 later tokens of a, the first of b and 1 of its next 5.
    assert span == Span(pytest.approx(0.5), pytest.approx(2 + 1 + 1))


def test_a_request_without_a_start_time_leaves_no_busy_rate(stream):
    first = stream.passes[0]
    silent = tuple(replace(r, arrived_s=None) for r in first.requests)
    alone = replace(stream, passes=(first._replace(requests=silent),))
    assert "busy_tokens_per_s" not in measure(alone)


def test_a_cell_at_concurrency_1_has_no_pass_metrics(cell):
    given = measure(cell)
    absent = "busy_tokens_per_s aggregate_tokens_per_s busy_share padding_efficiency num_passes"
    assert not set(absent.split()) & set(given)


@pytest.mark.parametrize(("percent", "needed"), [(90, 10), (95, 20), (99, 100)])
def test_a_latency_percentile_needs_one_request_above_it(stream, percent, needed):
    names = [f"{of}_p{percent}" for of in ("ttft_s", "tpot_s", "request_latency_s")]
    template = stream.requests[0]
    many = tuple(
        replace(template, ttft_s=float(i), decode_s=float(i) * 4, total_s=float(i) * 10)
        for i in range(needed + 1)
    )
    given = measure(replace(stream, requests=many))
    share = needed * percent / 100
    assert [given[name] for name in names] == pytest.approx([share, share, share * 10])
    given = measure(replace(stream, requests=many[: needed - 1]))
    assert not set(names) & set(given)


def test_requests_and_input_tokens_are_counted_per_second_of_the_passes(stream):
    given = measure(stream)
    seconds = sum(served.record.seconds for served in stream.passes)
    assert given["requests_per_s"] == pytest.approx(len(stream.requests) / seconds)
    assert given["input_tokens_per_s"] == pytest.approx(10 * len(stream.requests) / seconds)
    assert given["request_latency_s"] == pytest.approx(0.4)  # of 0.4, 0.6 and 0.3


def test_a_failed_request_lowers_the_request_rate(stream):
    failed = RequestRecord.failed(
        "gone", cell_id=STREAM.id, prompt_id="a", turn=0, repeat=0, seed=0, num_prompt_tokens=0
    )
    given = measure(replace(stream, requests=(failed, *stream.requests[1:])))
    whole = measure(stream)
    share = 1 - 1 / len(stream.requests)
    for name in ("requests_per_s", "input_tokens_per_s"):
        assert given[name] == pytest.approx(share * whole[name])


def test_requests_per_s_at_concurrency_1_follow_from_latency(cell):
    given = measure(cell)
    total_s = [request.total_s for request in cell.requests]
    assert given["requests_per_s"] == pytest.approx(len(total_s) / sum(total_s))
    assert given["request_latency_s"] == pytest.approx(sum(total_s) / 2)


def test_inter_chunk_latency_comes_from_rounds_or_streamed_chunks(cell):
    assert measure(cell)["inter_chunk_latency_s"] == pytest.approx(0.16)  # of 5 rounds
    gaps = [(0.001, 0.004), (0.009,)]
    streamed = tuple(
        replace(r, rounds=None, chunk_s=gap) for r, gap in zip(cell.requests, gaps, strict=True)
    )
    served = replace(cell, requests=streamed, servers=cell_of(served_sweep(), 4).servers)
    given = measure(served)
    assert given["inter_chunk_latency_s"] == pytest.approx(0.004)
    assert "inter_chunk_latency_s_p95" not in given
    many = tuple(replace(r, chunk_s=tuple(i / 1000 for i in range(101))) for r in streamed)
    assert measure(replace(served, requests=many))["inter_chunk_latency_s_p99"] == pytest.approx(
        0.099, rel=0.01
    )


def test_rounds_of_overlapping_requests_are_not_chunks(stream):
    """Between two rounds of one request, others are prefilled."""
    assert "inter_chunk_latency_s" not in measure(stream)


def test_waiting_counts_from_arrival(stream):
    waits = tuple(
        replace(request, queue_s=queue_s)
        for request, queue_s in zip(stream.requests[:3], (0.0, 0.1, 0.4), strict=True)
    )
    assert measure(replace(stream, requests=waits))["queue_s"] == 0.1


def test_the_mean_k_is_shown_for_an_adaptive_k(stream):
    assert "mean_num_speculative_tokens" not in measure(stream)
    adaptive = replace(stream, key=with_axes(STREAM, adaptive=True))
    changed = with_timeline(adaptive, num_speculative_tokens=(0, 1, 2, 3))
    # 0 1 2 3 in the first pass, 3 3 3 3 in the second.
    assert measure(changed)["mean_num_speculative_tokens"] == pytest.approx(18 / 8)
    assert not {"draft_cost_ratio", "conditional_acceptance_rate"} & set(measure(changed))


def test_seconds_of_calibration_are_those_of_all_passes_of_an_adaptive_cell(stream):
    assert "calibration_s" not in measure(stream)
    adaptive = replace(stream, key=with_axes(STREAM, adaptive=True))
    passes = tuple(
        served._replace(record=replace(served.record, calibration_s=seconds))
        for served, seconds in zip(adaptive.passes, (0.25, 0.5), strict=True)
    )
    assert measure(replace(adaptive, passes=passes))["calibration_s"] == 0.75
    assert measure(adaptive)["calibration_s"] == 0.0


def test_kv_bytes_are_allocated_bytes_or_those_of_the_longest_request(stream, cell):
    assert measure(stream)["kv_bytes"] == 640
    record = MemoryRecord(target="demo", drafter="draft", weights_bytes=1, kv_bytes_per_token=3)
    alone = replace(cell, memory_pair=record)
    assert measure(alone)["kv_bytes"] == 3 * (10 + 8)
    assert "kv_bytes" not in measure(cell)


def test_failed_requests_give_no_tokens(stream):
    first = stream.passes[0]
    failed = replace(first.requests[0], finish_reason="failed", error="refused", arrived_s=None)
    left = first._replace(requests=(failed, *first.requests[1:]))
    alone = replace(stream, passes=(left,))
    assert measure(alone)["aggregate_tokens_per_s"] == pytest.approx(12 / 0.7)
