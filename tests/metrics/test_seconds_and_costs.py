"""Speculative rounds take .16 .16 .12 | .16 .15 = .75 s; the baseline 7 + 4 steps of .10 s."""

from dataclasses import replace

import pytest

from specbench.metrics.pairs import paired_decode, prompt_seconds
from specbench.metrics.registry import measure
from specbench.metrics.rounds import overhead_ratio, round_s_p95
from specbench.metrics.speed import (
    cpu_speedup,
    decode_speedup,
    decode_tokens_per_s,
    end_to_end_speedup,
    end_to_end_tokens_per_s,
    prefill_s,
    tpot_s,
    ttft_s,
)
from specbench.metrics.stalls import seconds_per_round
from specbench.records import ForwardCost, RoundLog
from tests.cell_keys import with_axes

UNSPLIT = {"draft_s": None, "verify_s": None}


def forward(
    role, num_tokens: int, seconds: float, count: int = 1, round_s: float | None = 0.16
) -> ForwardCost:
    return ForwardCost(
        cell_id="",
        role=role,
        num_tokens=num_tokens,
        num_per_round=count,
        seconds=seconds,
        num_samples=3,
        round_s=round_s,
    )


def test_decode_speed_excludes_the_first_token(cell):
    # 8 + 5 tokens, less the two that prefill gave, in 0.44 + 0.31 s.
    assert decode_tokens_per_s(cell) == pytest.approx((7 + 4) / 0.75)


def test_seconds_of_a_prompt_are_for_as_many_tokens_as_without_drafts(cell):
    twice = tuple(replace(r, num_tokens=1 + 2 * r.num_timed_tokens) for r in cell.requests)
    longer = prompt_seconds(replace(cell, requests=twice))
    for prompt, (base_s, spec_s) in prompt_seconds(cell).items():
        assert longer[prompt] == pytest.approx((base_s, spec_s / 2))


def test_decode_speedup_is_a_ratio_of_sums(cell):
    assert decode_speedup(cell) == pytest.approx((0.7 + 0.4) / (0.44 + 0.31))


def test_end_to_end_speedup_counts_prefill(cell):
    assert end_to_end_speedup(cell) == pytest.approx((0.9 + 0.6) / (0.64 + 0.51))


def test_whole_requests_have_their_first_tokens_and_prefills(cell):
    assert end_to_end_tokens_per_s(cell) == pytest.approx((8 + 5) / (0.64 + 0.51))
    several = replace(cell, key=with_axes(cell.key, concurrency=2))
    assert end_to_end_tokens_per_s(several) is None


def test_cpu_speedup_is_absent_until_cpu_time_is_measured(cell):
    assert cpu_speedup(cell) is None
    timed = replace(
        cell,
        requests=tuple(replace(r, cpu_s=1.0) for r in cell.requests),
        baseline=tuple(replace(r, cpu_s=2.5) for r in cell.baseline),
    )
    assert cpu_speedup(timed) == pytest.approx(2.5)


def test_the_speedup_is_per_output_token_if_lengths_differ(cell):
    # Twice the tokens after the first, in twice the time: no faster and no slower than before.
    longer = tuple(
        replace(
            base,
            output_ids=tuple(range(1 + 2 * (base.num_output_tokens - 1))),
            decode_s=2 * (base.decode_s or 0),
        )
        for base in cell.baseline
    )
    sampled = replace(cell, key=with_axes(cell.key, temperature=1.0), baseline=longer)
    assert decode_speedup(sampled) == pytest.approx((0.7 + 0.4) / (0.44 + 0.31))


def test_a_failed_side_takes_its_pair_out_of_the_speedup(cell):
    failed = replace(cell.baseline[0], finish_reason="failed", error="out of memory")
    one_pair = replace(cell, baseline=(failed, cell.baseline[1]))
    assert decode_speedup(one_pair) == pytest.approx(0.4 / 0.31)


