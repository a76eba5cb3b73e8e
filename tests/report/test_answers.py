"""The sentences that answer the user's question."""

import re
from dataclasses import replace

import pytest

from specbench.decide.recommend import choose, decide, finding, judge
from specbench.records import (
    CellPlan,
    CellSummary,
    Decision,
    DraftConfig,
    Fixed,
    Interval,
    Kind,
    Reason,
    SpeedupVerdict,
)
from specbench.report.answers import answer, answer_lines, conclusion, shared_k_lines
from specbench.report.document import Document, build_document
from specbench.report.sections import sections, unmeasured_drafters
from tests.cell_keys import with_axes
from tests.decide.conftest import summary
from tests.report.stored_runs import SMALL, stored_run


def with_speedups(document: Document, speedups: dict[str, tuple[float, float]]) -> Document:
    """The document with given decisions: bounds by `pairing workload`, 1.5 in their middle."""

    def decide(decision: Decision) -> Decision:
        workload = decision.condition.workload
        low, high = speedups[f"{decision.leader.pairing} {workload}"]
        helps = low > 1.01
        speedup = Interval(estimate=(low + high) / 2, low=low, high=high)
        return replace(
            decision,
            draft=decision.leader.at(Fixed(4)).draft if helps else DraftConfig.none,
            speedup=speedup,
            verdict=judge(speedup),
            answer=(finding(speedup, 4),),
        )

    return replace(document, decisions=tuple(map(decide, document.decisions)))


def test_the_answer_omits_the_name_of_a_single_pairing(interrupted_document: Document) -> None:
    document = with_speedups(
        interrupted_document, {"demo/draft code": (1.8, 2.0), "demo/draft creative": (0.9, 1.0)}
    )
    assert answer_lines(document) == [
        "code: K=4, 1.90x faster [1.80, 2.00]",
        "creative: no speedup: K=4 measured 0.95x [0.90, 1.00]",
    ]


def test_the_drafter_with_the_highest_lower_bound_is_best(
    cpu_document: Document,
) -> None:
    document = with_speedups(
        cpu_document,
        {
            "demo/draft code": (1.2, 3.0),
            "demo/poor code": (1.3, 1.4),
            "demo/draft creative": (0.8, 0.9),
            "demo/poor creative": (0.5, 1.02),
        },
    )
    code, draft, creative, *rest = answer_lines(document)
    assert code.startswith("code: demo/poor, K=4, 1.35x")
    assert draft.startswith("  demo/draft: K=4, 2.10x")
    assert creative.startswith("creative: no speedup: ")
    assert [line.split(":")[0] for line in rest] == ["  demo/draft", "  demo/poor"]
    best, none = map(answer, sections(document))
    assert (best.verdict, best.quoted and best.quoted.leader.pairing) == ("faster", "demo/poor")
    assert (none.verdict, none.quoted, none.answer) == (
        "no speedup",
        None,
        (Kind.NO_DRAFTER_HELPS(),),
    )
    (yes, lost) = conclusion([best, none])
    assert yes.kind is Kind.YES
    assert yes.figures["which"] == ("demo/poor, K=4 on code",)
    assert lost == Kind.NOT_ON(which=("creative",))


@pytest.mark.parametrize(
    ("both", "told"),
    [
        ((1.8, 2.0), [Kind.YES(which=("demo/draft, K=4 on all 2",))]),
        ((0.8, 0.9), [Kind.NO()]),
        ((0.8, 1.9), [Kind.NOTHING_SHOWN()]),
    ],
)
def test_the_conclusion_answers_the_question_of_the_run(
    cpu_document: Document, both: tuple[float, float], told: list[Reason]
) -> None:
    lost = dict.fromkeys(("demo/poor code", "demo/poor creative"), (0.5, 0.9))
    speedups = dict.fromkeys(("demo/draft code", "demo/draft creative"), both) | lost
    answers = tuple(map(answer, sections(with_speedups(cpu_document, speedups))))
    first, *rest = conclusion(answers)
    assert [_without_k(first)] == told
    if first.kind is Kind.YES:
        assert rest == [Kind.NOT_WITH(which=("demo/poor",))]


