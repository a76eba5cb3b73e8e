"""The sentences that answer the user's question."""

import re
from dataclasses import replace

from specbench.records import CellPlan, CellSummary, Decision, DraftConfig, Fixed, Interval
from specbench.report.answers import answer_lines, shared_k_lines
from specbench.report.document import Document, build_document
from tests.cell_keys import with_axes
from tests.report.stored_runs import SMALL, stored_run


def with_speedups(document: Document, speedups: dict[str, tuple[float, float]]) -> Document:
    """The document with given decisions: bounds by `pairing workload`, 1.5 in their middle."""

    def decide(decision: Decision) -> Decision:
        workload = decision.condition.workload
        low, high = speedups[f"{decision.leader.pairing} {workload}"]
        helps = low > 1.01
        return replace(
            decision,
            draft=decision.leader.at(Fixed(4)).draft if helps else DraftConfig.none,
            speedup=Interval(estimate=(low + high) / 2, low=low, high=high),
            sentence=f"{workload}: {'K=4' if helps else 'no'} [{low}, {high}]",
        )

    return replace(document, decisions=tuple(map(decide, document.decisions)))


def test_the_answer_omits_the_name_of_a_single_pairing(interrupted_document: Document) -> None:
    document = with_speedups(
        interrupted_document, {"demo/draft code": (1.8, 2.0), "demo/draft creative": (0.9, 1.0)}
    )
    assert answer_lines(document) == ["code: K=4 [1.8, 2.0]", "creative: no [0.9, 1.0]"]


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
    assert (code, draft) == ("code: demo/poor, K=4 [1.3, 1.4]", "  demo/draft: K=4 [1.2, 3.0]")
    assert re.match("creative: no speedup ", creative)
    assert rest == ["  demo/draft: no [0.8, 0.9]", "  demo/poor: no [0.5, 1.02]"]


def test_an_undecided_drafter_leaves_the_workload_undecided(cpu_document: Document) -> None:
    undecided = dict.fromkeys(
        ("demo/draft code", "demo/poor code", "demo/draft creative"), (0.9, 1.0)
    )
    document = with_speedups(cpu_document, {**undecided, "demo/poor creative": (0.9, 1.5)})
    assert answer_lines(document)[3].startswith("creative: undecided: ")


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
    (line,) = answer_lines(baseline_document)
    assert re.match(r"code: only K=0 .* tokens/s\).* -k 0\.\.8", line)


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
