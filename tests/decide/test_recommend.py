import re
from dataclasses import replace

import pytest

from specbench.decide.recommend import SpeedupVerdict, by_question, choose, decide, judge
from specbench.records import Interval
from tests.cell_keys import with_axes

FAST = {
    "mean_acceptance_length": 3.12,
    "break_even_length": 1.64,
    "draft_cost_ratio": 0.051,
    "verify_cost_ratio": 1.2,
    "speculation_cost_bytes": 3 * 2**20,
    "speculation_cost_tokens": 1200.4,
}


def test_the_highest_lower_bound_wins_and_not_the_highest_estimate(summarized):
    cells = [summarized(2, 1.5, 1.6, 1.7), summarized(8, 1.2, 1.9, 3.0)]
    assert choose(cells).leader == cells[0]


def test_ties_within_1_percent_go_to_the_smaller_k(summarized):
    near = [summarized(4, 1.500, 1.6, 1.7), summarized(2, 1.486, 1.6, 1.7)]
    far = [summarized(4, 1.500, 1.6, 1.7), summarized(2, 1.484, 1.6, 1.7)]
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

    assert decision.sentence == "code: K=6, 1.90x faster [1.80, 2.00]"
    assert (decision.draft.method, decision.draft.k) == ("draft_model", 6)
    assert decision.speedup == again.speedup
    assert (
        decision.leader.pairing,
        decision.leader.condition.target,
        decision.leader.condition.workload,
    ) == ("demo/draft", "demo", "code")
    values = (
        r"acceptance length at K=6: 3\.12 .*break-even: 1\.64\)$",
        r"target steps: 0\.05 per draft token, 1\.20 per",
        "memory: 3.0 MiB .*1,200 tokens",
        "^acceptance-bound: ",
        "^exploration phase: K=6 .*K = 2, 6$",
        r"1\.90x \[1\.80, 2\.00\] .*12 prompts$",
    )
    for value, reason in zip(values, decision.reasons, strict=True):
        assert re.search(value, reason)


def test_a_winner_without_a_confirmation_run_is_undecided(summarized):
    choice = choose([summarized(2, 1.4, 1.5, 1.6), summarized(6, 1.9, 2.1, 2.3)])
    decision = decide(choice)
    assert re.fullmatch("code: undecided: K=6 .*no confirmation run", decision.sentence)
    assert decision.draft.method == "none"
    assert decision.speedup is None


def test_a_single_k_is_decided_without_a_confirmation_run(summarized):
    choice = choose([summarized(0, None, 1.0, None), summarized(4, 1.8, 1.9, 2.0)])
    assert choice.to_confirm is None
    assert decide(choice).sentence == "code: K=4, 1.90x faster [1.80, 2.00]"


def test_a_speedup_that_is_not_confirmed_is_withdrawn(summarized):
    choice = choose([summarized(2, 0.9, 1.0, 1.1), summarized(6, 1.1, 1.2, 1.3)])
    lost = decide(choice, summarized(6, 0.90, 0.95, 1.00))
    unclear = decide(choice, summarized(6, 0.98, 1.03, 1.08))
    assert re.fullmatch(r"code: no speedup: K=6 .*0\.95x \[0\.90, 1\.00\]", lost.sentence)
    assert re.match(r"code: undecided: 0\.98x to 1\.08x at K=6", unclear.sentence)
    assert {lost.draft.method, unclear.draft.method} == {"none"}


def test_k_0_is_recommended_if_no_k_gains(summarized):
    cells = [summarized(1, 0.94, 0.97, 1.00), summarized(4, 0.7, 0.8, 0.9)]
    decision = decide(choose(cells))
    assert re.fullmatch(r"code: no speedup: K=1 .*0\.97x \[0\.94, 1\.00\]", decision.sentence)
    assert (decision.draft.method, decision.draft.k) == ("none", 0)
    assert decision.speedup == Interval(estimate=0.97, low=0.94, high=1.00)


def test_the_decision_is_undecided_while_one_k_is_undecided(summarized):
    cells = [summarized(1, 0.98, 0.99, 1.00), summarized(8, 0.80, 0.95, 1.12)]
    decision = decide(choose(cells))
    assert re.match(r"code: undecided: 0\.80x .*1\.12x at K=8", decision.sentence)


def test_three_prompts_are_undecided_at_any_estimate(summarized):
    cells = [summarized(k, None, 1 + k, None, num_prompts=3) for k in (1, 4)]
    decision = decide(choose(cells), workload_prompts=5)
    assert re.match("code: undecided: .*K=4 .*3 prompts", decision.sentence)
    assert "5.00" not in decision.sentence
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
    assert ("only K" in decision.sentence) is is_only


