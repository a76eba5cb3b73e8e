from dataclasses import replace

import pytest

from specbench.metrics.cell import CellData
from specbench.metrics.summary import summarize
from specbench.metrics.validity import cell_warnings, judge_cell
from specbench.records import (
    AnswerCheck,
    DeviceSample,
    FirstDifference,
    Kind,
    Reason,
    RequestRecord,
    RoundLog,
)
from tests.cell_keys import with_axes


def with_first(cell: CellData, **changes: object) -> CellData:
    """The cell with its first request changed."""
    return replace(cell, requests=(replace(cell.requests[0], **changes), *cell.requests[1:]))


def with_rounds(cell: CellData, **columns: tuple[object, ...]) -> CellData:
    """The cell with columns of its first request's rounds changed."""
    return with_first(cell, rounds=replace(rounds_of(cell.requests[0]), **columns))


def with_device(cell: CellData, **facts: object) -> CellData:
    device = cell.requests[0].device
    assert device is not None
    return with_first(cell, device=replace(device, **facts))


def rounds_of(request: RequestRecord) -> RoundLog:
    assert request.rounds is not None
    return request.rounds


def only_reason(cell: CellData) -> Reason:
    (reason,) = judge_cell(cell)
    return reason


def test_a_steady_cell_and_its_baseline_are_valid(steady, steady_baseline):
    assert judge_cell(steady) == ()
    assert judge_cell(steady_baseline) == ()
    assert cell_warnings(steady) == ()


def test_a_throttled_cell_is_invalid_with_the_reason(steady):
    throttled = with_device(steady, throttle_reasons=("hw_thermal_slowdown",))
    expected = Kind.THROTTLED(throttled=1, requests=12, reasons=("hw_thermal_slowdown",))
    assert only_reason(throttled) == expected


def test_a_throttled_baseline_invalidates_the_cell(steady):
    device = DeviceSample(num_samples=3, throttle_reasons=("hw_slowdown",))
    spoiled = replace(steady.baseline[0], device=device)
    reason = only_reason(replace(steady, baseline=(spoiled, *steady.baseline[1:])))
    assert reason.kind is Kind.THROTTLED


@pytest.mark.parametrize(("clock", "valid"), [(1350, True), (1349, False)])
def test_a_clock_below_75_percent_of_its_default_is_invalid(steady, clock, valid):
    reasons = judge_cell(with_device(steady, sm_clock_mhz=clock))
    assert (reasons == ()) is valid
    slow = Kind.SLOW_CLOCK(lowest=clock / 1800, least=0.75, slow=1, requests=12)
    assert valid or reasons == (slow,)


def at_the_cap(cell: CellData, clock: int, base_clock: int) -> CellData:
    """As on an L4: every sample shows it, and the clock is half of the default of 1,800 MHz."""

    def capped(requests, mhz):
        return tuple(
            replace(
                r, device=replace(r.device, sm_clock_mhz=mhz, throttle_reasons=("sw_power_cap",))
            )
            for r in requests
        )

    return replace(
        cell, requests=capped(cell.requests, clock), baseline=capped(cell.baseline, base_clock)
    )


@pytest.mark.parametrize(("clock", "base_clock"), [(900, 900), (900, 985), (985, 900)])
def test_a_gpu_at_its_power_cap_gives_a_warning(steady, clock, base_clock):
    capped = at_the_cap(steady, clock, base_clock)
    assert judge_cell(capped) == ()
    (warning,) = cell_warnings(capped)
    assert warning == Kind.POWER_CAPPED(capped=6, requests=6)


@pytest.mark.parametrize(("clock", "base_clock"), [(900, 1010), (1000, 900)])
def test_a_power_cap_that_gave_k_and_k_0_other_clocks_is_a_reason(steady, clock, base_clock):
    reason = only_reason(at_the_cap(steady, clock, base_clock))
    assert reason == Kind.CLOCKS_DIFFER(clock=clock, baseline=base_clock, most=0.1)


def test_heat_is_a_reason_also_at_the_power_cap(steady):
    hot = with_device(steady, throttle_reasons=("sw_power_cap", "hw_thermal_slowdown"))
    assert only_reason(hot).figures["reasons"] == ("hw_thermal_slowdown",)


