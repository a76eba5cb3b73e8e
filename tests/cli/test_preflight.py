"""Wrong names, files, devices and folders are refused before torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.cli import preflight
from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from specbench.probes import gpu
from specbench.settings import MachineSettings, RunSettings, WorkloadSettings

WRONG = {
    "run demo/draft -w caht": "no workload 'caht', did you mean 'chat'?",
    "sweep-k demo/draft -w ./missing.jsonl": "missing.jsonl: cannot be read",
    "run demo/drafft": "no pairing 'demo/drafft'",
    "verify demo/draft -w caht": "no workload 'caht'",
    "verify demo/drafft": "no pairing 'demo/drafft'",
    "run demo/draft --attention-backend best": "--attention-backend",
    "run demo/draft -w chat --runs-dir ./file": "--runs-dir file: ",
    "run demo/draft -w chat --runs-dir /proc/none": "--runs-dir /proc/none: ",
    "run --target ./nowhere --draft ngram": "the folder ./nowhere does not exist",
    "report nothing": "no run",
    "list pairing": "pairing",
    "history --metric speed": "speed",
    "doctor demo/drafft": "no pairing 'demo/drafft'",
    "pair demo:taget --dry-run": "did you mean 'target'",
    "pair demo:target --draft ngram -w caht": "no workload 'caht', did you mean 'chat'?",
    "pair demo:target --draft ngram --runs-dir ./file": "--runs-dir file: ",
    "inspect demo/drafft -p Hi": "no pairing 'demo/drafft'",
    "inspect demo/draft -p Hi -k 1..3": "one fixed K",
    "verify demo/draft --detect 0": "--detect '0'",
    "run shape-70b -w chat --concurrency 1024 --max-new-tokens 99999": "shape-70b needs about ",
    "check baseline.jsn latest": "baseline.jsn: no such file",
    "check latest latest --fail-on speed": "--fail-on 'speed'",
    "export demo/drafft --engine vllm": "no pairing 'demo/drafft'",
    "export demo/draft --engine vlm": "vllm",
    "recommend 2020": "no run '2020'",
    "schema doctor": "verify, check, history",
    "baseline 2020": "no run '2020'",
}
COMMANDS = """
import contextlib, io, shlex, sys
from specbench.cli import main
for command in {commands!r}:
    sys.argv = ["specbench", *shlex.split(command)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            main()
    except SystemExit as done:
        print(done.code, "torch" in sys.modules, said.getvalue().strip().splitlines()[-1:])
"""


def test_errors_are_reported_without_torch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS.format(commands=list(WRONG))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(WRONG)
    for (command, message), line in zip(WRONG.items(), lines, strict=True):
        assert line.startswith("2 False "), f"{command}: {line}"
        assert message in line, f"{command}: {line}"


def settings(device: str) -> RunSettings:
    return RunSettings(
        workload=WorkloadSettings(pairings=("demo/draft",), workloads=("chat",)),
        machine=MachineSettings(device=device),
    )


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_needs_a_driver(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairings = load_pairings().select(["demo/draft"])
    monkeypatch.setattr(gpu, "_GPU_FILES", (str(tmp_path / "driver"),))
    with pytest.raises(UsageError, match=f"--device {device}.*GPU"):
        preflight.preflight(settings(device), pairings)
    preflight.preflight(settings("cpu"), pairings)
    (tmp_path / "driver").write_text("")
    preflight.preflight(settings(device), pairings)
