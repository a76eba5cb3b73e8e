"""Runs the product for a benchmark, and says where its figures come from."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.bench.benchmark import run_benchmark
from specbench.bench.blocks import Block
from specbench.bench.planning import plan_run
from specbench.inputs.config import load_pairings
from specbench.records import BlockRecord, CellKey
from specbench.runs import StoredRun
from specbench.settings import RunSettings
from specbench.shipped import shipped


class PlainWatch:
    """Tells on standard error how the run goes."""

    def run_id(self, run_id: str) -> None:
        _tell(f"run {run_id}")

    def stage(self, text: str) -> None:
        _tell(text)

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:  # noqa: ARG002
        if done == total:
            _tell(f"{done} blocks")

    def measured(self, block: Block, record: BlockRecord) -> None:
        """Its report has it."""

    def info(self, text: str) -> None:
        _tell(text)

    def warn(self, text: str) -> None:
        _tell(f"note: {text}")


def run(settings: RunSettings, root: Path, pairings_file: Path | None = None) -> StoredRun:
    """One run of the product over the shipped pairings, or those of a file; its records are kept
    under `root`."""
    file = pairings_file or shipped("pairings.yaml")
    pairings = load_pairings(file).select(settings.workload.pairings)
    return run_benchmark(plan_run(settings, pairings), root, PlainWatch())


def provenance(stored: StoredRun) -> dict[str, Any]:
    """What must be known to repeat the run, and what went wrong in it."""
    return {
        "run_id": stored.run.run_id,
        "is_complete": stored.is_complete,
        "environment": {**asdict(stored.run.environment), "command": _without_places(stored)},
        "settings": asdict(stored.run.settings.stored),
        "workload_sha256": dict(stored.run.workload_sha256),
        "models": [asdict(model) for model in stored.models],
        "engines": [asdict(engine) for engine in stored.engines],
        "failures": [asdict(failure) for failure in stored.failures],
    }


def _without_places(stored: StoredRun) -> list[str]:
    """The command without the folders of this machine that it was told to write to."""
    kept: list[str] = []
    words = iter(stored.run.environment.command)
    for word in words:
        if word in ("--runs", "--out"):
            next(words, None)
        else:
            kept.append(word)
    return kept


def name_of(key: CellKey) -> str:
    """`builtin K=4`, `assisted K=4`, `generate`: a cell within its setting."""
    method = key.condition.engine if key.condition.engine == "builtin" else key.draft.method
    if key.draft.is_adaptive:
        return f"{method} K=auto"
    says_k = key.condition.engine == "builtin" or key.draft.k
    return f"{method} K={key.draft.k}" if says_k else method


def write(document: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    _tell(f"wrote {path}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
