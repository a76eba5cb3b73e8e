"""Repeats one command, and counts how often its intervals hold on the other runs.

    python -m benchmarks.coverage --runs 24 --name idle -- demo/draft -k 4 --num-prompts 10
    python -m benchmarks.coverage --runs 24 --name loaded --load -- demo/draft -k 4 ...

Every run is a process with a seed of its own and an empty folder of runs. With `--keep FOLDER`,
runs that are in it are analyzed again and not repeated. A run is compared with the geometric mean
of the others:

- `covered`: intervals that contain it, with its own error added;
- `f`: the mean distance from it, in those that intervals of this width promise; 1 is honest, above
  1.2 is too narrow, below 0.65 too wide;
- `half_width`: the median half-width of the log speedup; `score`: the mean interval score at 5%
  (Gneiting and Raftery 2007), lower is better.

Runs over all prompts of a workload do not show how much prompts vary. `redrawn` has the same rates
of their intervals over prompts that each run draws again, with replacement.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.machine import machine_noise
from specbench.metrics.pairs import PairedSeconds, paired_decode
from specbench.runs import load_run
from specbench.stats.intervals import interval, speedup_ratio
from specbench.stats.machine_noise import MachineNoise

OUT = Path(__file__).with_name("coverage.json")
LEVEL = 0.05
REDRAWS = 60
FEWEST = 4  # runs
Row = tuple[bool, float, float, float]  # covered, distance / promised distance, half-width, score
# Of a normal distribution: the mean distance in standard deviations, and the quantile of 95%.
MEAN_DISTANCE, QUANTILE = math.sqrt(2 / math.pi), 1.96


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--name", required=True)
    parser.add_argument("--load", action="store_true", help="beside a program that comes and goes")
    parser.add_argument("--keep", type=Path, help="a folder for the runs")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(arguments)
    if asked.runs < FEWEST:
        parser.error(f"--runs {asked.runs}: a run needs {FEWEST - 1} others to be compared with")
    load = multiprocessing.Process(target=_come_and_go, daemon=True)
    if asked.load:
        load.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            room = asked.keep or Path(folder)
            rooms = [room / str(seed) for seed in range(asked.runs)]
            documents = [_run(asked.command, *seeded) for seeded in enumerate(rooms)]
            found = {**rates(documents), "redrawn": redrawn(rooms)}
    finally:
        if asked.load:
            load.terminate()
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    known[asked.name] = {"provenance": _provenance(asked, documents), **found}
    OUT.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps(known[asked.name], indent=1))


def _run(command: Sequence[str], seed: int, folder: Path) -> dict[str, Any]:
    print(f"run {seed + 1}", file=sys.stderr, flush=True)
    words = ["run", *command, "--seed", str(seed), "--runs-dir", str(folder), "--json"]
    if folder.exists():
        words = ["report", "latest", "--runs-dir", str(folder), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *words], capture_output=True, text=True
    )
    if done.returncode not in (0, 3):
        sys.exit(done.stderr[-500:])
    if words[0] == "run":
        time.sleep(random.uniform(0, 5))
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _come_and_go() -> None:
    rng = random.Random(7)
    while True:
        until = time.monotonic() + rng.uniform(20, 60)
        while time.monotonic() < until:
            sum(i * i for i in range(10_000))
        time.sleep(rng.uniform(20, 60))


def _provenance(asked: Any, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "command": f"specbench run {' '.join(asked.command)}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "load": asked.load,
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "verdicts": dict(_verdicts(documents)),
        "machines": dict(_machines(documents)),
    }


def _verdicts(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    verdicts = [d["verdict"] for document in documents for d in document["decisions"]]
    for verdict in sorted(set(verdicts)):
        yield verdict, verdicts.count(verdict)


def _machines(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    kinds = [c["margin"]["machine_kind"] for d in documents for c in d["cells"] if c["margin"]]
    for kind in sorted(set(kinds)):
        yield kind, kinds.count(kind)


def rates(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures above: pooled, `by_cell`, and of intervals `without_machine`."""
    found: dict[str, list[Mapping[str, float]]] = {}
    bare: dict[str, list[Mapping[str, float]]] = {}
    for cell in (cell for document in documents for cell in document["cells"]):
        speedup = cell["speedup"]
        if speedup is not None and speedup["low"] is not None:
            name = f"{cell['pairing']} {cell['workload']} K={cell['num_speculative_tokens']}"
            found.setdefault(name, []).append(speedup)
            bare.setdefault(name, []).append(_of_prompts(cell))
    rows = {name: [*_judged(runs)] for name, runs in found.items() if len(runs) >= FEWEST}
    every = [row for of_cell in rows.values() for row in of_cell]
    alone = [row for runs in bare.values() if len(runs) >= FEWEST for row in _judged(runs)]
    by_cell = {
        name: {
            **_summary(of_cell),
            "estimates": [round(run["estimate"], 3) for run in found[name]],
            "deviation": statistics.stdev(math.log(run["estimate"]) for run in found[name]),
        }
        for name, of_cell in rows.items()
    }
    return {**_summary(every), "without_machine": _summary(alone), "by_cell": by_cell}


