"""The JSON document of `run --json`, `sweep-k --json` and `report --json`.

Its keys are declared here, and the fields of a nested object in that object's class. `make docs`
generates report/schema.json and the tables of docs/json.md from both.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

from pydantic_core import to_jsonable_python

from specbench.decide.comparisons import (
    AdaptiveComparison,
    BestOf,
    ContextCurve,
    Crossover,
    SideBySide,
)
from specbench.decide.objective import SharedK
from specbench.doc import Doc, Key, docs_of, json_object, schema_of, several, type_of, type_of_keys
from specbench.forecast.forecast_check import CheckedForecast, MeasuredPoint
from specbench.metrics.acceptance import VllmCounts
from specbench.records import (
    CellSummary,
    Decision,
    EngineRecord,
    Environment,
    FailureRecord,
    ForecastPoint,
    ForecastRecord,
    ImportedRecord,
    ModelIdentity,
    ServerRecord,
)
from specbench.records.keys import FlatKey
from specbench.report.document import Document
from specbench.report.notes import run_warnings
from specbench.settings import RunSettings, StoredSettings
from specbench.settings.option import leaves
from specbench.words.answers import REASON, decision_sentence, reason_json

JSON_VERSION = 1  # new keys do not change the version

# The keys that come first in a decision. The rest of its cell's key comes last.
_FIRST_IN_DECISION = (
    *("target", "pairing", "workload", "engine", "concurrency", "temperature", "dtype"),
    *("method", "num_speculative_tokens"),
)
# Fields that JSON omits; for a shared K, the parts of the key in which its cells differ.
_NOT_IN_SHARED_K = ("target", "drafter", "workload", "num_speculative_tokens", "adaptive")
_NOT_IN_DECISION = ("leader", "draft", "is_synthetic")
_NOT_IN_FAILURE = ("cell_ids", "ended_process")
_NOT_IN_IMPORTED = ("requests",)


def to_json(document: Document) -> dict[str, Any]:
    """A run as a JSON object."""
    return json_object(KEYS, document)


def _cell_json(cell: CellSummary, counts: VllmCounts | None) -> dict[str, Any]:
    json: dict[str, Any] = to_jsonable_python(cell)
    return {**json.pop("key"), **json, **({"vllm": to_jsonable_python(counts)} if counts else {})}


def _decision_json(decision: Decision) -> dict[str, Any]:
    key = decision.key.entries(*_FIRST_IN_DECISION, without=("drafter",))
    json: dict[str, Any] = to_jsonable_python(decision, exclude={*_NOT_IN_DECISION})
    json |= {
        "answer": list(map(reason_json, decision.answer)),
        "reasons": list(map(reason_json, decision.reasons)),
        "text": decision_sentence(decision),
    }
    return {**{name: key.pop(name) for name in _FIRST_IN_DECISION}, **json, **key}


def _shared_k_json(shared: SharedK) -> dict[str, Any]:
    json: dict[str, Any] = to_jsonable_python(shared, exclude={"best_k", "left_out"})
    key = json.pop("key")
    return {**{name: key[name] for name in key if name not in _NOT_IN_SHARED_K}, **json}


def _forecast_json(checked: CheckedForecast) -> dict[str, Any]:
    json: dict[str, Any] = to_jsonable_python(checked.forecast)
    for point in json["points"]:
        measured = checked.measured.get(point["num_speculative_tokens"])
        point["measured"] = to_jsonable_python(measured)
    return {**json, "share_saved": checked.forecast.share_saved}


_CELL = type_of(
    "Cell",
    "One method at one K on one workload under one setting, measured in the exploration phase.",
    (FlatKey, ()),
    (CellSummary, ("key",)),
    vllm=Annotated[
        VllmCounts,
        Doc("the counts under vLLM's names; missing without counts of rounds", is_optional=True),
    ],
)
_DECISION = type_of(
    "Decision",
    "The answer for one drafter, workload and setting.",
    (FlatKey, ("drafter",)),
    (Decision, _NOT_IN_DECISION),
    answer=Annotated[several(REASON), docs_of(Decision)["answer"]],
    reasons=Annotated[several(REASON), docs_of(Decision)["reasons"]],
    text=Annotated[str, Doc("the answer in words, with the workload before it")],
)
_SHARED_K = type_of(
    "SharedK",
    "One K for all workloads of a pairing.",
    (FlatKey, _NOT_IN_SHARED_K),
    (SharedK, ("key", "best_k", "left_out")),
)
_FORECAST_POINT = type_of(
    "ForecastPoint",
    "One K of a forecast.",
    (ForecastPoint, ()),
    measured=Annotated[
        MeasuredPoint | None, Doc("its measurement in the exploration phase; absent: not measured")
    ],
)
_FORECAST = type_of(
    "Forecast",
    "The forecast of one drafter on one workload and setting.",
    (ForecastRecord, ()),
    points=Annotated[several(_FORECAST_POINT), docs_of(ForecastRecord)["points"]],
    share_saved=Annotated[
        float | None,
        Doc("1 - (`trace_s` + `costs_s` + `measure_s`) / `sweep_s`", "fraction", high=1),
    ],
)
_FAILURE = type_of("Failure", "A measurement that failed.", (FailureRecord, _NOT_IN_FAILURE))
_IMPORTED = type_of(
    "Imported", "The source of an imported cell.", (ImportedRecord, _NOT_IN_IMPORTED)
)

_SETTINGS = type_of(
    "RunSettings",
    "The options of the command.",
    **{
        leaf.name: Annotated[get_type_hints(StoredSettings)[leaf.name], leaf.doc]
        for leaf in leaves(RunSettings)
    },
)

KEYS: Mapping[str, Key] = {
    "schema_version": Key(Literal[1], "version of this document", lambda _: JSON_VERSION),
    "run_id": Key(
        str,
        "the run's id, which is also its folder under `reports/`",
        lambda document: document.run.run_id,
    ),
    "complete": Key(
        bool,
        "`false`: interrupted or still running; the document has the results so far",
        lambda document: document.is_complete,
    ),
    "synthetic": Key(
        bool,
        "`true`: acceptance was simulated or the weights are dummies; only the times are real, "
        "and every text of an answer ends with `[synthetic]`",
        lambda document: document.run.settings.decoder.is_synthetic,
    ),
    "environment": Key(
        Environment,
        "provenance, written before the first measurement",
        lambda document: document.run.environment,
    ),
    "settings": Key(
        _SETTINGS,
        "the options of the command",
        lambda document: document.run.settings.stored,
    ),
    "models": Key(tuple[ModelIdentity, ...], "the weights and tokenizers of the run"),
    "cells": Key(
        several(_CELL),
        "measured cells: one method at one K on one workload under one setting",
        lambda document: [_cell_json(cell, document.vllm.get(cell.key)) for cell in document.cells],
    ),
    "decisions": Key(
        several(_DECISION),
        "the decision for each pairing, workload and setting",
        lambda document: [_decision_json(decision) for decision in document.decisions],
    ),
    "shared_k": Key(
        several(_SHARED_K),
        "one K for all workloads of a pairing that ran on several",
        lambda document: [_shared_k_json(shared) for shared in document.shared_k],
    ),
    "side_by_side": Key(tuple[SideBySide, ...], "the built-in decoder compared with other engines"),
    "variants": Key(
        tuple[SideBySide, ...], "the same K under several sets of engine arguments (`--variant`)"
    ),
    "adaptive_comparisons": Key(
        tuple[AdaptiveComparison, ...],
        "K = auto compared with the best fixed K",
        lambda document: document.adaptive,
    ),
    "crossovers": Key(
        tuple[Crossover, ...],
        "speedup against concurrent requests, and the number at which it ends",
    ),
    "context_curves": Key(
        tuple[ContextCurve, ...], "speedup and KV cache against the length of the prompts"
    ),
    "best_of": Key(
        tuple[BestOf, ...],
        "cost of several outputs per prompt, and gain of picking the likeliest",
    ),
    "forecasts": Key(
        several(_FORECAST),
        "the forecast speedup of each K, and the measured one",
        lambda document: [_forecast_json(checked) for checked in document.forecasts],
    ),
    "engines": Key(tuple[EngineRecord, ...], "how each engine ran each target"),
    "servers": Key(
        tuple[ServerRecord, ...],
        "sessions of serving engines: each start, or each use of a running server",
    ),
    "failures": Key(
        several(_FAILURE),
        "failed measurements, and sessions that every attempt at their cycle lost",
        lambda document: to_jsonable_python(
            document.failures, exclude={"__all__": {*_NOT_IN_FAILURE}}
        ),
    ),
    "imported": Key(
        several(_IMPORTED),
        "the source of imported cells (`specbench import`)",
        lambda document: to_jsonable_python(
            document.imported, exclude={"__all__": {*_NOT_IN_IMPORTED}}
        ),
    ),
    "warnings": Key(tuple[str, ...], "warnings about the run as a whole", run_warnings),
}


def json_schema() -> dict[str, Any]:
    """The schema of the document: report/schema.json."""
    doc = (
        "The output of `specbench run --json`, `sweep-k --json` and `report --json`; docs/json.md "
        "explains it."
    )
    schema = schema_of(type_of_keys("Document", doc, KEYS))
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "specbench JSON document", **schema}