def test_the_conclusion_names_a_pairing_once(cpu_document: Document) -> None:
    names = [f"demo/{draft} {text}" for draft in ("draft", "poor") for text in ("code", "creative")]
    faster = dict.fromkeys(names, (1.8, 2.0)) | dict.fromkeys(names[2:], (0.5, 0.9))
    document = with_speedups(cpu_document, faster)
    code, creative = map(answer, sections(document))
    assert code.quoted is not None
    other = replace(code.quoted, draft=replace(code.quoted.draft, length=Fixed(9)))
    (yes, _) = conclusion([replace(code, quoted=other), creative])
    (which,) = yes.figures["which"]
    assert (which.count("demo/draft"), which.count("K=")) == (1, 2)


def _without_k(reason: Reason) -> Reason:
    """The measured K of the leader as 4."""
    which = reason.figures.get("which")
    return reason if which is None else Kind.YES(which=("demo/draft, K=4 on all 2",))


def test_a_setting_that_was_not_measured_is_no_reason_for_a_no(cpu_document: Document) -> None:
    names = [f"demo/{draft} {text}" for draft in ("draft", "poor") for text in ("code", "creative")]
    document = with_speedups(cpu_document, dict.fromkeys(names, (0.5, 0.9)))
    no, _ = map(answer, sections(document))
    unmeasured = replace(no, verdict=SpeedupVerdict.NOT_MEASURED)
    assert [*conclusion([no])] == [Kind.NO()]
    assert [*conclusion([no, unmeasured])] == [Kind.NOTHING_SHOWN()]
    assert [*conclusion([unmeasured])] == [Kind.NO_ANSWER()]


def test_a_setting_that_was_not_measured_is_named_after_a_yes(cpu_document: Document) -> None:
    names = [f"demo/{draft} {text}" for draft in ("draft", "poor") for text in ("code", "creative")]
    document = with_speedups(cpu_document, dict.fromkeys(names, (1.8, 2.0)))
    helped, creative = map(answer, sections(document))
    unmeasured = replace(creative, verdict=SpeedupVerdict.NOT_MEASURED)
    assert Kind.UNMEASURED_ON(which=("creative",)) in conclusion([helped, unmeasured])


@pytest.mark.parametrize("measured", [("draft",), ("draft", "poor")])
def test_a_drafter_that_was_not_measured_is_no_reason_for_a_no(
    cpu_document: Document, measured: tuple[str, ...]
) -> None:
    names = [f"demo/{draft} {text}" for draft in ("draft", "poor") for text in ("code", "creative")]
    document = with_speedups(cpu_document, dict.fromkeys(names, (0.5, 0.9)))
    decisions = tuple(d for d in document.decisions if d.leader.draft.drafter in measured)
    keys = {d.leader for d in decisions if d.condition.workload == "code"}
    broken = with_axes(min(keys, key=str), drafter="broken", pairing="demo/broken")
    document = replace(document, decisions=decisions, missing=(broken,))
    code, creative = map(answer, sections(document))
    assert unmeasured_drafters(document) == ("demo/broken",)
    assert (code.verdict, code.answer) == (SpeedupVerdict.UNDECIDED, (Kind.NO_DRAFTER_SHOWN(),))
    assert creative.verdict is SpeedupVerdict.NO_SPEEDUP
    assert [*conclusion([code, creative])] == [Kind.NOTHING_SHOWN()]


def test_another_k_of_a_measured_drafter_may_be_missing(cpu_document: Document) -> None:
    names = [f"demo/{draft} {text}" for draft in ("draft", "poor") for text in ("code", "creative")]
    document = with_speedups(cpu_document, dict.fromkeys(names, (0.5, 0.9)))
    left_out = tuple(decision.leader.at(Fixed(9)) for decision in document.decisions)
    answers = [*map(answer, sections(replace(document, missing=left_out)))]
    assert [*conclusion(answers)] == [Kind.NO()]


