"""Runs of schema 4, whose plans were lowered when they were read: they load as they did then."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.bench.benchmark import require_same_work
from specbench.bench.plan import TargetPlan
from specbench.errors import UsageError
from specbench.report.document import build_document
from specbench.report.notes import run_warnings
from specbench.runs import load_run, resume_run
from tests.bench.fake_runs import RUN_ID, SETTINGS, SIX, make_plan, measure
from tests.bench.fakes import FakeClock, FakeEngine
from tests.settings.flat_settings import changed

RUNS = Path(__file__).parent / "runs_of_schema_4"
DEPTHS = {"default-k": {"good": 2, "bad": 2}, "default-range": {"good": 4}}
NAMES = pytest.mark.parametrize("name", list(DEPTHS))


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RUNS / name / "expected.json").read_text())
    return found


def plan_of(name: str, folder: Path, depths: dict[str, int]) -> TargetPlan:
    """The same work as the code of today plans it."""
    settings = changed(SETTINGS, command="run", num_speculative_tokens=None)
    if name == "default-range":
        ks = (0, 2, 4, 6)
        settings = changed(SETTINGS, num_speculative_tokens=ks, is_default_range=True)
    return make_plan(folder, settings, SIX, depths)


def begun(name: str, folder: Path, num_lines: int | None) -> Path:
    """The run in a folder of its own, cut off after so many records; its root."""
    shutil.copytree(RUNS / name, folder / RUN_ID)
    records = folder / RUN_ID / "records.jsonl"
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:num_lines]))
    run = folder / RUN_ID / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"run_id": RUN_ID}))
    return folder


@NAMES
def test_a_run_of_schema_4_says_what_it_said(name: str) -> None:
    said = expected(name)
    document = build_document(load_run(RUNS / name, RUNS))
    assert {cell.key.id: cell.num_requests for cell in document.cells} == said["cells"]
    assert [decision.sentence for decision in document.decisions] == said["sentences"]
    assert run_warnings(document) == said["warnings"]
    assert [key.id for key in document.missing] == said["missing"]
    reachable = [i for i in said["planned"] if i not in said["left_out"]]
    assert [key.id for key in document.run.keys] == reachable


@NAMES
@pytest.mark.parametrize("num_lines", [0, 1, 12, None])
def test_it_is_resumed_wherever_it_was_cut_off(name: str, num_lines: int, tmp_path: Path) -> None:
    plan = plan_of(name, tmp_path, DEPTHS[name])
    root = begun(name, tmp_path, num_lines)
    depths = {("big", drafter): k for drafter, k in plan.depths.items()}
    with resume_run(root, RUN_ID, depths) as ledger:
        run = replace(ledger.run, workload_sha256={w.name: w.sha256 for w in plan.workloads})
    require_same_work(run, [plan])

    engine = FakeEngine(FakeClock(), noise=0.05)
    engine.record = replace(engine.record, max_k=DEPTHS[name])
    document = build_document(measure(plan, engine, root))
    said = expected(name)
    assert {cell.key.id: cell.num_requests for cell in document.cells} == said["cells"]
    assert document.missing == ()
    assert document.is_complete


def test_a_plan_of_schema_4_is_not_taken_for_another(tmp_path: Path) -> None:
    plan = plan_of("default-k", tmp_path, {"good": 2})  # `bad` drafts K = 4 now
    run = load_run(RUNS / "default-k", RUNS).run
    run = replace(run, workload_sha256={w.name: w.sha256 for w in plan.workloads})
    with pytest.raises(UsageError, match="the plan would differ"):
        require_same_work(run, [plan])


def test_a_plan_of_today_is_stored_as_it_is_measured_and_read_as_it_was_stored(
    tmp_path: Path,
) -> None:
    """An engine that knows less deep drafters than the plan does not change what is read."""
    plan = plan_of("default-range", tmp_path, {"good": 4})
    engine = FakeEngine(FakeClock())
    engine.record = replace(engine.record, max_k={"good": 2, "bad": 2})
    stored = measure(plan, engine, tmp_path)
    assert stored.run.cells == plan.cell_plans()
    assert stored.run.warnings == tuple(plan.left_out)
