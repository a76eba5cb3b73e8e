from dataclasses import replace

import pytest

from specbench.decide.recommend import by_question, choose, decide, judge, verdict_of, winners
from specbench.records import Goodput, Interval, Kind, Margin, SpeedupVerdict
from tests.cell_keys import with_axes

FAST = {
    "mean_acceptance_length": 3.12,
    "break_even_length": 1.64,
    "draft_cost_ratio": 0.051,
    "verify_cost_ratio": 1.2,
    "speculation_cost_bytes": 3 * 2**20,
    "speculation_cost_tokens": 1200.4,
}


def test_the_highest_estimate_wins_and_not_the_highest_lower_bound(summarized):
    cells = [summarized(2, 1.5, 1.6, 1.7), summarized(8, 1.2, 1.9, 3.0)]
    assert choose(cells).leader == cells[1]
    assert choose(cells).to_confirm == cells[1].key


def test_ties_within_1_percent_go_to_the_smaller_k(summarized):
    near = [summarized(4, 1.4, 1.500, 1.7), summarized(2, 1.2, 1.486, 1.9)]
    far = [summarized(4, 1.4, 1.500, 1.7), summarized(2, 1.2, 1.484, 1.9)]
    assert choose(near).leader == near[1]
    assert choose(far).leader == far[0]


def test_k_0_wins_ties_below_1_percent(summarized):
    barely = [summarized(2, 1.009, 1.05, 1.09), summarized(4, 0.9, 1.0, 1.1)]
    clearly = [summarized(2, 1.011, 1.05, 1.09), summarized(4, 0.9, 1.0, 1.1)]
    assert choose(barely).to_confirm is None
    assert decide(choose(barely)).draft.k == 0
    assert choose(clearly).to_confirm == clearly[0].key


def test_the_winner_is_quoted_from_its_confirmation_run(summarized):
    first = [
        summarized(0, None, 1.0, None),
        summarized(2, 1.4, 1.5, 1.6),
        summarized(6, 1.9, 2.1, 2.3, metrics=FAST),
    ]
    again = summarized(6, 1.80, 1.90, 2.00, num_prompts=12, metrics=FAST)

    decision = decide(choose(first), again)

    assert decision.verdict is SpeedupVerdict.FASTER
    assert decision.answer == (Kind.FASTER(k=6, mean_k=None, speedup=again.speedup),)
    assert (decision.draft.method, decision.draft.k) == ("draft_model", 6)
    assert decision.speedup == again.speedup
    assert (
        decision.leader.pairing,
        decision.leader.condition.target,
        decision.leader.condition.workload,
    ) == ("demo/draft", "demo", "code")
    assert decision.reasons == (
        Kind.ACCEPTANCE_BOUND(),
        Kind.ACCEPTANCE_LENGTH(k=6, mean_k=None, length=3.12, break_even=1.64),
        Kind.STEP_COSTS(draft=0.051, verify=1.2),
        Kind.CONFIRMED(speedup=again.speedup, over=(12, "prompt")),
        Kind.LED(k=6, mean_k=None, tried=(2, 6)),
        Kind.DRAFTER_MEMORY(bytes=3 * 2**20, cache_tokens=1200.4),
    )


def test_a_winner_without_a_confirmation_run_is_undecided(summarized):
    choice = choose([summarized(2, 1.4, 1.5, 1.6), summarized(6, 1.9, 2.1, 2.3)])
    decision = decide(choice)
    assert decision.verdict is SpeedupVerdict.UNDECIDED
    assert decision.answer == (Kind.NOT_CONFIRMED(k=6, mean_k=None),)
    assert decision.draft.method == "none"
    assert decision.speedup is None
    more = decide(choice, is_cut_short=True).answer
    assert more == (Kind.NOT_CONFIRMED(k=6, mean_k=None), Kind.LONGER_BUDGET())


def test_a_single_k_is_decided_without_a_confirmation_run(summarized):
    cell = summarized(4, 1.8, 1.9, 2.0)
    choice = choose([summarized(0, None, 1.0, None), cell])
    assert choice.to_confirm is None
    assert decide(choice).answer == (Kind.FASTER(k=4, mean_k=None, speedup=cell.speedup),)


