"""How far every numeric claim of the tests is from its limit, over processors and seeds.

`make test-margins` runs the tests several times: with other seeds, two threads and other
instruction sets. As their pytest plugin (`-p tests.margins`) this file records every comparison
of numbers in an assert; then it prints them by their distance from the limit, in units of their
spread between the runs. TESTS="tests/stats ..." selects some.
"""

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import _pytest.assertion.rewrite as rewrite
import numpy as np
import pytest

OUT, SHAKE, THREADS = "MARGINS_OUT", "MARGINS_SHAKE", "MARGINS_THREADS"
_ORDERED = {"<": 1, "<=": 1, ">": -1, ">=": -1}


class Claim(NamedTuple):
    """One line of a test that compares a number with a limit."""

    test: str
    line: int
    kind: str


_noted: dict[Claim, tuple[float, float, float]] = {}  # margin, value, limit, of the least margin
_running = [""]


def pytest_configure() -> None:
    if OUT not in os.environ:
        return
    _compile_for_the_same_instructions()
    _watch_comparisons()
    _shake_seeds(int(os.environ.get(SHAKE, "0")))


def pytest_assertion_pass() -> None:
    """Exists so that pytest also explains assertions that pass."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running[0] = item.nodeid
    _noted.clear()
    result = yield
    if OUT in os.environ:
        folder = Path(os.environ[OUT])
        folder.mkdir(parents=True, exist_ok=True)
        name = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with (folder / f"{name}.jsonl").open("a") as file:
            for claim, figures in _noted.items():
                file.write(json.dumps([*claim, *figures]) + "\n")
    return result


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:  # noqa: ARG001
    if THREADS in os.environ and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ[THREADS]))


def _compile_for_the_same_instructions() -> None:
    """Code compiled by torch ignores ATEN_CPU_CAPABILITY, and the two must agree."""
    width = {"avx2": 256, "default": 1}.get(os.environ.get("ATEN_CPU_CAPABILITY", ""))
    if width:
        import torch._inductor.config as inductor

        inductor.cpp.simdlen = width


def _watch_comparisons() -> None:
    plain = rewrite._call_reprcompare

    def reprcompare(ops: Any, results: Any, expls: Any, each_obj: Sequence[Any]) -> str:
        for op, left, right in zip(ops, each_obj, each_obj[1:], strict=False):
            if op in _ORDERED and (pair := _numbers(left, right)):
                _note(op, (pair[1] - pair[0]) * _ORDERED[op], *pair)
        return plain(ops, results, expls, each_obj)

    rewrite._call_reprcompare = reprcompare

    ApproxScalar = type(pytest.approx(1.0))

    equal = ApproxScalar.__eq__

    def approx(self: Any, actual: Any) -> bool:
        if _numbers(actual, self.expected):
            error, tolerance = abs(actual - self.expected), float(self.tolerance)
            if math.isfinite(error) and math.isfinite(tolerance):
                _note("approx", tolerance - error, float(error), tolerance)
        return equal(self, actual)

    ApproxScalar.__eq__ = approx  # type: ignore[method-assign]
    try:
        import torch
    except ImportError:
        return
    close, allclose = torch.testing.assert_close, torch.allclose

    def assert_close(actual: Any, expected: Any, **how: Any) -> None:
        if isinstance(actual, torch.Tensor) and actual.is_floating_point():
            _note_close(actual, expected, how)
        close(actual, expected, **how)

    def all_close(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, **how: Any) -> bool:
        _note_close(a, b, {"rtol": rtol, "atol": atol})
        return allclose(a, b, rtol=rtol, atol=atol, **how)

    torch.testing.assert_close, torch.allclose = assert_close, all_close


def _note_close(actual: Any, expected: Any, how: dict[str, Any]) -> None:
    import torch

    both = [torch.as_tensor(side).double() for side in (actual, expected)]
    if both[0].shape != both[1].shape or not both[0].numel():
        return
    rtol, atol = how.get("rtol"), how.get("atol")
    if rtol is None:
        rtol, atol = {torch.float32: (1.3e-6, 1e-5), torch.float64: (1e-7, 1e-7)}.get(
            actual.dtype, (1.6e-2, 1e-5)
        )
    finite = both[0].isfinite() & both[1].isfinite()
    part = (both[0] - both[1]).abs() / (atol + rtol * both[1].abs() + 1e-300)
    worst = float(part[finite].max()) if finite.any() else 0.0
    _note("close", 1 - worst, worst, 1.0)


def _numbers(left: Any, right: Any) -> tuple[float, float] | None:
    pair = []
    for side in (left, right):
        if isinstance(side, bool) or type(side).__name__ not in (
            "int", "float", "float64", "float32", "int64", "Tensor",
        ):  # fmt: skip
            return None
        try:
            pair.append(float(side))
        except (TypeError, ValueError, RuntimeError):
            return None
    return (pair[0], pair[1]) if all(map(math.isfinite, pair)) else None


def _note(kind: str, room: float, value: float, limit: float) -> None:
    frame: Any = sys._getframe(2)
    while frame and "/tests/" not in frame.f_code.co_filename.replace(__file__, ""):
        frame = frame.f_back
    if frame is None:
        return
    name = Path(frame.f_code.co_filename).name
    claim = Claim(_running[0], frame.f_lineno, f"{name} {kind}")
    if claim not in _noted or room < _noted[claim][0]:
        _noted[claim] = (room, value, limit)


def _shake_seeds(shake: int) -> None:
    """Every seed of torch, numpy and random is replaced, the same one for the same seed."""
    if not shake:
        return
    import torch

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(seed + shake * 1_000_003)

    manual, seeded = torch.manual_seed, np.random.default_rng
    torch.Generator = Generator  # type: ignore[misc]
    torch.manual_seed = lambda seed: manual(int(seed) + shake * 1_000_003)

    def default_rng(seed: Any = None) -> Any:
        if isinstance(seed, int):
            seed = (seed, shake)
        elif isinstance(seed, tuple | list):
            seed = (*seed, shake)
        return seeded(seed)

    np.random.default_rng = default_rng

    class Random(random.Random):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(seed if seed is None else f"{seed}|{shake}")

    random.Random = Random  # type: ignore[misc]


def read(folder: Path) -> dict[Claim, tuple[float, float, float]]:
    """The claims of one run with their smallest margin, its value and its limit."""
    by_claim: dict[Claim, tuple[float, float, float]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text().splitlines():
            test, line, kind, *figures = json.loads(text)
            by_claim[Claim(test, line, kind)] = tuple(figures)
    return by_claim


def table(runs: Sequence[dict[Claim, tuple[float, float, float]]]) -> Iterator[str]:
    """The claims whose figure differs between runs, the nearest to its limit first.

    The distance is the mean margin over the deviation of the margins between runs.
    """
    rows = []
    for claim in set().union(*runs):
        margins = [run[claim] for run in runs if claim in run]
        rooms = [room for room, _, _ in margins]
        spread = statistics.stdev(rooms) if len(rooms) > 1 else 0.0
        if spread > 1e-12 * max(map(abs, rooms)):
            rows.append((statistics.mean(rooms) / spread, min(rooms), spread, claim, margins))
    for distance, least, spread, claim, margins in sorted(rows, key=lambda row: row[0]):
        values = " ".join(f"{value:.4g}/{limit:.4g}" for _, value, limit in margins)
        yield f"{distance:8.1f} {least:10.3g} {spread:10.3g}  {claim.test}:{claim.line}  {values}"


# Environments with other seeds, threads and instruction sets; the first is an unchanged run.
_RUNS: dict[str, dict[str, str]] = {
    "plain": {},
    "avx2": {SHAKE: "1", "ATEN_CPU_CAPABILITY": "avx2"},
    "no-vectors": {SHAKE: "2", "ATEN_CPU_CAPABILITY": "default"},
    "two-threads": {SHAKE: "3", THREADS: "2"},
}


def run_all(folder: Path, tests: Sequence[str]) -> list[Path]:
    """Run the tests once in each configuration, with the figures of each in a separate folder.

    Some tests may fail with other seeds: their limits are for one seed.
    """
    made = []
    for name, changes in _RUNS.items():
        made.append(folder / name)
        command = [sys.executable, "-m", "pytest", "-p", "tests.margins", "-n", "auto", *tests]
        hook = ["-o", "enable_assertion_pass_hook=true"]
        # Tests are rewritten for the hook, and the usual compiled files are kept.
        cache = {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), OUT: str(made[-1])}
        subprocess.run([*command, *hook], env={**os.environ, **changes, **cache}, check=False)
    return made


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    if not all(any(folder.glob("*.jsonl")) for folder in given) or not given:
        given = run_all(Path("build/margins"), sys.argv[1:])
    print("distance  least room    spread  test:line  value/limit of each run")
    for row in table([read(folder) for folder in given]):
        print(row)
