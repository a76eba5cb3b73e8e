"""A run that measured nothing is `failed`, and no command uses it as the latest."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer import Exit

from specbench.cli.measure import require_measured
from specbench.records import BlockRecord
from specbench.runs import create_run, load_run
from tests.cli.calls import specbench
from tests.report.stored_runs import BROKEN, SMALL, keep, stored_run
from tests.report.synthetic_records import environment
from tests.runs.stored_examples import FAILED_REQUEST, block, run
from tests.settings.flat_settings import changed

GOOD, LOST, REFUSED, SHORT = "a-good", "b-lost", "c-refused", "d-short"
FAILED = {
    LOST: 'out of memory: "café"',
    REFUSED: "demo/broken: no such folder: models/broken",
    SHORT: "its budget of 3 s was over before the first prompt",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good run, followed by three that failed: all requests, the model, or no time."""
    folder = tmp_path_factory.mktemp("failed")
    keep(folder / "reports", GOOD, stored_run(replace(SMALL, drafters=("draft",))))
    later = replace(environment(is_gpu=False), created_at="2026-12-01T00:00:00+00:00")
    failing: dict[str, list[object]] = {
        LOST: [replace(block("a"), requests=(FAILED_REQUEST,))],
        REFUSED: [BROKEN],
        SHORT: [],
    }
    for name, records in failing.items():
        run_record = replace(run(name), environment=later)
        if name == SHORT:
            run_record = replace(run_record, settings=changed(run_record.settings, budget_s=3.0))
        with create_run(folder / "reports", run_record) as store:
            for record in records:
                store.append(record)
            store.finish()
            store.finish()  # says nothing new
    return folder


def test_failed_runs_are_listed_as_failed(folder: Path) -> None:
    rows = json.loads(specbench("list", "runs", "--json", cwd=folder).out)
    states = {row["run"]: row["state"] for row in rows}
    assert states == {GOOD: "complete", **dict.fromkeys(FAILED, "failed")}


@pytest.mark.parametrize(
    "command",
    [
        ("recommend", "--json"),
        ("report", "--json", "--format", "csv"),
        ("export", "--json"),
        ("history", "--json"),
        ("check", GOOD, "latest", "--json"),
    ],
    ids=lambda command: command[0],
)
def test_latest_skips_failed_runs(folder: Path, command) -> None:
    if command[0] == "export":
        (folder / "pairings.yaml").write_text(
            "targets: {demo: {model: 'demo:target', drafters: {draft: {method: ngram}}}}"
        )
        command = (*command, "demo/draft", "--engine", "vllm")
    ran = specbench(*command, cwd=folder)
    assert ran.code in (0, 3), ran.err
    assert GOOD in ran.out
    assert not any(name in ran.out for name in FAILED)


@pytest.mark.parametrize("name", FAILED)
@pytest.mark.parametrize("command", ["recommend", "report", "check"])
def test_a_failed_run_given_by_name_is_refused_with_the_reason(folder: Path, name, command) -> None:
    ran = specbench(command, *([GOOD] if command == "check" else []), name, cwd=folder)
    assert ran.code == 2
    assert re.search(f"run {name} failed .*: {re.escape(FAILED[name])}", ran.err)
    assert not list((folder / "reports" / name).glob("report.*"))


@pytest.mark.parametrize(("name", "remedy"), [(LOST, "--resume"), (SHORT, "--time-budget")])
def test_a_run_that_its_budget_ended_is_not_resumed(folder: Path, name, remedy, capsys) -> None:
    with pytest.raises(Exit):
        require_measured(load_run(name, folder / "reports", also_empty=True), ["run"])
    message = capsys.readouterr().err
    options = ("--resume", "--time-budget")
    assert [option for option in options if option in message] == [remedy]


def test_latest_is_refused_with_the_state_if_every_run_failed(tmp_path: Path) -> None:
    with create_run(tmp_path / "reports", run()) as store:
        store.append(BROKEN)
        store.finish()
    ran = specbench("recommend", cwd=tmp_path)
    assert ran.code == 2
    assert "20261121-010203-a1b2 (failed)" in ran.err


def test_a_run_with_one_measured_request_is_not_failed(tmp_path: Path) -> None:
    measured: BlockRecord = block("a")
    with create_run(tmp_path / "reports", run()) as store:
        store.append(replace(measured, requests=(FAILED_REQUEST, *measured.requests)))
        store.finish()
    (row,) = json.loads(specbench("list", "runs", "--json", cwd=tmp_path).out)
    assert row["state"] == "complete"