def test_another_process_on_the_gpu_is_a_reason(steady):
    shared = only_reason(with_device(steady, num_other_processes=1))
    assert shared == Kind.GPU_SHARED(shared=1, requests=12)
    assert judge_cell(with_device(steady, num_other_processes=0)) == ()


def test_an_unreported_device_is_no_reason(steady):
    silent = DeviceSample(num_samples=0)
    assert judge_cell(with_first(steady, device=silent)) == ()
    assert judge_cell(with_first(steady, device=None)) == ()


def test_fewer_than_30_rounds_make_a_cell_invalid(steady):
    assert judge_cell(replace(steady, requests=steady.requests[:5])) == ()
    few = replace(steady, requests=steady.requests[:4])
    assert only_reason(few) == Kind.TOO_FEW_ROUNDS(needed=30)


def test_an_engine_without_round_counts_needs_no_minimum_of_rounds(steady):
    silent = tuple(replace(request, rounds=None) for request in steady.requests)
    assert judge_cell(replace(steady, requests=silent)) == ()


def test_a_failed_request_is_counted_with_its_error(steady):
    failed = replace(
        steady.requests[0], prompt_id="p9", finish_reason="failed", error="out of memory"
    )
    reason = only_reason(replace(steady, requests=(*steady.requests, failed)))
    assert reason == Kind.REQUESTS_FAILED(failed=1, requests=7, error="out of memory")


def test_a_failed_request_at_k_0_invalidates_the_speedups_over_it(steady):
    """Served together, its seconds stay in the pass, without its tokens."""
    failed = replace(steady.baseline[0], prompt_id="p9", finish_reason="failed", error="timeout")
    cell = replace(steady, baseline=(*steady.baseline, failed), shared={})
    failure = Kind.REQUESTS_FAILED(failed=1, requests=7, error="timeout")
    assert only_reason(cell) == Kind.OF_BASELINE(because=(failure,))


def test_a_cell_in_which_everything_failed_is_also_judged(steady):
    failed = tuple(
        replace(r, finish_reason="failed", error="refused", output_ids=()) for r in steady.requests
    )
    failures, unfinished = judge_cell(replace(steady, requests=failed))
    assert failures == Kind.REQUESTS_FAILED(failed=6, requests=6, error="refused")
    assert unfinished == Kind.NOTHING_FINISHED()


def test_more_accepted_than_drafted_breaks_an_identity(steady):
    reason = only_reason(with_rounds(steady, num_drafted=(1, 2, 2, 2, 2, 2)))
    assert reason == Kind.ACCEPTED_TOO_MANY(broken=1, requests=6, prompt="p0")


def test_more_drafted_than_k_is_a_tree(steady):
    assert judge_cell(with_rounds(steady, num_drafted=(9, 9, 9, 9, 9, 9))) == ()


def test_more_accepted_than_k_breaks_an_identity(steady):
    wrong = with_rounds(steady, num_drafted=(9,) * 6, num_accepted=(3, 2, 2, 2, 2, 2))
    assert Kind.ACCEPTED_TOO_MANY in {reason.kind for reason in judge_cell(wrong)}


@pytest.mark.parametrize(
    "emitted", [(3, 3, 2, 2, 1, 1), (3, 3, 3, 1, 1, 0), (3, 3, 1, 1, 1, 1), (1, 3, 3, 1, 1, 1)]
)
def test_num_emitted_outside_its_bounds_is_invalid(steady, emitted):
    wrong = with_first(
        with_rounds(steady, num_emitted=emitted), output_ids=tuple(range(1 + sum(emitted)))
    )
    assert only_reason(wrong).kind is Kind.EMITTED_OUTSIDE


@pytest.mark.parametrize("emitted", [(3, 3, 2, 1, 1, 1), (2, 3, 3, 1, 1, 1)])
def test_a_last_round_without_a_bonus_token_is_valid(steady, emitted):
    ended = with_rounds(steady, num_emitted=emitted)
    assert judge_cell(with_first(ended, output_ids=tuple(range(12)))) == ()


