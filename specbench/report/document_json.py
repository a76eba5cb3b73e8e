"""The machine document that report/schema.json and docs/json.md describe."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import to_jsonable_python

from specbench.decide.objective import Compromise
from specbench.forecast.forecast_check import forecast_json
from specbench.records import CellSummary, Decision
from specbench.report.document import Document
from specbench.report.notes import run_warnings

JSON_VERSION = 1  # of the machine document; keys are added without a new version


# What a decision begins with; every other axis follows at its end.
_DECISION = (
    *("target", "pairing", "workload", "engine", "concurrency", "temperature", "dtype"),
    *("method", "num_speculative_tokens"),
)


def to_json(document: Document) -> dict[str, Any]:
    """A run as JSON values."""
    run = document.run
    return {
        "schema_version": JSON_VERSION,
        "run_id": run.run_id,
        "complete": document.is_complete,
        "synthetic": run.settings.decoder.is_synthetic,
        "environment": to_jsonable_python(run.environment),
        "settings": to_jsonable_python(run.settings.stored),
        "models": to_jsonable_python(document.models),
        "cells": [_cell_json(cell, document.vllm.get(cell.key)) for cell in document.cells],
        "decisions": [_decision_json(decision) for decision in document.decisions],
        "shared_k": [_compromise_json(shared) for shared in document.compromises],
        "side_by_side": to_jsonable_python(document.side_by_side),
        "adaptive_comparisons": to_jsonable_python(document.adaptive),
        "crossovers": to_jsonable_python(document.crossovers),
        "context_curves": to_jsonable_python(document.context_curves),
        "best_of": to_jsonable_python(document.best_of),
        "forecasts": [forecast_json(checked) for checked in document.forecasts],
        "engines": to_jsonable_python(document.engines),
        "servers": to_jsonable_python(document.servers),
        "failures": to_jsonable_python(
            document.failures, exclude={"__all__": {"cell_ids", "ended_process"}}
        ),
        "imported": to_jsonable_python(document.imported, exclude={"__all__": {"requests"}}),
        "warnings": run_warnings(document),
    }


def _cell_json(cell: CellSummary, counts: Mapping[str, Any] | None) -> dict[str, Any]:
    json: dict[str, Any] = to_jsonable_python(cell)
    return {**json.pop("key"), **json, **({"vllm": to_jsonable_python(counts)} if counts else {})}


def _decision_json(decision: Decision) -> dict[str, Any]:
    key = decision.key.entries(*_DECISION, without=("drafter",))
    told = replace(decision, reasons=decision.reasons_and_warnings)
    json: dict[str, Any] = to_jsonable_python(told, exclude={"leader", "draft", "warnings"})
    return {**{name: key.pop(name) for name in _DECISION}, **json, **key}


def _compromise_json(shared: Compromise) -> dict[str, Any]:
    """Without what is not the same for all of its cells."""
    json: dict[str, Any] = to_jsonable_python(shared, exclude={"own", "left_out"})
    varies = ("target", "drafter", "workload", "num_speculative_tokens", "adaptive")
    key = json.pop("key")
    return {**{name: key[name] for name in key if name not in varies}, **json}
