"""The JSON document of `run --json`, `sweep-k --json` and `report --json`.

Its keys are declared here, and the fields of a nested object in that object's class.
`specbench schema` prints both.
"""

from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_type_hints

from specbench.decide.comparisons import (
    AdaptiveComparison,
    BestOf,
    ContextCurve,
    Crossover,
    SideBySide,
)
from specbench.decide.objective import SharedK
from specbench.doc import Doc, JsonObject, Key, Several, docs_of, keys_of
from specbench.forecast.forecast_check import MeasuredPoint
from specbench.forecast.run_bound import RunBound
from specbench.metrics.acceptance import VllmCounts
from specbench.records import (
    CellSummary,
    EngineRecord,
    Environment,
    FailureRecord,
    ForecastPoint,
    ForecastRecord,
    ImportedRecord,
    ModelIdentity,
    ServerRecord,
    SpeedupVerdict,
)
from specbench.records.keys import AXES, flat_keys
from specbench.report.answers import answer, conclusion
from specbench.report.document import Document
from specbench.report.forecasts import forecast_reasons, forecast_text, forecast_verdict
from specbench.report.notes import run_warnings
from specbench.report.sections import sections
from specbench.settings import RunSettings, StoredSettings
from specbench.settings.option import leaves
from specbench.words.answers import REASON, answer_keys, keys_in_words

JSON_VERSION = 1  # new keys do not change the version

# The keys that come first in a decision. The rest of its cell's key comes last.
_FIRST_IN_DECISION = (
    *("target", "pairing", "workload", "engine", "concurrency", "temperature", "dtype"),
    *("method", "num_speculative_tokens"),
)
_IN_DECISION = tuple(name for name in AXES if name not in (*_FIRST_IN_DECISION, "drafter"))
# The cells of a shared K differ in these.
_IN_SHARED_K = tuple(
    name
    for name in AXES
    if name not in ("target", "drafter", "workload", "num_speculative_tokens", "adaptive")
)


class _CellOf(NamedTuple):
    """A cell with its counts under vLLM's names."""

    cell: CellSummary
    vllm: VllmCounts | None


class _PointOf(NamedTuple):
    """One K of a forecast with its measurement."""

    point: ForecastPoint
    measured: MeasuredPoint | None


_CELL = JsonObject(
    "Cell",
    "One method at one K on one workload under one setting, measured in the exploration phase.",
    {
        **flat_keys(attrgetter("cell.key")),
        **keys_in_words(CellSummary, attrgetter("cell"), without=("key",)),
        "vllm": Key(
            VllmCounts,
            Doc(
                "the counts under vLLM's names; missing without counts of rounds", is_optional=True
            ),
        ),
    },
)
_DECISION = JsonObject(
    "Decision",
    "The answer for one drafter, workload and setting.",
    {
        **flat_keys(attrgetter("key"), only=_FIRST_IN_DECISION),
        **answer_keys(),
        **flat_keys(attrgetter("key"), only=_IN_DECISION),
    },
)
_SHARED_K = JsonObject(
    "SharedK",
    "One K for all workloads of a pairing.",
    {
        **flat_keys(attrgetter("key"), only=_IN_SHARED_K),
        **keys_of(SharedK, without=("key", "best_k", "left_out")),
    },
)
_FORECAST_POINT = JsonObject(
    "ForecastPoint",
    "One K of a forecast.",
    {
        **keys_of(ForecastPoint, attrgetter("point")),
        "measured": Key(
            MeasuredPoint | None, "its measurement in the exploration phase; absent: not measured"
        ),
    },
)
_FORECAST = JsonObject(
    "Forecast",
    "The forecast of one drafter on one workload and setting.",
    {
        **keys_of(ForecastRecord, attrgetter("forecast")),
        "points": Key(
            Several(_FORECAST_POINT),
            docs_of(ForecastRecord)["points"],
            lambda checked: [
                _PointOf(point, checked.measured.get(point.num_speculative_tokens))
                for point in checked.forecast.points
            ],
        ),
        "share_saved": Key(
            float | None,
            Doc("1 - (`trace_s` + `costs_s` + `measure_s`) / `sweep_s`", "fraction", high=1),
            attrgetter("forecast.share_saved"),
        ),
        "verdict": Key(
            SpeedupVerdict,
            "`faster`, `no speedup` or `undecided` by the forecast",
            forecast_verdict,
        ),
        "reasons": Key(
            Several(REASON), "what was forecast, and what was measured after it", forecast_reasons
        ),
        "text": Key(str, "the forecast in words", forecast_text),
    },
)
_FAILURE = JsonObject(
    "Failure",
    "A measurement that failed.",
    keys_of(FailureRecord, without=("cell_ids", "ended_process")),
)
_IMPORTED = JsonObject(
    "Imported",
    "The source of an imported cell.",
    keys_in_words(ImportedRecord, without=("requests",)),
)
_SERVER = JsonObject("ServerRecord", "A session of a serving engine.", keys_in_words(ServerRecord))
_SETTINGS = JsonObject(
    "RunSettings",
    "The options of the command.",
    {
        leaf.name: Key(get_type_hints(StoredSettings)[leaf.name], leaf.doc)
        for leaf in leaves(RunSettings)
    },
)
DOCUMENT = JsonObject(
    "Document",
    "The output of `specbench run --json`, `sweep-k --json` and `report --json`.",
    {
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
            Several(_CELL),
            "measured cells: one method at one K on one workload under one setting",
            lambda document: [
                _CellOf(cell, document.vllm.get(cell.key)) for cell in document.cells
            ],
        ),
        "decisions": Key(
            Several(_DECISION),
            "the decision for each pairing, workload and setting",
        ),
        "conclusion": Key(
            Several(REASON),
            "which K helps on which workload, context and number of requests, over all settings",
            lambda document: [*conclusion([*map(answer, sections(document))])],
        ),
        "shared_k": Key(
            Several(_SHARED_K),
            "one K for all workloads of a pairing that ran on several",
        ),
        "side_by_side": Key(
            tuple[SideBySide, ...], "the built-in decoder compared with other engines"
        ),
        "variants": Key(
            tuple[SideBySide, ...],
            "the same K under several sets of engine arguments (`--variant`)",
        ),
        "adaptive_comparisons": Key(
            tuple[AdaptiveComparison, ...],
            "K = auto, or a serving engine's own scheme, compared with the best fixed K",
            lambda document: document.adaptive,
        ),
        "adaptive_bounds": Key(
            tuple[RunBound, ...],
            "what an adaptive K could gain, by the rounds of a run without a forecast",
            lambda document: document.bounds,
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
            Several(_FORECAST),
            "the forecast speedup of each K, and the measured one",
        ),
        "engines": Key(tuple[EngineRecord, ...], "how each engine ran each target"),
        "servers": Key(
            Several(_SERVER),
            "sessions of serving engines: each start, or each use of a running server",
        ),
        "failures": Key(
            Several(_FAILURE),
            "failed measurements, and sessions that every attempt at their cycle lost",
        ),
        "imported": Key(
            Several(_IMPORTED),
            "the source of imported cells (`specbench import`)",
        ),
        "warnings": Key(Several(REASON), "warnings about the run as a whole", run_warnings),
    },
)


def to_json(document: Document) -> dict[str, Any]:
    """A run as a JSON object."""
    return DOCUMENT.of(document)
