"""Identical runs of docs/ci.md's recipe, each a process of its own as in CI, and planted faults."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench.cli.baseline import read_run
from specbench.errors import ExitCode
from specbench.gate.baseline import Snapshot
from specbench.runs import list_runs

PAIRING = "demo/draft"
RECIPE = ("-w", "chat,code,creative", "--num-prompts", "12", "--threads", "1")  # as in docs/ci.md
BASELINE_RUNS, CANDIDATE_RUNS = 5, 3
TOLERANCES = {"mean_acceptance_length": 0.02, "decode_speedup": 0.25}
PLANTED_S = 0.03  # in every forward of the target

_PLAIN = "from specbench.cli import main; main()"
_SLOW_TARGET = f"""
import time
from specbench.forward.fused_runner import FusedRunner
sound = FusedRunner.forward
def slower(self, *arguments, **named):
    if self.num_layers == 16:
        time.sleep({PLANTED_S})
    return sound(self, *arguments, **named)
FusedRunner.forward = slower
{_PLAIN}
"""
_ONE_DRAFT = """\
targets:
  demo:
    model: demo:target
    workloads: demo
    drafters:
      draft: {{method: draft_model, model: demo:{draft}, num_speculative_tokens: 5}}
"""


def record(folder: Path, num_runs: int, arguments: Sequence[str] = RECIPE) -> list[str]:
    """Ids of so many complete runs in `folder`; what is there already is not run again."""
    while len(found := _complete(folder)) < num_runs:
        _tell(f"run {len(found) + 1} of {num_runs}")
        _run(folder, _PLAIN, arguments)
    return found[:num_runs]


def record_fault(folder: Path, *, draft: str = "draft", slow_target: bool = False) -> Snapshot:
    """A run with another model as the draft of the same name, or a target that was slowed."""
    folder.mkdir(parents=True, exist_ok=True)
    pairings = folder / "pairings.yaml"
    pairings.write_text(_ONE_DRAFT.format(draft=draft))
    code = _SLOW_TARGET if slow_target else _PLAIN
    _run(folder, code, (*RECIPE, "--config", str(pairings.resolve())))
    return read_run("latest", folder)


def _run(folder: Path, code: str, arguments: Sequence[str]) -> None:
    command = ["run", PAIRING, *arguments, "--runs-dir", str(folder), "--json"]
    done = subprocess.run([sys.executable, "-c", code, *command], stdout=subprocess.DEVNULL)
    if done.returncode not in (ExitCode.GOOD, ExitCode.INCONCLUSIVE):
        done.check_returncode()


def _complete(folder: Path) -> list[str]:
    return [listing.run_id for listing in list_runs(folder) if listing.is_complete]


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
