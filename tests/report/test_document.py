"""A stored run, finished or not, as one analyzed document."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import typer

from specbench.cli.measure import require_complete
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.summary import summarize
from specbench.records import BlockRecord, Kind, RunRecord, SpeedupVerdict
from specbench.report.document import Document, build_document, num_usable
from specbench.report.notes import run_warnings
from specbench.report.rows import rows
from specbench.runs import StoredRun
from tests.report.stored_runs import BROKEN, SMALL, Wish, stored_run
from tests.report.synthetic_records import NUM_TOKENS, environment
from tests.settings.flat_settings import changed


@pytest.fixture(scope="module")
def stored() -> StoredRun:
    return stored_run(SMALL)


def decode_seconds(stored: StoredRun, cell_id: str, purpose: str) -> float:
    """Summed by hand over the run's blocks."""
    return sum(
        request.decode_s or 0.0
        for block in stored.blocks
        if block.purpose == purpose and any(r.cell_id == cell_id for r in block.requests)
        for request in block.requests
        if request.cell_id == cell_id
    )


def test_a_decision_quotes_the_confirmation_of_the_winner(stored: StoredRun) -> None:
    document = build_document(stored)
    decision = next(d for d in document.decisions if d.draft.k > 0)
    chosen = next(
        cell.key
        for cell in document.cells
        if (cell.key.pairing, cell.key.condition.workload, cell.key.draft.k)
        == (decision.leader.pairing, decision.leader.condition.workload, decision.draft.k)
    )
    base_id = f"demo|{decision.leader.condition.workload}|builtin|none|k0|c1|t0|float32"
    first, second = (
        decode_seconds(stored, base_id, purpose) / decode_seconds(stored, chosen.id, purpose)
        for purpose in ("explore", "confirm")
    )
    assert decision.speedup is not None
    assert decision.speedup.estimate == pytest.approx(second)
    assert abs(first - second) > 0.001  # otherwise the line above shows nothing


def test_explored_cells_exclude_requests_of_the_confirmation_run(stored: StoredRun) -> None:
    cells = build_document(stored).cells
    assert {cell.num_requests for cell in cells} == {6}


def test_an_interrupted_confirmation_decides_nothing(interrupted_document: Document) -> None:
    decision = next(
        d for d in interrupted_document.decisions if d.leader.condition.workload == "code"
    )
    assert decision.speedup is None
    assert (decision.draft.method, decision.draft.k) == ("none", 0)
    assert not interrupted_document.is_complete
    folder = interrupted_document.folder
    command = f"--runs-dir {folder.parent} --resume {folder.name}"
    warnings = run_warnings(interrupted_document)
    (incomplete,) = (warning for warning in warnings if warning.kind is Kind.INCOMPLETE)
    assert command in incomplete.figures["command"]


def test_the_baseline_is_one_cell_for_each_workload(cpu_document: Document) -> None:
    baselines = [c for c in cpu_document.cells if c.key.draft.k == 0]
    assert [c.key.condition.workload for c in baselines] == ["code", "creative"]
    assert {(c.key.pairing, c.key.draft.drafter, c.key.draft.method) for c in baselines} == {
        ("demo", "none", "none")
    }
    assert {c.speedup for c in baselines} == {None}


def test_each_pairing_workload_and_temperature_has_one_decision(gpu_document: Document) -> None:
    combinations = [
        (d.leader.pairing, d.leader.condition.workload, d.leader.condition.temperature)
        for d in gpu_document.decisions
    ]
    assert len(combinations) == len(set(combinations)) == 2 * 2 * 2


def test_an_invalid_cell_is_listed_and_never_decided_for(gpu_document: Document) -> None:
    invalid = [cell for cell in gpu_document.cells if not cell.valid]
    assert {cell.key.draft.k for cell in invalid} == {4}
    assert all(cell.invalid_reasons[0].kind is Kind.THROTTLED for cell in invalid)
    assert all(cell.metrics for cell in invalid)
    assert all(d.draft.k != 4 for d in gpu_document.decisions)


def test_failures_are_part_of_the_document(cpu_document: Document) -> None:
    assert cpu_document.failures == (BROKEN,)


def test_planned_cells_without_a_request_are_missing(stored: StoredRun) -> None:
    code_only = tuple(block for block in stored.blocks if block.workload == "code")
    document = build_document(replace(stored, blocks=code_only))
    assert {key.condition.workload for key in document.missing} == {"creative"}
    assert len(document.missing) == 7
    (warning,) = run_warnings(document)
    assert warning.kind is Kind.CELLS_MISSING
    assert (warning.figures["missing"], warning.figures["cells"]) == (7, 14)
    assert warning.figures["names"][:2] == ("demo on creative", "demo/draft on creative")