def test_turns_and_repeats_of_a_prompt_add_up(cell):
    # A second turn of prompt a: 3 times as slow at K = 0, twice as slow at K = 3.
    spec, base = cell.requests[0], cell.baseline[0]
    second = replace(spec, turn=1, decode_s=0.88), replace(base, turn=1, decode_s=2.1)
    longer = replace(
        cell, requests=(*cell.requests, second[0]), baseline=(*cell.baseline, second[1])
    )
    assert decode_speedup(longer) == pytest.approx((0.7 + 2.1 + 0.4) / (0.44 + 0.88 + 0.31))


def test_a_request_that_ended_with_its_first_token_has_no_decode_time_to_compare(cell):
    spec, base = (
        replace(r, output_ids=(1,), decode_s=0.0) for r in (cell.requests[0], cell.baseline[0])
    )
    short = replace(cell, requests=(spec, cell.requests[1]), baseline=(base, cell.baseline[1]))
    seconds = paired_decode(short)
    assert seconds is not None
    assert seconds.base_s.tolist() == pytest.approx([0.4])
    assert decode_speedup(replace(cell, requests=(spec,), baseline=(base,))) is None


def test_rows_that_overlap_have_no_speedup_from_summed_seconds(cell):
    assert decode_speedup(replace(cell, key=with_axes(cell.key, concurrency=8))) is None


def test_latencies_are_medians_over_requests(cell):
    third = replace(cell.requests[0], prompt_id="c", ttft_s=9.0, prefill_s=9.0)
    cell = replace(cell, requests=(*cell.requests, third))
    assert ttft_s(cell) == 0.2
    assert prefill_s(cell) == 0.1


def test_time_per_output_token_is_absent_below_two_tokens(cell, request_of):
    assert tpot_s(cell) == pytest.approx((0.44 / 7 + 0.31 / 4) / 2)
    one_token = replace(request_of("a", None), output_ids=(1,), decode_s=0.0)
    assert tpot_s(replace(cell, requests=(one_token,))) is None
    assert decode_tokens_per_s(replace(cell, requests=(one_token,))) is None


def test_draft_verify_and_other_seconds_sum_to_the_round(cell):
    given = measure(cell)
    assert given["round_s"] == pytest.approx(0.75 / 5)
    assert given["round_s_p50"] == pytest.approx(0.16)
    assert given["draft_s"] == pytest.approx(0.12 / 5)
    assert given["verify_s"] == pytest.approx(0.11)
    assert given["other_s"] == pytest.approx((0.75 - 0.12 - 0.55) / 5)


def test_a_round_verified_together_with_the_prompt_has_no_seconds_of_its_own(cell):
    """Its tokens come with the first one, and nothing is slower or faster for it."""
    first, second = (replace(r, rounds=replace(r.rounds, **UNSPLIT)) for r in cell.requests)
    log = first.rounds
    merged_log = replace(
        log,
        num_drafted=(2, *log.num_drafted),
        num_accepted=(2, *log.num_accepted),
        num_emitted=(3, *log.num_emitted),
        round_s=(0.0, *log.round_s),
    )
    output_ids = (*first.output_ids, 97, 98, 99)
    merged = replace(first, rounds=merged_log, output_ids=output_ids, num_first=4)

    before, after = (
        measure(replace(cell, requests=(request, second))) for request in (first, merged)
    )

    assert after["num_rounds"] == before["num_rounds"] + 1
    timed = ("round_s", "round_s_p50", "inter_chunk_latency_s", "tpot_s", "decode_speedup")
    assert [after[name] for name in timed] == [before[name] for name in timed]
    assert seconds_per_round(merged) == seconds_per_round(first)


def test_costs_are_in_baseline_steps(cell):
    given = measure(cell)
    assert given["draft_cost_ratio"] == pytest.approx(0.024 / (3 * 0.10))
    assert given["verify_cost_ratio"] == pytest.approx(0.11 / 0.10)
    h = (0.75 - 0.12 - 0.55) / 5 / 0.10
    assert given["break_even_length"] == pytest.approx(3 * 0.08 + 1.1 + h)