def redrawn(rooms: Sequence[Path]) -> dict[str, Any]:
    """The rates of REDRAWS times the runs in these folders, each over other prompts of its own."""
    cells: dict[str, list[tuple[PairedSeconds, MachineNoise]]] = {}
    for cell in (c for room in rooms for c in aggregate_run(load_run("latest", room))):
        seconds = paired_decode(cell) if cell.key.draft.k else None
        if seconds is not None:
            cells.setdefault(cell.key.id, []).append((seconds, machine_noise(cell)))
    rng, rows, alone = np.random.default_rng(0), list[Row](), list[Row]()
    for runs in list(cells.values()) * REDRAWS:
        ratios = []
        for seconds, machine in runs:
            picked = rng.integers(len(seconds.base_s), size=len(seconds.base_s))
            ratio = speedup_ratio(*(column[picked] for column in seconds))
            ratios.append(ratio.on(machine))
        rows += _judged([asdict(interval(ratio)) for ratio in ratios])
        alone += _judged([asdict(interval(replace(ratio, machine=None))) for ratio in ratios])
    return {**_summary(rows), "without_machine": _summary(alone)}


def _of_prompts(cell: Mapping[str, Any]) -> Mapping[str, float]:
    """The interval with the margin of the prompts alone."""
    estimate, margin = cell["speedup"]["estimate"], 1 + cell["margin"]["prompts"]
    return {"estimate": estimate, "low": estimate / margin, "high": estimate * margin}


def _judged(runs: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Of each run: covered, distance / promised distance, half-width, score."""
    logs = [[math.log(run[end]) for end in ("estimate", "low", "high")] for run in runs]
    for i, (estimate, low, high) in enumerate(logs):
        others = [other[0] for j, other in enumerate(logs) if j != i]
        truth, n = statistics.mean(others), len(others)
        error = QUANTILE * statistics.stdev(others) / math.sqrt(n)
        half = (high - low) / 2
        distance = abs(estimate - truth) / math.sqrt((n + 1) / n)
        outside = max(0.0, low - truth, truth - high)
        wide = math.hypot(half, error)
        yield (
            abs(estimate - truth) <= wide,
            distance / (half / QUANTILE * MEAN_DISTANCE),
            half,
            high - low + 2 / LEVEL * outside,
        )


def _summary(rows: Sequence[Row]) -> dict[str, float]:
    covered, ratios, halves, scores = zip(*rows, strict=True)
    return {
        "intervals": len(rows),
        "covered": statistics.mean(covered),
        "f": statistics.mean(ratios),
        "half_width": statistics.median(halves),
        "score": statistics.mean(scores),
    }


if __name__ == "__main__":
    main()
