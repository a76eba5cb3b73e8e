"""The machine document that report/schema.json and docs/json.md describe."""

from dataclasses import asdict
from typing import Any

from pydantic_core import to_jsonable_python

from specbench.decide.recommend import Recommendation
from specbench.forecast.forecast_check import forecast_json
from specbench.metrics.vllm_names import VllmCounts
from specbench.records import CellSummary
from specbench.report.document import Document, SharedK
from specbench.report.notes import run_warnings

JSON_VERSION = 1  # of the machine document; keys are added without a new version


_SHARED_K_KEY = (
    "pairing",
    "engine",
    "method",
    "concurrency",
    "temperature",
    "dtype",
    "context",
    "request_rate",
    "num_samples",
    "lossy",
)


def to_json(document: Document) -> dict[str, Any]:
    """A run as JSON values."""
    run = document.run
    return {
        "schema_version": JSON_VERSION,
        "run_id": run.run_id,
        "complete": document.is_complete,
        "synthetic": run.settings.is_synthetic,
        "environment": to_jsonable_python(run.environment),
        "settings": to_jsonable_python(run.settings),
        "models": to_jsonable_python(document.models),
        "cells": [_cell_json(cell, document.vllm.get(cell.key)) for cell in document.cells],
        "decisions": [_decision_json(decision) for decision in document.decisions],
        "compromises": [_compromise_json(shared) for shared in document.compromises],
        "side_by_side": to_jsonable_python(document.side_by_side),
        "adaptive_comparisons": to_jsonable_python(document.adaptive),
        "crossovers": to_jsonable_python(document.crossovers),
        "context_curves": to_jsonable_python(document.context_curves),
        "best_of": to_jsonable_python(document.best_of),
        "forecasts": [forecast_json(checked) for checked in document.forecasts],
        "engines": to_jsonable_python(document.engines),
        "failures": to_jsonable_python(document.failures, exclude={"__all__": {"cell_ids"}}),
        "imported": to_jsonable_python(document.imported),
        "warnings": run_warnings(document),
    }


def _cell_json(cell: CellSummary, counts: VllmCounts | None) -> dict[str, Any]:
    flat = asdict(cell)
    key = flat.pop("key")
    vllm = {"vllm": asdict(counts)} if counts else {}
    json: dict[str, Any] = to_jsonable_python({**key, **flat, **vllm})
    return json


def _decision_json(decision: Recommendation) -> dict[str, Any]:
    leader = decision.leader
    json: dict[str, Any] = to_jsonable_python(asdict(decision))
    del json["leader"], json["warnings"]
    return {
        **json,
        "reasons": list(decision.reasons_and_warnings),
        "adaptive": leader.adaptive and decision.num_speculative_tokens > 0,
        "context": leader.context,
        "request_rate": leader.request_rate,
        "num_samples": leader.num_samples,
        "lossy": leader.lossy,
    }


def _compromise_json(shared: SharedK) -> dict[str, Any]:
    flat = asdict(shared)
    key = flat.pop("key")
    return {**{name: key[name] for name in _SHARED_K_KEY}, **flat}