def test_a_k_skipped_for_the_budget_is_reported_but_not_missing(stored: StoredRun) -> None:
    (key,) = (
        key
        for key in stored.run.keys
        if (key.pairing, key.draft.k, key.condition.workload) == ("demo/draft", 4, "code")
    )
    blocks = tuple(
        replace(block, requests=tuple(r for r in block.requests if r.cell_id != key.id))
        for block in stored.blocks
    )
    effort = replace(stored.run.settings.effort, budget_s=60.0)
    run = replace(stored.run, settings=replace(stored.run.settings, effort=effort))
    paid = replace(stored, blocks=blocks, failures=())
    for variant, gap in ((paid, True), (replace(paid, run=run), False)):
        document = build_document(variant)
        assert document.missing == (key,)
        assert document.is_skipped_for_budget(key) is not gap
        skipped = Kind.OF_CELLS(
            cells=("demo/draft K=4 (code)",), because=(Kind.BUDGET_ELSEWHERE(),)
        )
        missing = Kind.CELLS_MISSING(missing=1, cells=14, names=("demo/draft on code",))
        assert run_warnings(document) == [missing if gap else skipped]
        with pytest.raises(typer.Exit) if gap else nullcontext():
            require_complete(document)
    assert not build_document(replace(paid, run=run, is_complete=False)).is_skipped_for_budget(key)
    of_poor = {key.id for key in stored.run.keys if key.pairing == "demo/poor"}
    rest = tuple(
        replace(block, requests=tuple(r for r in block.requests if r.cell_id not in of_poor))
        for block in blocks
        if block.workload == "code"
    )
    document = build_document(replace(paid, run=run, blocks=rest))
    lost = {key for key in document.missing if not document.is_skipped_for_budget(key)}
    assert {(key.pairing, key.condition.workload) for key in lost} == {
        ("demo/poor", "code"),
        *((name, "creative") for name in ("demo", "demo/draft", "demo/poor")),
    }


def test_the_decision_names_the_budget_if_it_prevented_other_k(stored: StoredRun) -> None:
    effort = replace(stored.run.settings.effort, budget_s=60.0)
    run = replace(stored.run, settings=replace(stored.run.settings, effort=effort))
    keys = [
        key for key in run.keys if key.pairing == "demo/draft" and key.condition.workload == "code"
    ]
    prompts = sorted({block.prompt_id for block in stored.blocks if block.workload == "code"})

    def told(run: RunRecord, num_prompts: int, *lacking: int) -> set[Kind]:
        """The kinds of the answer if these K have only the first prompts."""
        cut = {key.id for key in keys if key.draft.k in lacking}
        blocks = tuple(
            block
            if block.prompt_id in prompts[:num_prompts]
            else replace(block, requests=tuple(r for r in block.requests if r.cell_id not in cut))
            for block in stored.blocks
        )
        decisions = build_document(replace(stored, run=run, blocks=blocks)).decisions
        answers = (d.answer for d in decisions if d.leader in keys)
        return {reason.kind for reason in next(answers)}

    assert Kind.ONLY_K not in told(run, 0, 1)
    assert Kind.ONLY_K in told(run, 0, 1, 2)
    assert Kind.ONLY_K in told(run, 1, 1, 2)
    assert Kind.ONLY_K not in told(stored.run, 0, 1, 2)
    assert Kind.LONGER_BUDGET in told(run, 3, 1, 2, 4)
    assert Kind.LONGER_BUDGET not in told(stored.run, 3, 1, 2, 4)


def test_a_resume_with_other_packages_or_threads_is_a_warning(stored: StoredRun) -> None:
    same = replace(
        environment(is_gpu=False), created_at="2026-11-22", command=("specbench", "--resume")
    )
    other = replace(same, threads=2, packages={"torch": "2.14.0", "transformers": "5.23.0"})
    assert run_warnings(build_document(replace(stored, sessions=(same,)))) == []
    (warning,) = run_warnings(build_document(replace(stored, sessions=(same, other))))
    torch = Kind.FACT_CHANGED(name="torch", baseline="2.13.0", candidate="2.14.0")
    threads = Kind.FACT_CHANGED(name="threads", baseline="1", candidate="2")
    changes = (torch, threads)
    assert warning == Kind.RESUMED_ELSEWHERE(created_at="2026-11-22", changes=changes)


def test_models_recorded_again_on_resume_are_listed_once(stored: StoredRun) -> None:
    newer = tuple(replace(record, weights_bytes=1) for record in stored.memory)
    document = build_document(
        replace(stored, models=stored.models * 2, memory=stored.memory + newer)
    )
    assert document.models == stored.models
    assert document.memory == newer