def test_an_undecided_drafter_leaves_the_workload_undecided(cpu_document: Document) -> None:
    undecided = dict.fromkeys(
        ("demo/draft code", "demo/poor code", "demo/draft creative"), (0.9, 1.0)
    )
    document = with_speedups(cpu_document, {**undecided, "demo/poor creative": (0.9, 1.5)})
    _, creative = map(answer, sections(document))
    assert creative.verdict is SpeedupVerdict.UNDECIDED
    assert creative.answer == (Kind.NO_DRAFTER_SHOWN(),)


def test_several_temperatures_are_distinguished(gpu_document: Document) -> None:
    titles = [line.split(":")[0] for line in answer_lines(gpu_document) if line[0] != " "]
    assert titles == [
        "code, temperature 0",
        "code, temperature 1",
        "creative, temperature 0",
        "creative, temperature 1",
    ]


def test_several_targets_are_distinguished(cpu_document: Document) -> None:
    def rename(cell: CellSummary) -> CellSummary:
        return replace(cell, key=with_axes(cell.key, target="other", pairing="other"))

    baselines = [cell for cell in cpu_document.cells if cell.key.draft.k == 0]
    other = tuple(map(rename, baselines))
    plans = [CellPlan(key=cell.key, num_prompts=6, num_repeats=1) for cell in other]
    document = replace(
        cpu_document,
        run=replace(cpu_document.run, cells=(*cpu_document.run.cells, *plans)),
        cells=(*cpu_document.cells, *other),
    )
    lines = answer_lines(document)
    assert lines[0].startswith("demo, code: demo/draft, K=")
    assert lines[-1].startswith("other, creative: only K=0 ")


def test_without_a_drafter_the_speed_of_the_target_is_printed(baseline_document: Document) -> None:
    (only,) = map(answer, sections(baseline_document))
    assert only.verdict is SpeedupVerdict.NOT_MEASURED
    assert [said.kind for said in only.answer] == [Kind.ONLY_BASELINE, Kind.ADD_K]
    assert [*conclusion([only])] == [Kind.NO_ANSWER()]


def test_without_a_valid_baseline_no_speed_is_reported(baseline_document: Document) -> None:
    cells = tuple(replace(cell, valid=False) for cell in baseline_document.cells)
    (line,) = answer_lines(replace(baseline_document, cells=cells))
    assert line == "code: undecided: no valid measurement of K=0"


def test_a_workload_that_was_not_reached_is_reported_as_not_measured() -> None:
    stored = stored_run(SMALL)
    document = build_document(replace(stored, blocks=()))
    assert answer_lines(document) == ["code: not measured", "creative: not measured"]


def test_a_shared_k_is_reported_only_for_pairings_that_help(cpu_document: Document) -> None:
    (line,) = shared_k_lines(cpu_document)
    (shared, _) = cpu_document.shared_k
    assert shared.key.pairing == "demo/draft"
    assert re.match(f"demo/draft, one K .*: K={shared.num_speculative_tokens}; ", line)
    assert " 0.0%" not in line


@pytest.mark.parametrize(
    ("high", "verdict", "figure"),
    [(1.0, SpeedupVerdict.NO_SPEEDUP, "0.97x"), (1.1, SpeedupVerdict.UNDECIDED, "0.93x to 1.10x")],
)
def test_a_card_shows_the_speedup_of_whole_requests_if_it_decided(
    baseline_document: Document, high: float, verdict: SpeedupVerdict, figure: str
) -> None:
    whole = Interval(estimate=0.97, low=0.93, high=high)
    cell = replace(summary(4, 1.4, 1.48, 1.55), speedup_end_to_end=whole)
    (section,) = sections(baseline_document)
    (card,) = answer(replace(section, decisions=(decide(choose([cell])),))).cards
    assert (card.verdict, card.figure) == (verdict, figure)