@pytest.mark.parametrize("num_tokens", [12, 14])
def test_output_tokens_that_rounds_do_not_explain_are_invalid(steady, num_tokens):
    wrong = with_first(steady, output_ids=tuple(range(num_tokens)))
    assert only_reason(wrong).kind is Kind.TOKENS_UNEXPLAINED


CHECK = AnswerCheck(num_drafted=9, num_accepted=3, num_emitted=4, seconds=0.5)


def with_check(cell: CellData, check: AnswerCheck = CHECK, **changes: object) -> CellData:
    """The cell with a predicted output's check before its first request's rounds."""
    first = cell.requests[0]
    longer = {
        "output_ids": tuple(range(first.num_output_tokens + check.num_emitted)),
        "decode_s": first.decode_s + check.seconds,
    }
    return with_first(cell, answer_check=check, **(longer | changes))


def test_a_predicted_outputs_check_adds_its_tokens_and_its_time(steady):
    assert judge_cell(with_check(steady)) == ()
    too_few = with_check(steady, output_ids=steady.requests[0].output_ids)
    assert only_reason(too_few).kind is Kind.TOKENS_UNEXPLAINED
    slow = replace(CHECK, seconds=9.0)
    assert only_reason(with_check(steady, slow, decode_s=2.0)).kind is Kind.TIMES_DIFFER


@pytest.mark.parametrize("changes", [{"num_drafted": 2}, {"num_emitted": 2}, {"num_accepted": -1}])
def test_impossible_counts_of_a_predicted_output_are_invalid(steady, changes):
    wrong = with_check(steady, replace(CHECK, **changes))
    assert only_reason(wrong).kind is Kind.CHECK_IMPOSSIBLE


# At K = 2, 12 tokens are at least 4 rounds, and 13 are 5.
@pytest.mark.parametrize(("num_emitted", "enough"), [(12, 8), (13, 6)])
def test_requests_that_a_check_completes_are_judged_without_rounds(steady, num_emitted, enough):
    empty = RoundLog(num_drafted=(), num_accepted=(), num_emitted=(), round_s=())
    drafted = num_emitted - 1
    check = replace(CHECK, num_drafted=drafted, num_accepted=drafted, num_emitted=num_emitted)
    changes = {"rounds": empty, "answer_check": check, "decode_s": check.seconds}
    done = tuple(
        replace(r, **changes, output_ids=tuple(range(1 + num_emitted)), repeat=i)
        for r in steady.requests
        for i in range(5)
    )
    whole = replace(steady, requests=done[:enough])
    assert judge_cell(whole) == ()
    few = replace(whole, requests=done[: enough - 1])
    assert only_reason(few) == Kind.TOO_FEW_ROUNDS(needed=30)
    (summary,) = summarize([whole])
    assert "mean_acceptance_length" not in summary.metrics
    assert summary.metrics["num_checked_at_once"] == num_emitted


def test_decode_time_is_the_rounds_time(steady):
    # Rounds of the cell: 6 * 6 * 0.125 = 4.5 s in all; one request is off by 0.3, then 1 s.
    first = steady.requests[0].decode_s
    assert judge_cell(with_first(steady, decode_s=first + 0.3)) == ()
    reason = only_reason(with_first(steady, decode_s=first + 1.0))
    assert reason.kind is Kind.TIMES_DIFFER
    assert reason.figures == pytest.approx({"round_s": 4.5, "decode_s": 5.5})


def test_the_baseline_must_satisfy_the_identities_of_k_0(steady):
    wrong = replace(steady.baseline[0], output_ids=(1,))
    reasons = judge_cell(replace(steady, baseline=(wrong, *steady.baseline[1:])))
    broken = Kind.TOKENS_UNEXPLAINED(broken=1, requests=6, prompt="p0")
    assert reasons[0] == Kind.OF_BASELINE(because=(broken,))


def test_impossible_totals_make_a_cell_invalid(steady):
    impossible = tuple(
        replace(
            request,
            rounds=replace(rounds_of(request), num_accepted=(3,) * 6, num_drafted=(3,) * 6),
        )
        for request in steady.requests
    )
    reasons = judge_cell(replace(steady, requests=impossible))
    assert Kind.HISTOGRAM_DIFFERS(histogram=0, rounds=36) in reasons
    assert Kind.LENGTH_OUTSIDE(metric="mean_acceptance_length", length=4.0) in reasons