def test_with_time_left_a_leader_that_may_be_faster_is_confirmed_too(summarized):
    """Also a single K of its drafter, since drafters compete."""
    lost, may_win = summarized(2, 0.8, 0.9, 1.0), summarized(4, 0.9, 1.4, 1.9)
    for cells, ids in (([lost, may_win], [may_win.key.id]), ([may_win], [may_win.key.id])):
        assert list(winners(cells)) == []
        assert list(winners(cells, also_open=True)) == ids
    assert list(winners([lost], also_open=True)) == []
    again = summarized(4, 1.2, 1.3, 1.4)
    decision = decide(choose([lost, may_win]), again, "other")
    assert (decision.verdict, decision.speedup) == (SpeedupVerdict.FASTER, again.speedup)


def test_a_speedup_that_is_not_confirmed_is_withdrawn(summarized):
    choice = choose([summarized(2, 0.8, 0.9, 1.0), summarized(6, 1.1, 1.2, 1.3)])
    lost = decide(choice, summarized(6, 0.90, 0.95, 1.00))
    unclear = decide(choice, summarized(6, 0.98, 1.03, 1.08))
    assert (lost.verdict, lost.answer[0].kind) == (SpeedupVerdict.NO_SPEEDUP, Kind.MEASURED)
    assert lost.speedup == Interval(estimate=0.95, low=0.90, high=1.00)
    assert (unclear.verdict, unclear.answer[0].kind) == (SpeedupVerdict.UNDECIDED, Kind.RANGE)
    assert {lost.draft.method, unclear.draft.method} == {"none"}


def test_a_winner_that_is_withdrawn_leaves_another_k_open(summarized):
    choice = choose([summarized(2, 0.9, 1.0, 1.1), summarized(6, 1.1, 1.2, 1.3)])
    lost = decide(choice, summarized(6, 0.90, 0.95, 1.00))
    assert lost.verdict is SpeedupVerdict.UNDECIDED
    assert [reason.kind for reason in lost.answer] == [Kind.MEASURED, Kind.OTHER_K_OPEN]
    assert lost.answer[1].figures["ks"] == (2,)


def test_k_0_is_recommended_if_no_k_gains(summarized):
    cells = [summarized(1, 0.94, 0.97, 1.00), summarized(4, 0.7, 0.8, 0.9)]
    decision = decide(choose(cells))
    assert decision.verdict is SpeedupVerdict.NO_SPEEDUP
    assert decision.answer == (Kind.MEASURED(k=1, mean_k=None, speedup=cells[0].speedup),)
    assert (decision.draft.method, decision.draft.k) == ("none", 0)
    assert decision.speedup == Interval(estimate=0.97, low=0.94, high=1.00)


def test_the_decision_is_undecided_while_one_k_is_undecided(summarized):
    cells = [summarized(1, 0.98, 0.99, 1.00), summarized(8, 0.80, 0.95, 1.12)]
    decision = decide(choose(cells))
    assert decision.answer == (Kind.RANGE(k=8, mean_k=None, speedup=cells[1].speedup),)


def test_three_prompts_are_undecided_at_any_estimate(summarized):
    cells = [summarized(k, None, 1 + k, None, num_prompts=3) for k in (1, 4)]
    decision = decide(choose(cells), workload_prompts=5)
    assert decision.answer == (
        Kind.TOO_FEW(k=4, mean_k=None, measured=(3, "prompt")),
        Kind.NEEDS_MORE(missing=(2, "prompt"), num_prompts=5),
    )
    assert decision.draft.method == "none"


def test_a_cell_without_an_interval_never_leads(summarized):
    cells = [summarized(2, 1.2, 1.3, 1.4), summarized(4, None, 9.0, None, num_prompts=4)]
    assert choose(cells).leader == cells[0]


@pytest.mark.parametrize(
    ("rivals", "num_unmeasured", "is_only"),
    [
        ((), 0, False),
        ((), 7, True),
        (((4, None, 9.0, None, 4),), 0, True),
        (((4, 0.8, 0.9, 1.0, 5),), 7, False),
    ],
)
def test_a_k_measured_without_competitors_is_called_the_only_k(
    summarized, rivals, num_unmeasured, is_only
):
    leader = summarized(2, 1.2, 1.3, 1.4)
    cells = [leader, *(summarized(*other, num_prompts=num) for *other, num in rivals)]
    decision = decide(choose(cells), leader, num_unmeasured=num_unmeasured)
    assert (Kind.ONLY_K(needed=(5, "prompt")) in decision.answer) is is_only