def test_an_invalid_cell_is_named_and_never_used(summarized):
    cells = [
        summarized(2, 1.2, 1.3, 1.4),
        summarized(8, 3.0, 3.1, 3.2, invalid=("throttled", "29 rounds")),
    ]
    decision = decide(choose(cells))
    assert decision.draft.k == 2
    assert decision.reasons == ("excluded: K = 8: throttled; 29 rounds",)


def test_the_decision_is_undecided_if_every_cell_is_invalid(summarized):
    cells = [summarized(k, 1.5, 1.6, 1.7, invalid=("throttled",)) for k in (2, 4)]
    decision = decide(choose(cells))
    expected = r"code: undecided: .*\(K=2: throttled; 1 more .*\)"
    assert re.fullmatch(expected, decision.sentence)
    alone = decide(choose(cells[1:]))
    assert re.fullmatch(r"code: undecided: .*\(K=4: throttled\)", alone.sentence)
    assert decision.reasons == ("excluded: K = 2, 4: throttled",)
    assert decision.leader.pairing == "demo/draft"
    assert decision.speedup is None


def test_an_invalid_confirmation_run_leaves_the_decision_open(summarized):
    choice = choose([summarized(2, 1.4, 1.5, 1.6), summarized(6, 1.9, 2.1, 2.3)])
    decision = decide(choice, summarized(6, 1.9, 2.0, 2.1, invalid=("throttled",)))
    assert re.fullmatch("code: undecided: .*K=6 .*not valid", decision.sentence)
    assert any(re.fullmatch("confirmation .*: throttled", reason) for reason in decision.reasons)
    assert decision.speedup is None


def test_confirming_another_cell_is_an_error(summarized):
    choice = choose([summarized(2, 1.4, 1.5, 1.6), summarized(6, 1.9, 2.1, 2.3)])
    with pytest.raises(ValueError, match="k2"):
        decide(choice, summarized(2, 1.4, 1.5, 1.6))


def test_a_decision_has_the_detectable_effect_and_the_warnings_of_its_cell(summarized):
    cell = replace(
        summarized(4, 1.8, 1.9, 2.0),
        minimum_detectable_effect=0.0412,
        warnings=("position 1: 99.9%",),
    )
    decision = decide(choose([cell]))
    assert decision.reasons == ("minimum detectable effect: 4.1%",)
    assert decision.warnings == ("position 1: 99.9%",)


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
    assert re.fullmatch(r"code: auto \(.*3\.1\), 1\.90x .*\[1\.80, 2\.00\]", decision.sentence)
    assert (decision.draft.k, decision.leader.draft.is_adaptive) == (8, True)
    led = "exploration phase: auto (mean K 3.1) had the highest lower bound of K = 8, auto"
    assert led in decision.reasons


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
    assert re.match(r"code: undecided: 0\.37x .*2\.63x at K=1", decision.sentence)
    assert any(re.search(r"at K=1: 3\.12 .*1\.64\)$", reason) for reason in decision.reasons)
    assert any(re.match("K=1 .*K = 1..2; none is shown", reason) for reason in decision.reasons)


def test_a_decision_about_another_k_gives_the_reason(summarized):
    cells = [summarized(1, 0.98, 0.99, 1.00), summarized(8, 0.80, 0.95, 1.12)]
    verdicts = ("undecided: K=8 looks best so far", "no speedup: K = 1")
    assert decide(choose(cells)).reasons == verdicts


def test_a_detectable_effect_above_100_percent_is_not_quantified(summarized):
    cell = replace(summarized(4, 0.37, 0.98, 2.63), minimum_detectable_effect=11.206)
    (reason,) = decide(choose([cell])).reasons
    assert re.match("minimum detectable effect: .*100%: ", reason)


def test_a_winner_among_pruned_cells_is_still_confirmed(summarized):
    won, left = summarized(4, 1.4, 1.5, 1.6), summarized(8, None, 1.2, None)
    assert choose([won, left]).to_confirm == won.key
    assert choose([won]).to_confirm is None


def test_a_pruned_k_with_a_higher_estimate_is_reported_as_dropped(summarized):
    won, left = summarized(4, 1.4, 1.5, 1.6), summarized(8, None, 1.9, None)
    led, dropped = decide(choose([won, left]), won).reasons[-3:-1]
    assert re.match("exploration phase: K=4 .*K = 4, 8$", led)
    assert re.fullmatch("not measured: K = 8 .*", dropped)
