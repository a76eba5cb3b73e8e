import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import StoreError
from specbench.records import RunRecord
from specbench.report.document import build_document
from specbench.report.document_json import to_json
from specbench.runs import (
    LATEST,
    create_run,
    list_runs,
    load_run,
    resume_command,
    resume_run,
    runs_of,
)
from specbench.runs.codec import encode_run
from tests.runs.stored_examples import ENVIRONMENT, EVERY_RECORD, block, run
from tests.settings.flat_settings import changed


def run_at(run_id: str, created_at: str) -> RunRecord:
    environment = dataclasses.replace(ENVIRONMENT, created_at=created_at)
    return dataclasses.replace(run(run_id), environment=environment)


@pytest.fixture
def three_runs(tmp_path: Path) -> Path:
    """`b` is complete, `a` is newer and interrupted, `broken` is damaged."""
    with create_run(tmp_path, run_at("b", "2026-11-21T01:00:00+00:00")) as writer:
        for record in EVERY_RECORD:
            writer.append(record)
    with create_run(tmp_path, run_at("a", "2026-11-21T02:00:00+00:00")) as writer:
        writer.append(block("one"))
        writer.append(block("two"))
    create_run(tmp_path, run("broken")).close()
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "a-file").touch()
    return tmp_path


def test_a_loaded_run_has_every_record_by_type(three_runs: Path):
    stored = load_run("b", three_runs)

    sorted_records = (
        *stored.blocks,
        *stored.references,
        *stored.memory,
        *stored.forwards,
        *stored.failures,
        *stored.models,
        *stored.traces,
        *stored.sessions,
    )
    assert sorted_records == EVERY_RECORD[:-1]
    assert stored.is_complete
    assert stored.run.run_id == "b"
    assert stored.folder == three_runs / "b"


def test_a_run_is_found_by_path_by_id_and_as_the_latest(three_runs: Path):
    by_id = load_run("a", three_runs)

    assert load_run(three_runs / "a", Path("elsewhere")) == by_id
    assert load_run(str(three_runs / "a"), Path("elsewhere")) == by_id
    assert load_run(LATEST, three_runs) == by_id
    with resume_run(three_runs, LATEST) as writer:
        assert writer.run.run_id == "a"


def test_runs_are_listed_oldest_first_including_damaged_ones(three_runs: Path):
    broken, complete, interrupted = list_runs(three_runs)

    assert (complete.run_id, complete.num_blocks, complete.is_complete) == ("b", 1, True)
    assert (interrupted.run_id, interrupted.num_blocks, interrupted.is_complete) == ("a", 2, False)
    assert interrupted.created_at == "2026-11-21T02:00:00+00:00"
    assert interrupted.pairings == ("demo/draft",)
    assert interrupted.workloads == ("chat",)
    assert interrupted.problem == ""
    assert broken.run_id == "broken"
    assert "run.json: damaged" in broken.problem


def test_the_runs_that_measured_a_pairing_are_given_newest_first(three_runs: Path):
    assert [*runs_of({"demo/draft", "demo/other"}, three_runs)] == ["a", "b"]
    assert not [*runs_of({"demo/other"}, three_runs)]


def test_the_error_for_an_unknown_run_lists_the_known_ones(three_runs: Path):
    with pytest.raises(StoreError, match=r"'c' in .*: broken, b, a$"):
        load_run("c", three_runs)
    with pytest.raises(StoreError, match="no run 'c'"):
        resume_run(three_runs, "c")


@pytest.mark.parametrize("name", ["c", LATEST])
def test_the_error_states_that_no_run_is_stored(tmp_path: Path, name: str):
    assert list_runs(tmp_path / "absent") == ()
    with pytest.raises(StoreError, match=f"'{name}'.*none yet"):
        load_run(name, tmp_path / "absent")


def test_a_run_killed_before_its_first_record_is_empty_and_can_resume(tmp_path: Path):
    create_run(tmp_path, run("a")).close()
    (tmp_path / "a" / "records.jsonl").unlink()

    with pytest.raises(StoreError, match=f"--runs-dir {tmp_path} --resume a"):
        load_run("a", tmp_path)
    assert load_run("a", tmp_path, also_empty=True).blocks == ()
    assert [(listing.run_id, listing.num_blocks) for listing in list_runs(tmp_path)] == [("a", 0)]
    with resume_run(tmp_path, "a") as writer:
        writer.append(block("one"))
    assert load_run("a", tmp_path).blocks == (block("one"),)


def test_the_command_that_resumes_a_run_names_its_folder():
    by_pair = dataclasses.replace(run(), settings=changed(run().settings, most_drafters=3))
    commands = [resume_command(Path("my runs/a"), stored) for stored in (run(), by_pair)]
    assert list(map(shlex.split, commands)) == [
        ["specbench", *command, "--runs-dir", "my runs", "--resume", "a"]
        for command in (["sweep-k"], ["pair", "demo"])
    ]


RUNS = Path(__file__).parent / "stored_sweep"
EXPECTED: dict[str, Any] = json.loads((RUNS / "expected.json").read_text())


# Today's words are better, and today's intervals are over states of the machine too.
WORDS = {"sentence", "reasons", "warnings", "text", "answer"}
UNCERTAINTY = {"low", "high", "minimum_detectable_effect"}


def facts(value: Any) -> Any:
    """The values without words and uncertainty; numbers without digits that depend on the order of
    a sum."""
    if isinstance(value, dict):
        left_out = WORDS | UNCERTAINTY
        return {name: facts(item) for name, item in value.items() if name not in left_out}
    if isinstance(value, float):
        return float(f"{value:.12g}")
    return [facts(item) for item in value] if isinstance(value, list) else value


def of_then(now: Any, then: Any) -> Any:
    """The run without empty keys."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {name: of_then(value, then[name]) for name, value in now.items() if name in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [of_then(*pair) for pair in zip(now, then, strict=True)]
    return now


def test_a_stored_sweep_gives_the_same_cells_and_report_as_before() -> None:
    stored = load_run(RUNS / "sweep", RUNS)
    assert [key.id for key in stored.run.keys] == EXPECTED["ids"]
    then = EXPECTED["report"]
    document = of_then(json.loads(json.dumps(to_json(build_document(stored)))), then)
    for decision in (*document["decisions"], *then["decisions"]):
        if decision["num_speculative_tokens"] == 0:  # it quotes the best K today
            del decision["speedup"]
    assert facts(document) == facts(then)
    now, before = (
        [[name for name in cell if name not in WORDS] for cell in (*d["cells"], *d["decisions"])]
        for d in (document, then)
    )
    assert now == before


def test_a_plan_is_stored_again_entry_by_entry() -> None:
    stored = load_run(RUNS / "sweep", RUNS)
    then = json.loads((RUNS / "sweep" / "run.json").read_bytes())
    assert of_then(json.loads(encode_run(stored.run)), then) == then