def test_an_invalid_cell_is_named_and_never_used(summarized):
    cells = [
        summarized(2, 1.2, 1.3, 1.4),
        summarized(8, 3.0, 3.1, 3.2, invalid=("throttled", "29 rounds")),
    ]
    decision = decide(choose(cells))
    assert decision.draft.k == 2
    assert decision.reasons == (Kind.EXCLUDED(ks=(8,), because=("throttled", "29 rounds")),)


def test_the_decision_is_undecided_if_every_cell_is_invalid(summarized):
    unusable = Kind.NOTHING_FINISHED()
    cells = [summarized(k, 1.5, 1.6, 1.7, invalid=(unusable,)) for k in (2, 4)]
    decision = decide(choose(cells))
    first, more = decision.answer
    assert first == Kind.ALL_INVALID(k=2, because=(unusable,))
    assert more == Kind.MORE_INVALID(count=1)
    alone = decide(choose(cells[1:]))
    assert alone.answer == (Kind.ALL_INVALID(k=4, because=(unusable,)),)
    assert decision.reasons == (Kind.EXCLUDED(ks=(2, 4), because=(unusable,)),)
    assert decision.leader.pairing == "demo/draft"
    assert decision.speedup is None


def test_an_invalid_confirmation_run_leaves_the_decision_open(summarized):
    choice = choose([summarized(2, 1.4, 1.5, 1.6), summarized(6, 1.9, 2.1, 2.3)])
    decision = decide(choice, summarized(6, 1.9, 2.0, 2.1, invalid=("throttled",)))
    assert decision.answer == (Kind.CONFIRMATION_INVALID(k=6),)
    assert Kind.CONFIRMATION_EXCLUDED(because=("throttled",)) in decision.reasons
    assert decision.speedup is None


def test_confirming_another_cell_is_an_error(summarized):
    choice = choose([summarized(2, 1.4, 1.5, 1.6), summarized(6, 1.9, 2.1, 2.3)])
    with pytest.raises(ValueError, match="k2"):
        decide(choice, summarized(2, 1.4, 1.5, 1.6))


def test_a_decision_has_the_detectable_effect_and_the_warnings_of_its_cell(summarized):
    cell = replace(
        summarized(4, 1.8, 1.9, 2.0),
        minimum_detectable_effect=0.0412,
        warnings=(Kind.SUSPICIOUS_ACCEPTANCE(share=0.999),),
    )
    decision = decide(choose([cell]))
    assert decision.reasons == (Kind.DETECTABLE_EFFECT(effect=0.0412),)
    assert decision.warnings == cell.warnings


def test_a_drafter_without_memory_is_reported_with_none(summarized):
    cell = summarized(4, 1.8, 1.9, 2.0, metrics={"speculation_cost_bytes": -4096})
    assert decide(choose([cell])).reasons == ()


def test_cells_are_grouped_by_pairing_workload_and_setting(summarized):
    code, chat = summarized(4, 1.8, 1.9, 2.0), summarized(4, 1.8, 1.9, 2.0, workload="chat")
    warm = replace(code, key=with_axes(code.key, temperature=1.0))
    poor = replace(code, key=with_axes(code.key, pairing="demo/poor"))
    more = summarized(6, 1.8, 1.9, 2.0)
    baseline = summarized(0, None, 1.0, None)
    cells = [baseline, code, chat, warm, poor, more]
    assert by_question(cells) == ((code, more), (chat,), (warm,), (poor,))
    for mixed in (cells, [baseline], []):
        with pytest.raises(ValueError, match="one setting"):
            choose(mixed)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.90, 1.02, SpeedupVerdict.NO_SPEEDUP),
        (0.90, 1.021, SpeedupVerdict.UNDECIDED),
        (1.012, 1.02, SpeedupVerdict.NO_SPEEDUP),  # surely faster, and by too little to matter
        (1.01, 1.5, SpeedupVerdict.UNDECIDED),
        (1.011, 1.5, SpeedupVerdict.FASTER),
        (None, None, SpeedupVerdict.UNDECIDED),
    ],
)
def test_a_speedup_is_judged_faster_not_faster_or_undecided(low, high, verdict):
    assert judge(Interval(estimate=1.0, low=low, high=high)) is verdict


