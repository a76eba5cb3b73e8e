"""A run that is interrupted, and resumed with the same work."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.bench import passes, pruning
from specbench.bench.benchmark import require_same_work
from specbench.bench.budget import spent_s
from specbench.errors import ModelError, UsageError
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Pairing
from specbench.report.document import build_document
from specbench.runs import load_run, resume_run
from tests.bench.fake_runs import (
    HALF,
    RUN_ID,
    SETTINGS,
    SIX,
    TWELVE,
    TWENTY,
    cells_of,
    confirmed,
    explored,
    ids_of,
    make_plan,
    measure,
    measured,
    run_record,
)
from tests.bench.fakes import FakeClock, FakeEngine, Interrupted, RecordingWatch, stop_after
from tests.settings.flat_settings import changed


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    return measured(root, HALF, TWELVE)


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", range(1, 7))
def test_a_run_interrupted_after_any_block_resumes_to_the_same_result(
    tmp_path, uninterrupted, num_blocks
):
    plan = make_plan(tmp_path, HALF, TWELVE)
    with pytest.raises(Interrupted):
        measure(plan, FakeEngine(), tmp_path, stop_after(num_blocks))
    before = load_run(RUN_ID, tmp_path)
    assert len(before.blocks) == num_blocks
    assert not before.is_complete

    after = measure(plan, FakeEngine(), tmp_path)
    assert after.blocks[:num_blocks] == before.blocks
    assert ids_of(after) == ids_of(uninterrupted)
    assert len(after.references) == 12
    assert after.is_complete


@pytest.mark.slow
@pytest.mark.parametrize("num_calls", [1, 9, 12, 44, 57])
def test_ctrl_c_in_the_middle_of_a_block_costs_that_block_only(tmp_path, uninterrupted, num_calls):
    plan = make_plan(tmp_path, HALF, TWELVE)
    engine = FakeEngine()
    engine.breaks = lambda _: Interrupted() if len(engine.calls) == num_calls else None
    with pytest.raises(Interrupted):
        measure(plan, engine, tmp_path)
    before = load_run(RUN_ID, tmp_path)
    assert all(len(block.requests) == len(block.order) for block in before.blocks)

    after = measure(plan, FakeEngine(), tmp_path)
    assert after.blocks[: len(before.blocks)] == before.blocks
    assert ids_of(after) == ids_of(uninterrupted)


def test_a_run_interrupted_again_and_again_has_every_block_once(tmp_path, uninterrupted):
    plan = make_plan(tmp_path, HALF, TWELVE)
    for num_blocks in (1, 2, 4, 6):
        with pytest.raises(Interrupted):
            measure(plan, FakeEngine(), tmp_path, stop_after(num_blocks))
    after = measure(plan, FakeEngine(), tmp_path)
    assert ids_of(after) == ids_of(uninterrupted)
    assert set(Counter(ids_of(after)).values()) == {1}


def test_a_run_stopped_while_confirming_resumes_without_exploring(tmp_path):
    plan = make_plan(tmp_path, changed(SETTINGS, budget_s=2600.0), [f"p {i}" for i in range(20)])
    clock = FakeClock()
    engine = FakeEngine(clock)
    confirming = []

    def stop_in_confirming(_):
        blocks = load_run(RUN_ID, tmp_path).blocks
        confirming.extend(block for block in blocks if block.purpose == "confirm")
        if confirming:
            raise Interrupted

    with pytest.raises(Interrupted):
        measure(plan, engine, tmp_path, RecordingWatch(stop_in_confirming))
    before = load_run(RUN_ID, tmp_path)

    # The time spent is computed from blocks, without loading and references: time seems to be left.
    after = measure(plan, FakeEngine(), tmp_path, spent_s=clock.now_s / 2)
    added = after.blocks[len(before.blocks) :]
    assert {block.purpose for block in added} == {"confirm"}
    assert {block.repeat for block in after.blocks if block.purpose == "confirm"} == {3}


def test_a_failure_met_in_every_session_is_stored_once(tmp_path):
    plan = make_plan(tmp_path, SETTINGS, SIX)
    refuses = {"bad": ModelError("it is not there")}
    for num_blocks in (1, 2):
        engine = FakeEngine(refuses=refuses)
        with pytest.raises(Interrupted):
            measure(plan, engine, tmp_path, stop_after(num_blocks))
    run = measure(plan, FakeEngine(refuses=refuses), tmp_path)
    assert len(run.failures) == 1


def test_a_drafter_missing_on_resume_is_skipped_and_the_run_continues(tmp_path):
    settings = changed(SETTINGS, pairings=("big/good",))
    plan = make_plan(tmp_path, settings, SIX)
    with pytest.raises(Interrupted):
        measure(plan, FakeEngine(), tmp_path, stop_after(6))

    gone = FakeEngine(refuses={"good": ModelError("it is not there")})
    run = measure(plan, gone, tmp_path)
    assert [failure.pairing for failure in run.failures] == ["big/good"]
    assert run.is_complete


@pytest.mark.parametrize("gone", [(), ("bad",)], ids=["it is back", "it is gone"])
def test_a_run_resumed_with_other_drafters_still_drops_k_under_its_budget(tmp_path, gone):
    plan = make_plan(tmp_path, changed(SETTINGS, budget_s=8000.0), TWENTY)
    engines = [
        FakeEngine(refuses=dict.fromkeys(names, ModelError("it is not there")))
        for names in ({"bad"}.difference(gone), gone)
    ]
    with pytest.raises(Interrupted):
        measure(plan, engines[0], tmp_path, stop_after(7))
    before = load_run(RUN_ID, tmp_path)
    run = measure(plan, engines[1], tmp_path)
    slow = "big/good|own.jsonl|builtin|ngram|k2|c1|t0|float32"
    assert not any(slow in block.order for block in explored(run)[len(before.blocks) + 5 :])


def test_a_complete_run_has_nothing_left_to_measure(tmp_path, uninterrupted):
    plan = make_plan(tmp_path, HALF, TWELVE)
    measure(plan, FakeEngine(), tmp_path)
    again = measure(plan, FakeEngine(), tmp_path)
    assert ids_of(again) == ids_of(uninterrupted)


def test_the_seconds_spent_are_those_of_this_targets_stored_requests(tmp_path):
    run = measured(tmp_path, SETTINGS, SIX)
    seconds = sum(r.total_s for block in run.blocks for r in block.requests)
    with resume_run(tmp_path, RUN_ID) as writer:
        assert spent_s(writer.stored, "big") == pytest.approx(seconds)
        assert spent_s(writer.stored, "other") == 0.0


def test_a_dropped_cell_stays_dropped_on_resume_even_if_the_rule_changed(tmp_path, monkeypatch):
    plan = make_plan(tmp_path, changed(SETTINGS, budget_s=3600.0), TWENTY)
    with pytest.raises(Interrupted):
        measure(plan, FakeEngine(), tmp_path, stop_after(7))
    dropped = [e for e in load_run(RUN_ID, tmp_path).extensions if e.kind == "drop"][-1]
    assert dropped.num_prompts == 5
    ids = {
        "big/bad|own.jsonl|builtin|ngram|k4|c1|t0|float32",
        "big/good|own.jsonl|builtin|ngram|k2|c1|t0|float32",
    }
    assert set(dropped.cell_ids) == ids

    monkeypatch.setattr(pruning, "_is_slower", lambda _: False)
    run = measure(plan, FakeEngine(), tmp_path)

    assert not any(cells_of(block) & ids for block in explored(run)[5:])
    drops = [extension.num_prompts for extension in run.extensions if extension.kind == "drop"]
    assert drops == [5, 20]  # each decided once


def test_the_winners_chosen_before_a_resume_are_confirmed(tmp_path, monkeypatch):
    plan = make_plan(tmp_path, HALF, TWELVE)

    def stop_in_confirming(_):
        if any(block.purpose == "confirm" for block in load_run(RUN_ID, tmp_path).blocks):
            raise Interrupted

    with pytest.raises(Interrupted):
        measure(plan, FakeEngine(), tmp_path, RecordingWatch(stop_in_confirming))
    before = load_run(RUN_ID, tmp_path)
    (chosen,) = (extension for extension in before.extensions if extension.kind == "confirm")
    assert {"big/good|own.jsonl|builtin|ngram|k4|c1|t0|float32"} == set(chosen.cell_ids)

    monkeypatch.setattr(passes, "winners", lambda cells: (cell.key.id for cell in cells))
    run = measure(plan, FakeEngine(), tmp_path)

    drafted = [{i for i in cells_of(b) if not i.startswith("big|")} for b in confirmed(run)]
    assert drafted == [set(chosen.cell_ids)] * 6
    assert [extension for extension in run.extensions if extension.kind == "confirm"] == [chosen]


def test_a_setting_that_reached_its_precision_is_not_reopened(tmp_path, monkeypatch):
    plan = make_plan(tmp_path, changed(SETTINGS, precision=0.5), [f"p{i}" for i in range(30)])
    whole = measure(plan, FakeEngine(), tmp_path)
    assert len(explored(whole)) == passes.PILOT
    (precise,) = (extension for extension in whole.extensions if extension.kind == "precise")
    assert precise.question == "big|own.jsonl|builtin|none|k0|c1|t0|float32"

    monkeypatch.setattr(passes, "num_needed", lambda *_: 30)
    assert len(explored(measure(plan, FakeEngine(), tmp_path))) == passes.PILOT


OWN = """\
targets:
  big:
    model: owner/big
    drafters:
      one: {method: draft_model, model: owner/small, note: a note}