def test_a_shared_k_needs_several_workloads(cpu_document: Document) -> None:
    assert [c.key.pairing for c in cpu_document.shared_k] == ["demo/draft", "demo/poor"]
    assert set(cpu_document.shared_k[0].regret) == {"code", "creative"}
    alone = build_document(stored_run(Wish(ks=(0, 1), workloads=("code",), num_prompts=5)))
    assert alone.shared_k == ()


def test_the_longest_context_is_prompt_and_output_together(cpu_document: Document) -> None:
    assert cpu_document.longest_context == {"demo": 40 + NUM_TOKENS}


def test_prompts_that_another_target_can_use_do_not_count_as_available() -> None:
    stored = stored_run(SMALL)
    condition = stored.run.cells[0].key.condition
    number = {"another": {condition.workload: 10}, condition.target: {condition.workload: 6}}
    stored = replace(stored, run=replace(stored.run, workload_prompts=number))
    assert num_usable(stored, condition) == 6
    unsaid = replace(stored, run=replace(stored.run, workload_prompts={}))
    assert num_usable(unsaid, condition) is None


def test_prompts_are_those_that_the_decision_quotes() -> None:
    """Without a winner the best K is measured again only next to K = auto."""
    stored = stored_run(replace(SMALL, drafters=("poor",), workloads=("code",)))
    again = [replace(block, purpose="confirm", repeat=9) for block in stored.blocks[:5]]
    document = build_document(replace(stored, blocks=(*stored.blocks, *again)))
    (decision,) = document.decisions
    speedups = {cell.key: cell.speedup for cell in document.cells}
    assert decision.speedup == speedups[decision.leader]
    assert len(document.prompts[decision.leader]) == SMALL.num_prompts
    (row,) = rows(document)
    assert row["num_prompts"] == SMALL.num_prompts


@pytest.mark.parametrize(
    ("changes", "explored"),
    [
        ({"drafters": ("poor",)}, SpeedupVerdict.UNDECIDED),
        # The exploration chose a single K among several drafters.
        ({"ks": (0, 4), "drafters": ("draft",), "is_complete": False}, SpeedupVerdict.FASTER),
    ],
)
def test_a_confirmation_on_other_prompts_is_quoted(
    changes: dict[str, Any], explored: SpeedupVerdict
) -> None:
    stored = stored_run(replace(SMALL, workloads=("code",), **changes))
    (plain,) = build_document(stored).decisions
    assert plain.verdict is explored
    again = [on_another_prompt(block) for block in stored.blocks]
    both = replace(stored, blocks=(*stored.blocks, *again))
    (decision,) = build_document(both).decisions
    confirmed = {cell.key: cell for cell in summarize(aggregate_run(both, "confirm"))}
    assert decision.speedup == confirmed[decision.leader].speedup != plain.speedup
    assert Kind.OTHER_PROMPTS() in decision.reasons
    (short,) = build_document(replace(stored, blocks=(*stored.blocks, *again[:3]))).decisions
    assert short.speedup == plain.speedup  # three prompts have no interval


def test_a_confirmation_that_has_goodput_only_is_quoted_under_an_slo() -> None:
    """Answers that came at once have no time of decoding."""
    stored = stored_run(replace(SMALL, drafters=("poor",), workloads=("code",)))
    settings = changed(stored.run.settings, slo={"request_latency_s": 100.0})
    stored = replace(stored, run=replace(stored.run, settings=settings))
    (plain,) = build_document(stored).decisions
    again = [on_another_prompt(block) for block in stored.blocks]
    at_once = [
        replace(block, requests=tuple(replace(r, decode_s=None) for r in block.requests))
        for block in again
    ]
    both = replace(stored, blocks=(*stored.blocks, *at_once))
    (decision,) = build_document(both).decisions
    confirmed = {cell.key: cell for cell in summarize(aggregate_run(both, "confirm"))}
    goodput = confirmed[decision.leader].goodput
    assert goodput is not None
    assert confirmed[decision.leader].speedup is None
    assert decision.speedup == goodput.ratio != plain.speedup


def on_another_prompt(block: BlockRecord) -> BlockRecord:
    """A block that confirms, with requests of another prompt, all 1% slower than K = 0 was."""
    requests = (
        replace(r, prompt_id=f"other {r.prompt_id}", decode_s=(r.decode_s or 0.0) * (1 + i / 50))
        for i, r in enumerate(block.requests)
    )
    name = f"other {block.prompt_id}"
    return replace(block, prompt_id=name, purpose="confirm", repeat=9, requests=tuple(requests))