def test_a_missing_speedup_is_undecided():
    assert judge(None) is SpeedupVerdict.UNDECIDED


def auto(cell, mean_k=3.14):
    """The cell with an adaptive K."""
    return replace(
        cell,
        key=with_axes(cell.key, adaptive=True),
        metrics={**cell.metrics, "mean_num_speculative_tokens": mean_k},
    )


def test_an_adaptive_k_can_lead_and_is_shown_with_its_mean(summarized):
    cells = [summarized(8, 1.5, 1.6, 1.7), auto(summarized(8, 1.8, 1.9, 2.0))]
    assert by_question(cells) == (tuple(cells),)
    choice = choose(cells)
    assert choice.to_confirm == cells[1].key
    decision = decide(choice, cells[1])
    assert decision.answer == (Kind.FASTER(k="auto", mean_k=3.14, speedup=cells[1].speedup),)
    assert (decision.draft.k, decision.leader.draft.is_adaptive) == (8, True)
    assert Kind.LED(k="auto", mean_k=3.14, tried=(8, "auto")) in decision.reasons


def test_a_tie_goes_to_the_fixed_k(summarized):
    cells = [auto(summarized(2, 1.500, 1.6, 1.7)), summarized(6, 1.495, 1.6, 1.7)]
    assert choose(cells).leader == cells[1]


def test_the_choice_can_be_limited_to_fixed_k(summarized):
    cells = [summarized(4, 1.5, 1.6, 1.7), auto(summarized(8, 1.8, 1.9, 2.0))]
    fixed = [cell for cell in cells if not cell.key.draft.is_adaptive]
    assert choose(fixed).leader == cells[0]


def test_an_adaptive_cell_cannot_confirm_a_fixed_k(summarized):
    cells = [summarized(8, 1.5, 1.6, 1.7), auto(summarized(8, 1.8, 1.9, 2.0))]
    with pytest.raises(ValueError, match=r"k8.*kauto"):
        decide(choose(cells), cells[0])


@pytest.mark.parametrize("change", [{"context": 512}, {"request_rate": 2.0}, {"concurrency": 4}])
def test_context_and_load_are_part_of_the_setting(summarized, change):
    cell = summarized(4, 1.8, 1.9, 2.0)
    other = replace(cell, key=with_axes(cell.key, **change))
    assert by_question([cell, other]) == ((cell,), (other,))


def test_without_a_winner_the_best_estimate_and_its_reasons_are_quoted(summarized):
    # K = 2 has the higher lower bound only because it was measured more precisely.
    cells = [
        summarized(1, 0.37, 0.97, 2.63, metrics=FAST),
        summarized(2, 0.70, 0.77, 1.05, metrics={**FAST, "mean_acceptance_length": 2.0}),
    ]
    decision = decide(choose(cells))
    assert decision.answer == (Kind.RANGE(k=1, mean_k=None, speedup=cells[0].speedup),)
    length = Kind.ACCEPTANCE_LENGTH(k=1, mean_k=None, length=3.12, break_even=1.64)
    assert length in decision.reasons
    assert Kind.HIGHEST_ESTIMATE(k=1, mean_k=None, tried=(1, 2)) in decision.reasons


def test_a_decision_about_another_k_gives_the_reason(summarized):
    cells = [summarized(1, 0.98, 0.99, 1.00), summarized(8, 0.80, 0.95, 1.12)]
    standing = (Kind.LOOKS_BEST(k=8, mean_k=None), Kind.OTHERS_LOSE(ks=(1,)))
    assert decide(choose(cells)).reasons == standing


def test_a_winner_among_pruned_cells_is_still_confirmed(summarized):
    won, left = summarized(4, 1.4, 1.5, 1.6), summarized(8, None, 1.2, None)
    assert choose([won, left]).to_confirm == won.key
    assert choose([won]).to_confirm is None


