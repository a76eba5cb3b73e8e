"""A GPU that fails in a round, simulated on the tiny pair: a refused cell, or the run's end."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decode.launcher import Launcher, RoundLaunch
from specbench.runs import StoredRun, load_run
from tests.cli.calls import CommandResult, specbench

pytestmark = pytest.mark.slow

FEW = ("--num-prompts", "3", "--max-new-tokens", "12", "--threads", "1", "--device", "cpu")
REFUSED = "CUDA error: too many resources requested for launch"
ILLEGAL = "CUDA error: an illegal memory access was encountered"
LOST = f"the GPU has failed at everything since: {ILLEGAL}"

TRITON = "Triton Error [CUDA]: invalid argument"
NO_HOST_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)"
)

Break = Callable[..., None]


@pytest.fixture
def break_at(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Let the n-th round at K = 2 fail; `sticky`: every later call of CUDA also fails."""
    launch: Callable[..., RoundLaunch] = Launcher.launch

    def prepare(number: int, error: RuntimeError, *, sticky: bool) -> None:
        num_rounds, is_lost = 0, False

        def failing(self: Launcher, num_rows: int, k: int, *rest: Any) -> RoundLaunch:
            nonlocal num_rounds, is_lost
            num_rounds += k == 2
            if k == 2 and num_rounds == number:
                is_lost = sticky
                raise error
            return launch(self, num_rows, k, *rest)

        def synchronize() -> None:
            if is_lost:
                raise RuntimeError(ILLEGAL)

        monkeypatch.setattr(Launcher, "launch", failing)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_lost)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)

    return prepare


def first_run(tiny: Path, out: Path, pairing: str = "tiny") -> CommandResult:
    return specbench(
        *("run", pairing, "-w", "prompts.jsonl", "-k", "1,2", *FEW, "--runs-dir", out), cwd=tiny
    )


def stored(out: Path) -> StoredRun:
    (folder,) = out.iterdir()
    return load_run(folder, out)


def resumed(tiny: Path, ran: CommandResult) -> CommandResult:
    (command,) = re.findall(r"Resume with: specbench (.*)$", ran.err, re.MULTILINE)
    return specbench(*shlex.split(command), cwd=tiny)


def failed_requests(run: StoredRun) -> list[tuple[str, str | None]]:
    requests = [request for block in run.blocks for request in block.requests]
    return [(r.prompt_id, r.error) for r in requests if r.finish_reason == "failed"]


# The 40th round at K = 2 is in a block: after loading and warming up, before the last prompt.
@pytest.mark.parametrize("message", [REFUSED, TRITON, NO_HOST_MEMORY])
def test_an_error_of_the_device_in_a_round_fails_its_request_and_the_run_continues(
    message: str, tiny: Path, tmp_path: Path, break_at: Break
) -> None:
    break_at(40, RuntimeError(message), sticky=False)

    ran = first_run(tiny, tmp_path / "out")

    run = stored(tmp_path / "out")
    assert ran.code == 4
    assert "Traceback" not in ran.err
    assert run.is_complete
    ((prompt_id, error),) = failed_requests(run)
    assert error == message
    explored = [block for block in run.blocks if block.purpose == "explore"]
    assert len(explored) == 3
    (broken,) = [block for block in explored if block.prompt_id == prompt_id]
    assert sum(r.error is None for r in broken.requests) == len(broken.order) - 1


def test_a_device_that_is_lost_ends_the_run_and_a_new_process_completes_it(
    tiny: Path, tmp_path: Path, break_at: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_at(40, torch.AcceleratorError(ILLEGAL), sticky=True)

    ran = first_run(tiny, tmp_path / "out")

    assert ran.code == 4
    assert "Traceback" not in ran.err
    assert re.search(f"error: {re.escape(LOST)}; .*: specbench run", ran.err)
    run = stored(tmp_path / "out")
    assert not run.is_complete
    (failure,) = run.failures
    assert (failure.stage, failure.reason, failure.ended_process) == ("decode", LOST, True)

    monkeypatch.undo()  # a new process
    again = resumed(tiny, ran)

    after = stored(tmp_path / "out")
    assert again.is_complete
    assert after.is_complete
    assert after.blocks[: len(run.blocks)] == run.blocks
    assert after.failures == ()  # the cell was measured after all
    assert failed_requests(after) == []


def test_a_drafter_that_lost_the_device_twice_is_skipped_on_resume(
    tiny: Path, tmp_path: Path, break_at: Break
) -> None:
    break_at(1, RuntimeError(ILLEGAL), sticky=True)
    ran = first_run(tiny, tmp_path / "out", "tiny/ngram")
    assert ran.code == 4
    assert stored(tmp_path / "out").blocks == ()
    break_at(1, RuntimeError(ILLEGAL), sticky=True)
    ran = resumed(tiny, ran)
    assert ran.code == 4
    assert not stored(tmp_path / "out").is_complete

    break_at(1, RuntimeError(ILLEGAL), sticky=True)
    ran = resumed(tiny, ran)

    run = load_run("latest", tmp_path / "out", also_empty=True)
    assert ran.code == 4
    assert run.is_failed
    assert re.search("lost .*2 times", run.failures[-1].reason)
    assert run.blocks == ()  # only K = 0 decides nothing


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError(REFUSED),
        RuntimeError(NO_HOST_MEMORY),
    ],
    ids=lambda error: type(error).__name__,
)
def test_inspect_ends_with_the_error_of_the_device(
    error: RuntimeError, tiny: Path, break_at: Break
) -> None:
    break_at(1, error, sticky=False)
    ran = specbench(*("inspect", "tiny/ngram", "-p", "Hi", "-k", "2", *FEW[2:]), cwd=tiny)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert str(error) in ran.err
