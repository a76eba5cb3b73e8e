"""The machine document: what `run --json`, `sweep-k --json` and `report --json` print.

Its keys are declared here, and the fields of its records where the records are; report/schema.json
and the tables of docs/json.md are generated from both (`make docs`).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields, make_dataclass, replace
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic_core import to_jsonable_python

from specbench.decide.comparisons import (
    AdaptiveComparison,
    BestOf,
    ContextCurve,
    Crossover,
    SideBySide,
)
from specbench.decide.objective import SharedK
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
from specbench.records.doc import Doc, docs_of
from specbench.records.keys import FlatKey
from specbench.report.document import Document
from specbench.report.notes import run_warnings
from specbench.settings import RunSettings, StoredSettings
from specbench.settings.option import leaves

JSON_VERSION = 1  # of the machine document; keys are added without a new version

# What a decision begins with; every other axis follows at its end.
_DECISION = (
    *("target", "pairing", "workload", "engine", "concurrency", "temperature", "dtype"),
    *("method", "num_speculative_tokens"),
)
# What is not in JSON: of a shared K the axes in which its cells differ.
_NOT_IN_COMPROMISE = ("target", "drafter", "workload", "num_speculative_tokens", "adaptive")
_NOT_IN_DECISION = ("leader", "draft", "warnings")
_NOT_IN_FAILURE = ("cell_ids", "ended_process")
_NOT_IN_IMPORTED = ("requests",)


class Key(NamedTuple):
    """A key of the document: the type of its JSON, what it means, and how a run fills it."""

    type: Any
    meaning: str
    value: Callable[[Document], Any] | None = None  # None: the document has it under this name


def to_json(document: Document) -> dict[str, Any]:
    """A run as JSON values."""
    return {
        name: key.value(document) if key.value else to_jsonable_python(getattr(document, name))
        for name, key in KEYS.items()
    }


def _cell_json(cell: CellSummary, counts: VllmCounts | None) -> dict[str, Any]:
    json: dict[str, Any] = to_jsonable_python(cell)
    return {**json.pop("key"), **json, **({"vllm": to_jsonable_python(counts)} if counts else {})}


def _decision_json(decision: Decision) -> dict[str, Any]:
    key = decision.key.entries(*_DECISION, without=("drafter",))
    shown = replace(decision, reasons=decision.reasons_and_warnings)
    json: dict[str, Any] = to_jsonable_python(shown, exclude={*_NOT_IN_DECISION})
    return {**{name: key.pop(name) for name in _DECISION}, **json, **key}


def _compromise_json(shared: SharedK) -> dict[str, Any]:
    json: dict[str, Any] = to_jsonable_python(shared, exclude={"own", "left_out"})
    key = json.pop("key")
    return {**{name: key[name] for name in key if name not in _NOT_IN_COMPROMISE}, **json}


def _forecast_json(checked: CheckedForecast) -> dict[str, Any]:
    json: dict[str, Any] = to_jsonable_python(checked.forecast)
    for point in json["points"]:
        measured = checked.measured.get(point["num_speculative_tokens"])
        point["measured"] = to_jsonable_python(measured)
    return {**json, "share_saved": checked.forecast.share_saved}


def _type(name: str, doc: str, *parts: tuple[type, Collection[str]], **more: Any) -> Any:
    """The JSON of records in one object: their fields apart from those named, then `more`."""
    entries: dict[str, Any] = {}
    for record, left_out in parts:
        hints = get_type_hints(record, include_extras=True)
        entries |= {f.name: hints[f.name] for f in fields(record) if f.name not in left_out}
    made = make_dataclass(name, [*{**entries, **more}.items()])
    made.__doc__ = doc
    return made


def _several(kind: Any) -> Any:
    """The type of a list, of a type that was made here."""
    return GenericAlias(tuple, (kind, ...))


_CELL = _type(
    "Cell",
    "One method at one K on one workload under one setting, as measured in the first pass.",
    (FlatKey, ()),
    (CellSummary, ("key",)),
    vllm=Annotated[
        VllmCounts, Doc("the counts under vLLM's names; not there without counts of rounds")
    ],
)
_DECISION_TYPE = _type(
    "Decision",
    "The answer for one drafter, workload and setting.",
    (FlatKey, ("drafter",)),
    (Decision, _NOT_IN_DECISION),
)
_COMPROMISE = _type(
    "Compromise",
    "One K for all workloads of a pairing.",
    (FlatKey, _NOT_IN_COMPROMISE),
    (SharedK, ("key", "own", "left_out")),
)
_FORECAST_POINT = _type(
    "ForecastPoint",
    "One K of a forecast.",
    (ForecastPoint, ()),
    measured=Annotated[
        MeasuredPoint | None, Doc("its measurement in the first pass; absent: not measured")
    ],
)
_FORECAST = _type(
    "Forecast",
    "The forecast of one drafter on one workload and setting.",
    (ForecastRecord, ()),
    points=Annotated[_several(_FORECAST_POINT), docs_of(ForecastRecord)["points"]],
    share_saved=Annotated[
        float | None,
        Doc("1 - (`trace_s` + `costs_s` + `measure_s`) / `sweep_s`", "fraction", high=1),
    ],
)
_FAILURE = _type("Failure", "What could not be measured.", (FailureRecord, _NOT_IN_FAILURE))
_IMPORTED = _type(
    "Imported", "Where an imported cell comes from.", (ImportedRecord, _NOT_IN_IMPORTED)
)

_SETTINGS = _type(
    "RunSettings",
    "The options of the command.",
    **{
        leaf.name: Annotated[
            get_type_hints(StoredSettings)[leaf.name],
            Doc("", low=leaf.option.min, high=leaf.option.max) if leaf.option else Doc(""),
        ]
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
        "`false`: interrupted or still running, with everything measured so far",
        lambda document: document.is_complete,
    ),
    "synthetic": Key(
        bool,
        "`true`: acceptance was simulated or the weights are dummies; the times are real, "
        "the text and its acceptance are not, and every sentence ends with `[synthetic]`",
        lambda document: document.run.settings.decoder.is_synthetic,
    ),
    "environment": Key(
        Environment,
        "provenance, written before the first measurement",
        lambda document: to_jsonable_python(document.run.environment),
    ),
    "settings": Key(
        _SETTINGS,
        "the options of the command",
        lambda document: to_jsonable_python(document.run.settings.stored),
    ),
    "models": Key(tuple[ModelIdentity, ...], "which weights and tokenizers the numbers belong to"),
    "cells": Key(
        _several(_CELL),
        "what was measured: one method at one K on one workload under one setting",
        lambda document: [_cell_json(cell, document.vllm.get(cell.key)) for cell in document.cells],
    ),
    "decisions": Key(
        _several(_DECISION_TYPE),
        "the answer for each pairing, workload and setting",
        lambda document: [_decision_json(decision) for decision in document.decisions],
    ),
    "shared_k": Key(
        _several(_COMPROMISE),
        "one K for all workloads of a pairing that ran on several",
        lambda document: [_compromise_json(shared) for shared in document.compromises],
    ),
    "side_by_side": Key(tuple[SideBySide, ...], "the built-in decoder compared with other engines"),
    "adaptive_comparisons": Key(
        tuple[AdaptiveComparison, ...],
        "K picked round by round against the best fixed K",
        lambda document: to_jsonable_python(document.adaptive),
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
        "what several outputs per prompt cost, and what picking the likeliest gains",
    ),
    "forecasts": Key(
        _several(_FORECAST),
        "the speedup of each K that was forecast before measuring, and the measured one",
        lambda document: [_forecast_json(checked) for checked in document.forecasts],
    ),
    "engines": Key(tuple[EngineRecord, ...], "how each engine ran each target"),
    "servers": Key(
        tuple[ServerRecord, ...],
        "sessions of serving engines: every start, or visit to one that was running",
    ),
    "failures": Key(
        _several(_FAILURE),
        "what could not be measured; also sessions that no attempt at their cycle gave",
        lambda document: to_jsonable_python(
            document.failures, exclude={"__all__": {*_NOT_IN_FAILURE}}
        ),
    ),
    "imported": Key(
        _several(_IMPORTED),
        "the source of imported cells (`specbench import`)",
        lambda document: to_jsonable_python(
            document.imported, exclude={"__all__": {*_NOT_IN_IMPORTED}}
        ),
    ),
    "warnings": Key(
        tuple[str, ...], "what a reader should know about the run as a whole", run_warnings
    ),
}


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the document: report/schema.json."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - no document needs it

    keys = [(name, Annotated[key.type, Doc(key.meaning)], field()) for name, key in KEYS.items()]
    made = make_dataclass("Document", keys)
    made.__doc__ = (
        "What `specbench run --json`, `sweep-k --json` and `report --json` print; docs/json.md "
        "explains it."
    )
    schema = _closed(TypeAdapter(made).json_schema(mode="serialization"))
    schema["$defs"]["Cell"]["required"].remove("vllm")
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "specbench machine document", **schema}


def _closed(schema: Any) -> Any:
    """Objects have all of the keys that they name, and no other; without titles and defaults."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    properties = schema.get("properties")
    kept = {
        name: {key: _closed(part) for key, part in value.items()}
        if name in ("properties", "$defs")
        else _closed(value)
        for name, value in schema.items()
        if name not in ("title", "default")
    }
    if properties and "$ref" not in schema:
        kept |= {"required": [*properties], "additionalProperties": False}
    return kept
