"""How often `specbench history` sees a change that is not there, and misses one that is.

    python -m benchmarks.change_points [--out benchmarks/change_points.json]

Series are simulated: a level with 2% of noise, by three distributions, and a step in the middle or
late.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.stats.change_points import SIGNIFICANCE, analyze_series

LEVEL, NOISE = 1.5, 0.02  # of the level
NOISE_SHAPES: Mapping[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "student_t_3": lambda rng, n: rng.standard_t(3, size=n) / 3**0.5,
    "exponential": lambda rng, n: rng.exponential(size=n) - 1,
}
STEADY, STEPPED = 2000, 500  # series each


def false_alarms(num_runs: int, shape: str) -> dict[str, Any]:
    """The share of series without a change said to step, and the share said to drift."""
    rng = np.random.default_rng(num_runs)
    noise = (NOISE_SHAPES[shape](rng, num_runs) for _ in range(STEADY))
    found = [analyze_series(list(LEVEL * (1 + NOISE * one))) for one in noise]
    return {
        "num_runs": num_runs,
        "law": shape,
        "steps": sum(bool(one.steps) for one in found) / STEADY,
        "trends": sum(one.trend is not None for one in found) / STEADY,
    }


def power(num_runs: int, at: int, deviations: int) -> dict[str, Any]:
    """The share of series with a step where one was found at its run, or one beside it."""
    rng = np.random.default_rng(num_runs + deviations)
    after = LEVEL * (1 + NOISE * deviations)
    levels = np.array([LEVEL] * at + [after] * (num_runs - at))
    hits = 0
    for _ in range(STEPPED):
        steps = analyze_series(list(levels * (1 + NOISE * rng.normal(size=num_runs)))).steps
        hits += any(abs(step.run_index - at) <= 1 for step in steps)
    return {"num_runs": num_runs, "at": at, "deviations": deviations, "found": hits / STEPPED}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/change_points.json"))
    out = parser.parse_args().out
    document = {
        "command": "python -m benchmarks.change_points",
        "packages": {name: version(name) for name in ("numpy", "scipy")},
        "significance": SIGNIFICANCE,
        "noise": NOISE,
        "num_steady_series": STEADY,
        "num_stepped_series": STEPPED,
        "false_alarms": [false_alarms(n, shape) for n in (8, 12, 20, 50) for shape in NOISE_SHAPES],
        "power": [
            power(n, at, deviations)
            for n, at in ((12, 6), (20, 10), (20, 16), (40, 20))
            for deviations in (1, 2, 3)
        ],
    }
    out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
