"""The project's own tests that need a GPU, where they and pytest are here."""

import subprocess
import sys
import time
from collections import deque
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_suite.claims import claim
from benchmarks.gpu_suite.machine import NO_GPU, Json, Machine, absent

TESTS = Path(__file__).parents[2] / "tests"
LIMIT_S = 240.0
_MARK = "mark.gpu"
_LINES = 40  # of what pytest says, from the end


def gpu_tests(machine: Machine) -> Json:
    """`pytest -m gpu` in a process of its own: its summary and its last lines."""
    return tests_of(TESTS, LIMIT_S) if machine.is_cuda else absent(NO_GPU)


def tests_of(folder: Path, limit_s: float) -> Json:
    """Only the files that have such a test are read: others may want what is not here."""
    if find_spec("pytest") is None:
        return absent("pytest is not installed")
    files = [path for path in sorted(folder.rglob("test_*.py")) if _MARK in path.read_text()]
    if not files:
        return absent("no tests that need a GPU are here")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-W", "default", "-q"]
    command += ["-p", "no:cacheprovider", *map(str, files)]
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            cwd=folder.parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return absent(f"they took more than {limit_s:g} s")
    last = list(deque(done.stdout.splitlines(), _LINES))
    return {
        "files": [str(path.relative_to(folder)) for path in files],
        "tests_s": round(time.monotonic() - began_s, 1),
        "summary": next((line for line in reversed(last) if line.strip()), ""),
        "last_lines": last if done.returncode else [],
        "claims": [claim("exit status of pytest -m gpu", done.returncode, at_most=0)],
    }
