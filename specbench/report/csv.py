"""The cells of runs as CSV: one row a cell, a column a metric."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from specbench.metrics.registry import Value, all_metrics
from specbench.records import CellKey, CellSummary, Interval
from specbench.report.document import Document

_KEY = tuple(field for field in CellKey.__dataclass_fields__)
_REST = (
    "valid",
    "invalid_reasons",
    "num_prompts",
    "num_requests",
    "speedup",
    "speedup_low",
    "speedup_high",
    "speedup_end_to_end",
    "speedup_end_to_end_low",
    "speedup_end_to_end_high",
    "minimum_detectable_effect",
    "warnings",
)


def to_csv(documents: Sequence[Document]) -> str:
    """Units as stored (seconds, bytes, fractions); lists are JSON; empty where absent.

    Columns do not depend on the run: every metric of the registry has one.
    """
    metrics = tuple(all_metrics())
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("run_id", "synthetic", *_KEY, *_REST, *metrics))
    for document in documents:
        for cell in document.cells:
            values = (_value(cell.metrics.get(name)) for name in metrics)
            origin = (document.run.run_id, json.dumps(document.run.settings.is_synthetic))
            writer.writerow((*origin, *_fixed(cell), *values))
    return buffer.getvalue()


def _fixed(cell: CellSummary) -> tuple[object, ...]:
    return (
        *asdict(cell.key).values(),
        json.dumps(cell.valid),
        "; ".join(cell.invalid_reasons),
        cell.num_prompts,
        cell.num_requests,
        *_interval(cell.speedup),
        *_interval(cell.speedup_end_to_end),
        cell.minimum_detectable_effect,
        "; ".join(cell.warnings),
    )


def _interval(interval: Interval | None) -> tuple[float | None, ...]:
    if interval is None:
        return None, None, None
    return interval.estimate, interval.low, interval.high


def _value(value: Value | None) -> object:
    return json.dumps(value) if isinstance(value, tuple) else value