def test_a_k_without_an_interval_is_not_among_those_that_the_leader_was_chosen_from(summarized):
    cells = [summarized(4, 1.4, 1.5, 1.6), summarized(6, 1.2, 1.3, 1.4)]
    left = summarized(8, None, 1.9, None)
    *_, led, dropped = decide(choose([*cells, left]), cells[0]).reasons
    assert led == Kind.LED(k=4, mean_k=None, tried=(4, 6))
    assert dropped == Kind.DROPPED(ks=(8,))
    open_cells = [summarized(4, 0.9, 1.1, 1.3), summarized(6, 0.8, 1.0, 1.2)]
    dropped, highest = decide(choose([*open_cells, left])).reasons
    assert highest == Kind.HIGHEST_ESTIMATE(k=4, mean_k=None, tried=(4, 6))
    assert dropped == Kind.DROPPED(ks=(8,))


def test_a_k_that_alone_has_an_interval_is_compared_with_none(summarized):
    won, left = summarized(4, 1.4, 1.5, 1.6), summarized(8, None, 1.9, None)
    _, dropped = decide(choose([won, left]), won).reasons
    assert dropped == Kind.DROPPED(ks=(8,))


DECODING = (1.28, 1.48, 1.71)


@pytest.mark.parametrize(
    ("decode", "whole", "verdict", "kinds"),
    [
        # Prefill takes most of the time: nobody waits less.
        (DECODING, (0.933, 0.967, 1.003), SpeedupVerdict.NO_SPEEDUP, [Kind.ONLY_DECODING]),
        (DECODING, (0.95, 1.05, 1.16), SpeedupVerdict.UNDECIDED, [Kind.OPEN_WHOLE]),
        (DECODING, (1.1, 1.3, 1.5), SpeedupVerdict.FASTER, [Kind.FASTER, Kind.ALSO_WHOLE]),
        # Without an interval, whole requests prove nothing.
        (DECODING, (None, 0.97, None), SpeedupVerdict.FASTER, [Kind.FASTER, Kind.ALSO_WHOLE]),
        (DECODING, None, SpeedupVerdict.FASTER, [Kind.FASTER]),
        # Within 5% decoding speaks for both.
        ((1.02, 1.05, 1.08), (0.99, 1.01, 1.03), SpeedupVerdict.FASTER, [Kind.FASTER]),
        (
            (0.8, 0.9, 1.0),
            (1.2, 1.3, 1.4),
            SpeedupVerdict.NO_SPEEDUP,
            [Kind.MEASURED, Kind.ALSO_WHOLE],
        ),
    ],
)
def test_faster_never_contradicts_whole_requests(summarized, decode, whole, verdict, kinds):
    cell = summarized(4, *decode)
    if whole is not None:
        low, estimate, high = whole
        cell = replace(cell, speedup_end_to_end=Interval(estimate=estimate, low=low, high=high))
    assert verdict_of(cell) is verdict
    decision = decide(choose([cell]))
    assert decision.verdict is verdict
    assert [reason.kind for reason in decision.answer][: len(kinds)] == kinds
    assert decision.end_to_end == cell.speedup_end_to_end
    assert decision.draft.k == (4 if verdict is SpeedupVerdict.FASTER else 0)


def test_under_an_slo_the_ratio_of_requests_within_it_decides(summarized):
    ratio = Interval(estimate=1.5, low=1.3, high=1.7)
    of_decoding = summarized(4, *DECODING)
    margin = Margin(
        prompts=0.3,
        machine=0.1,
        machine_kind="GPU",
        largest_prompt=None,
        num_parts=3,
        num_earlier=0,
    )
    goodput = Goodput(
        limits="ttft=200ms", ratio=ratio, minimum_detectable_effect=0.1, margin=margin
    )
    whole = Interval(estimate=0.97, low=0.93, high=1.0)
    cell = replace(of_decoding, goodput=goodput, speedup_end_to_end=whole)
    assert (cell.as_decided.margin, cell.as_decided.screening) == (margin, None)
    decision = decide(choose([cell]))
    assert (decision.verdict, decision.speedup) == (SpeedupVerdict.FASTER, ratio)
    assert decision.end_to_end is None