def test_speedup_is_the_acceptance_length_over_its_break_even(cell):
    # Exact when no round is cut short, so that tokens = rounds * acceptance length.
    given = measure(cell)
    assert given["decode_speedup"] == pytest.approx(
        given["mean_acceptance_length"] / given["break_even_length"]
    )


@pytest.mark.parametrize("axes", [{"adaptive": True}, {"p_min": 0.6}])
def test_rounds_that_choose_to_draft_less_do_not_show_the_cost_of_one_of_k_drafts(cell, axes):
    assert "draft_cost_ratio" not in measure(replace(cell, key=with_axes(cell.key, **axes)))


def test_draft_and_verify_costs_are_absent_if_not_timed_separately(cell):
    whole = tuple(
        replace(r, rounds=replace(r.rounds, draft_s=None, verify_s=None)) for r in cell.requests
    )
    given = measure(replace(cell, requests=whole))
    absent = {"draft_s", "verify_s", "other_s", "draft_cost_ratio", "verify_cost_ratio"}
    assert not absent & set(given)
    assert given["break_even_length"] == pytest.approx(1.5)
    assert not absent & set(measure(replace(cell, requests=(whole[0], cell.requests[1]))))


def test_the_baseline_has_seconds_and_no_costs(baseline_cell):
    given = measure(baseline_cell)
    assert given["round_s"] == pytest.approx(0.10)
    assert not {"draft_s", "break_even_length", "decode_speedup"} & set(given)


def test_a_95th_percentile_needs_20_rounds(cell, request_of):
    assert round_s_p95(cell) is None
    log = RoundLog(
        num_drafted=(3,) * 21,
        num_accepted=(0,) * 21,
        num_emitted=(1,) * 21,
        round_s=tuple(float(s) for s in range(1, 22)),
    )
    assert round_s_p95(replace(cell, requests=(request_of("a", log),))) == pytest.approx(20.0)


def test_overhead_is_relative_to_the_model_forwards_of_a_round(cell):
    one_block = (forward("target", 4, 0.10), forward("drafter", 1, 0.01, count=3))
    assert overhead_ratio(replace(cell, forwards=one_block)) == pytest.approx(0.16 / 0.13)


def test_rounds_and_forwards_of_several_blocks_count_by_their_medians(cell):
    times = ((0.10, 0.12), (0.90, 0.95), (0.08, 0.11))
    blocks = tuple(forward("target", 4, bare_s, round_s=round_s) for bare_s, round_s in times)
    assert overhead_ratio(replace(cell, forwards=blocks)) == pytest.approx(0.12 / 0.10)


def test_a_round_faster_than_its_forwards_only_indicates_a_noisy_machine(cell):
    unsteady = (forward("target", 4, 0.10, round_s=0.094),)
    steady = (forward("target", 4, 0.10, round_s=0.096),)
    assert overhead_ratio(replace(cell, forwards=unsteady)) is None
    assert overhead_ratio(replace(cell, forwards=steady)) == pytest.approx(0.96)


def test_a_run_without_timed_rounds_has_no_overhead(cell):
    old = (forward("target", 4, 0.10, round_s=None),)
    assert overhead_ratio(replace(cell, forwards=old)) is None


def test_overhead_subtracts_the_forwards_of_every_head_part(cell):
    observe, draft = (
        replace(forward("drafter", 3, seconds), part=part)
        for part, seconds in (("observe", 0.02), ("draft", 0.01))
    )
    costs = (forward("target", 4, 0.10), observe, draft)
    assert overhead_ratio(replace(cell, forwards=costs)) == pytest.approx(0.16 / 0.13)


def test_overhead_is_absent_without_timed_forwards(cell):
    assert overhead_ratio(cell) is None


def test_the_baseline_also_has_an_overhead(baseline_cell):
    cell = replace(baseline_cell, forwards=(forward("target", 1, 0.08, round_s=0.10),))
    assert overhead_ratio(cell) == pytest.approx(0.10 / 0.08)