def test_a_first_position_that_is_nearly_always_right_is_a_warning(steady):
    always = tuple(
        replace(r, rounds=replace(rounds_of(r), num_accepted=(1,) * 6, num_emitted=(2,) * 6))
        for r in steady.requests
    )
    (warning,) = cell_warnings(replace(steady, requests=always))
    assert warning == Kind.SUSPICIOUS_ACCEPTANCE(share=1.0)


def test_outputs_that_differ_from_the_baseline_are_a_warning_at_temperature_0(steady):
    other = with_first(steady, output_ids=tuple(range(100, 113)))
    assert Kind.OUTPUTS_DIFFER(differing=1, compared=6) in cell_warnings(other)
    half = replace(other, key=with_axes(other.key, dtype="bfloat16"))
    expected = Kind.NEAR_TIES(differing=1, compared=6, dtype="bfloat16", worst=())
    assert cell_warnings(half) == (expected,)


def test_the_half_precision_warning_states_the_largest_logit_gap(steady):
    other = with_first(steady, output_ids=tuple(range(100, 113)))
    near, far = (
        FirstDifference(
            cell_id=other.key.id,
            prompt_id="p0",
            turn=0,
            repeat=0,
            position=0,
            gap=gap,
            spacing=0.0625,
        )
        for gap in (0.0625, 0.1875)
    )
    half = replace(other, key=with_axes(other.key, dtype="bfloat16"), differences=(near, far, near))
    (warning,) = cell_warnings(half)
    worst = Kind.FIRST_DIFFERENCES(outputs=3, gap=0.1875, steps=3.0, dtype="bfloat16")
    assert warning.figures["worst"] == (worst,)


def test_sampled_text_may_differ_but_needs_similar_lengths_and_three_seeds(steady):
    warm = replace(steady, key=with_axes(steady.key, temperature=1.0))
    short = with_first(warm, output_ids=(1, 2))
    (lengths,) = (w for w in cell_warnings(short) if w.kind is Kind.OUTPUT_LENGTHS_DIFFER)
    assert lengths.figures == pytest.approx({"tokens": 67 / 6, "baseline": 13})
    assert Kind.FEW_SEEDS(needed=3, temperature=1.0, fewest=1) in cell_warnings(warm)
    thrice = tuple(replace(r, repeat=i) for r in warm.requests for i in range(3))
    assert Kind.FEW_SEEDS not in {w.kind for w in cell_warnings(replace(warm, requests=thrice))}


def test_a_seed_is_a_repeat_or_a_sample_and_not_a_turn(steady):
    def seen(cell, requests):
        return {w.kind: w.figures for w in cell_warnings(replace(cell, requests=tuple(requests)))}

    three = ({"sample": 0}, {"sample": 1}, {"repeat": 1}, {"repeat": 1, "turn": 1})
    requests = [replace(r, **changes) for r in steady.requests for changes in three]
    warm = replace(steady, key=with_axes(steady.key, temperature=0.5))
    assert Kind.FEW_SEEDS not in seen(warm, requests)
    few = {"needed": 3, "temperature": 0.5, "fewest": 2}
    assert seen(warm, requests[1:])[Kind.FEW_SEEDS] == few  # the first prompt lacks one
    assert Kind.FEW_SEEDS not in seen(steady, requests[1:])


def test_rounds_launched_differently_from_the_baseline_get_a_warning(steady):
    graphed = [replace(r, graph="round") for r in steady.baseline]
    alike = [replace(r, graph="round") for r in steady.requests]
    other = [replace(alike[0], graph="off"), *alike[1:]]

    same = replace(steady, baseline=tuple(graphed), requests=tuple(alike))
    assert cell_warnings(same) == ()
    (warning,) = cell_warnings(replace(same, requests=tuple(other)))
    num = len(same.pairs)
    assert warning == Kind.GRAPHS_DIFFER(graph="off", baseline="round", differing=1, requests=num)
