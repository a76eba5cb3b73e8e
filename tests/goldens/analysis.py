"""Conclusions of commands from stored runs of each kind, and of `verify` from its evidence."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.runs import StoredRun
from specbench.verify.evidence import Evidence, FailedEvidence
from specbench.verify.judge import judge
from specbench.verify.report import document, exit_code
from tests.cli.calls import specbench
from tests.cli.test_check import changed, keeps_nothing, slower_verify
from tests.cli.test_history import SPEEDS
from tests.importers.test_formats import FILES
from tests.report.served_runs import served_run
from tests.report.stored_runs import BROKEN, Wish, keep, stored_run, with_failure
from tests.served_sessions import Sweep, served_sweep
from tests.verify.test_judge import divergence, greedy, sampled, subject

_LOCAL = Wish(drafters=("draft", "poor"), workloads=("code",), ks=(0, 4), num_prompts=6)
_SERVED = Sweep(ks=(4,), rows=(1,))
# Runs that are only checked against a baseline.
_CANDIDATES = {"slower": "local", "rejecting": "local", "served-slower": "served"}
# Inputs, places, times and versions are not conclusions.
_LEFT_OUT = {
    *("environment", "settings", "models", "servers", "engines", "failures", "imported"),
    *("fingerprint", "runs", "run_id", "schema_version", "created_at", "specbench_version"),
}
_AXES: dict[str, Any] = {  # with the usual values
    **{"pairing": None, "num_speculative_tokens": None, "method": None, "engine": "builtin"},
    **{"workload": "code", "temperature": 0.0, "concurrency": 1, "dtype": "float32"},
    **{"adaptive": False, "context": None, "request_rate": None, "num_samples": 1, "lossy": None},
}
_TOLD = ("--pairing", "llama/head", "--method", "eagle3", "-w", "mtbench", "--temperature", "0")


def all_facts(folder: Path) -> dict[str, Any]:
    """Values by command and arguments: the exit code and its JSON document."""
    runs = _runs()
    for name, stored in runs.items():
        keep(folder / "reports", name, stored)
    for file in ("vllm_base.json", "vllm_spec.json"):
        (folder / file).write_bytes((FILES / file).read_bytes())
    _write_nights(folder)
    calls = [
        *(f"report {name}" for name in runs if name not in _CANDIDATES),
        *(f"recommend {name}" for name in ("local", "gpu", "concurrent", "served")),
        "recommend concurrent --objective throughput",
        "recommend concurrent --objective cost --price-per-hour 2 --slo tpot=200ms",
        *(f"check {baseline} {name}" for name, baseline in _CANDIDATES.items()),
        "check local local",
        "check local failed",
        "history --runs-dir nights --metric aggregate_tokens_per_s",
    ]
    results = {call: _of_call(folder, *call.split()) for call in calls}
    files = ("vllm_base.json", "vllm_spec.json")
    results["import"] = _of_call(
        folder, "import", *files, *_TOLD, "-k", "0", "--runs-dir", "imported"
    )
    for name, evidence in _evidence().items():
        findings = judge(evidence)
        results[f"verify: {name}"] = {"code": exit_code(findings), **_facts(document(findings))}
    return results


def _runs() -> dict[str, StoredRun]:
    local = stored_run(_LOCAL)
    draft = replace(_LOCAL, drafters=("draft",))
    return {
        "local": local,
        "gpu": stored_run(replace(draft, ks=(0, 2, 4), device="gpu", throttled_k=4)),
        "sampled": stored_run(replace(draft, temperatures=(0.7,))),
        "interrupted": stored_run(replace(_LOCAL, num_prompts=4, is_complete=False)),
        "failed": with_failure(stored_run(draft), BROKEN),
        "slower": changed(local, slower_verify),
        "rejecting": changed(local, keeps_nothing),
        "concurrent": _without_some(served_run()),
        "served": served_sweep(_SERVED),
        "served-slower": served_sweep(replace(_SERVED, slower={4: 1.5})),
    }


def _without_some(stored: StoredRun) -> StoredRun:
    """One workload, concurrency 1 and 4."""
    plans = [p for p in stored.run.cells if p.key.condition.workload == "code"]
    plans = [p for p in plans if p.key.condition.concurrency != 2]
    ids = {plan.key.id for plan in plans}
    return replace(
        stored,
        run=replace(stored.run, cells=tuple(plans)),
        blocks=tuple(block for block in stored.blocks if block.order[0] in ids),
    )


def _evidence() -> dict[str, list[Evidence]]:
    return {
        "identical": [greedy()],
        "tie": [greedy(divergence())],
        "another token": [greedy(divergence(steps=100.0))],
        "sound": [sampled(1)],
        "outside": [sampled(1, num_outside=3)],
        "lossy": [sampled(1, lossy="typical")],
        "failed": [FailedEvidence(subject=subject(0.0), reason="no such head")],
    }


def _write_nights(folder: Path) -> None:
    """Imported runs of one night each; from the sixth on, speed is a fifth lower."""
    result = json.loads((FILES / "vllm_spec.json").read_text(encoding="utf-8"))
    for i, speed in enumerate(SPEEDS):
        night = {**result, "output_throughput": speed, "date": f"202611{i + 1:02}-020000"}
        (folder / "night.json").write_text(json.dumps(night))
        specbench("import", "night.json", *_TOLD, "--runs-dir", "nights", cwd=folder)


def _of_call(folder: Path, *words: str) -> dict[str, Any]:
    ran = specbench(*words, "--json", cwd=folder)
    return {"code": ran.code, **_facts(json.loads(ran.out))}


def _facts(document: Mapping[str, Any]) -> Any:
    """Values that are neither absent, empty nor sentences; cells by their axes."""
    cells = document.get("cells", ())
    if cells and _AXES.keys() <= cells[0].keys():
        document = {**document, "cells": {_label(cell): cell for cell in cells}}
    return _pruned(document)


def _label(cell: dict[str, Any]) -> str:
    """The cell's axes with unusual values; the cell loses all axes."""
    values = {axis: cell.pop(axis) for axis in _AXES}
    return ", ".join(f"{axis} {v}" for axis, v in values.items() if v != _AXES[axis])


def _pruned(value: Any) -> Any:
    """Floats with six digits, an interval as its estimate, low and high."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    if not isinstance(value, dict):
        return "(text)" if isinstance(value, str) and value.count(" ") > 3 else value
    if value.keys() == {"estimate", "low", "high"}:
        return [_pruned(value[name]) for name in ("estimate", "low", "high")]
    kept = {key: _pruned(item) for key, item in value.items() if key not in _LEFT_OUT}
    return {key: item for key, item in kept.items() if item not in (None, [], {})}
