"""One rule for all commands with answers: 3 if an answer is undecided, 4 before it, else 0."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import ExitCode
from specbench.runs import StoredRun, load_run
from tests.cli.calls import specbench
from tests.report.stored_runs import BROKEN, SMALL, keep, stored_run
from tests.served_sessions import Sweep, served_sweep

DRAFT = replace(SMALL, drafters=("draft",), workloads=("chat", "code"))
MEASURING = {
    "run": ("run", "demo/draft"),
    "sweep-k": ("sweep-k", "demo/draft"),
    "pair": ("pair", "demo", "--draft", "demo:draft", "-k", "1,2,4"),
}
READING = {
    "recommend": ("recommend", "made"),
    "export": ("export", "demo/draft", "--engine", "vllm", "--run", "made"),
}
ONE_PER_TARGET = ("pair", "export")  # the others give an answer per workload
GOOD, UNDECIDED, INCOMPLETE = ExitCode.GOOD, ExitCode.INCONCLUSIVE, ExitCode.INCOMPLETE


def decided() -> StoredRun:
    return stored_run(DRAFT)


def of_three_prompts(*workloads: str) -> StoredRun:
    """With fewer than five prompts there are no intervals, so these workloads are undecided."""
    stored = decided()
    kept = tuple(
        block
        for block in stored.blocks
        if block.workload not in workloads or block.prompt_id[-1] in "012"
    )
    return replace(stored, blocks=kept)


def nothing_gained() -> StoredRun:
    return stored_run(replace(SMALL, drafters=("poor",), workloads=("creative",)))


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, StoredRun], int]:
    """The exit code of a command that measures this, or that reads it."""

    def ended(command: str, stored: StoredRun) -> int:
        keep(tmp_path / "reports", "made", stored)
        measured = replace(load_run("made", tmp_path / "reports"), failures=stored.failures)
        for name in ("measure", "pair"):  # the package has functions of these names
            module = sys.modules[f"specbench.cli.{name}"]
            monkeypatch.setattr(module, "run_planned", lambda *_, **__: measured)
        words = (
            (*MEASURING[command], "--device", "cpu") if command in MEASURING else READING[command]
        )
        ran = specbench(*words, cwd=tmp_path)
        assert "error" not in ran.err, ran.err
        return ran.code

    return ended


@pytest.mark.parametrize("command", [*MEASURING, *READING])
def test_a_decided_run_exits_0(code, command):
    assert code(command, decided()) == GOOD


@pytest.mark.parametrize("command", [*MEASURING, *READING])
def test_an_undecided_run_exits_3(code, command):
    assert code(command, of_three_prompts("code", "chat")) == UNDECIDED


@pytest.mark.parametrize("command", [*MEASURING, *READING])
def test_an_undecided_workload_exits_3_unless_the_answer_is_joint(code, command):
    expected = GOOD if command in ONE_PER_TARGET else UNDECIDED
    assert code(command, of_three_prompts("chat")) == expected


@pytest.mark.parametrize("command", ["run", "sweep-k", "pair", "recommend"])
def test_no_speedup_exits_0_as_a_decision(code, command):
    assert code(command, nothing_gained()) == GOOD


@pytest.mark.parametrize("command", MEASURING)
def test_a_failed_pairing_takes_precedence_over_an_undecided_verdict(code, command):
    stored = of_three_prompts("code", "chat")
    assert code(command, replace(stored, failures=(BROKEN,))) == INCOMPLETE


def test_a_run_of_only_k_0_needs_no_answer(code):
    assert code("run", stored_run(replace(DRAFT, ks=(0,)))) == GOOD


@pytest.mark.parametrize("engine", ["vllm", "builtin"])
@pytest.mark.parametrize(("wobble", "expected"), [(0.01, GOOD), (1.0, UNDECIDED)])
def test_a_server_and_the_built_in_decoder_end_outputs_the_same(code, engine, wobble, expected):
    sweep = Sweep(rows=(1,), wobble=wobble, engine=engine)
    assert code("sweep-k", served_sweep(sweep)) == expected