"""


def pairing(folder: Path, text: str) -> Pairing:
    (folder / "own.yaml").write_text(text)
    (loaded,) = load_pairings(folder / "own.yaml").all
    return loaded


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("owner/small", "owner/other"),
        ("owner/big", "owner/bigger"),
        ("owner/small", "owner/small, revision: v2"),
        ("owner/small", "owner/small, quantization: int8"),
        ("owner/small", "owner/small, parameters: {tree: [4, 2]}"),
        ("owner/small", "owner/small, lossy: typical"),
    ],
)
def test_the_pairing_hash_covers_every_field_that_affects_results(
    before: str, after: str, tmp_path: Path
) -> None:
    sha256 = pairing(tmp_path, OWN).sha256
    assert pairing(tmp_path, OWN.replace(before, after, 1)).sha256 != sha256


@pytest.mark.parametrize("words", ["another note", "a note, weights_gib: 3"])
def test_the_pairing_hash_ignores_notes(words: str, tmp_path: Path) -> None:
    sha256 = pairing(tmp_path, OWN).sha256
    assert pairing(tmp_path, OWN.replace("a note", words)).sha256 == sha256


def test_a_changed_pairing_is_refused_on_resume_with_its_name(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SETTINGS)
    run = run_record(plan, workload_sha256={w.name: w.sha256 for w in plan.workloads})
    require_same_work(run, [plan])
    for sha256 in ({}, {**run.pairing_sha256, "big/bad": "0" * 64}):
        with pytest.raises(UsageError, match=r"big/bad.*pairings\.yaml"):
            require_same_work(replace(run, pairing_sha256=sha256), [plan])
    with pytest.raises(UsageError, match=run.run_id):
        require_same_work(replace(run, cells=run.cells[1:]), [plan])


def test_a_failure_disappears_when_its_cells_are_measured_later(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SETTINGS)
    gone = FakeEngine(refuses={"bad": ModelError("it is not there")})
    with pytest.raises(Interrupted):
        measure(plan, gone, tmp_path, stop_after())
    document = build_document(measure(plan, gone, tmp_path))
    assert [failure.pairing for failure in document.failures] == ["big/bad"]

    document = build_document(measure(plan, FakeEngine(), tmp_path))
    assert document.failures == ()
    assert document.missing == ()
