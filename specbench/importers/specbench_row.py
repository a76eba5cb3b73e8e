"""Answers that others measured with specbench: the rows of `specbench report --row`.

A row is a JSON object (`specbench schema row`), or a line of a Markdown table with its most
important keys, which COLUMNS maps to each other. A missing or empty value is unknown.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from specbench.importers.imported_cell import UNKNOWN, ImportOverrides, ParsedResult, conditions
from specbench.importers.result_file import ResultObject
from specbench.records import Interval, Kind, StatedAnswer
from specbench.records.keys import AXES, REQUIRED
from specbench.settings.words import MAX_K
from specbench.words.numbers import speedup_text

TOOL = "specbench report --row"
MARK = "specbench_row"  # the key by which a row is recognized; its value is the version
VERSION = 1
OTHER = "other axes"  # the column of the axes that have no column of their own
HASH_DIGITS = 12  # of a hash in a table

_SPEEDUP = re.compile(r"([\d.]+)x(?: \[([\d.]+), ([\d.]+)\])?")


def _interval(text: str) -> dict[str, float | None]:
    match = _SPEEDUP.fullmatch(text)
    if match is None:
        raise ValueError("expected a speedup such as 1.90x [1.80, 2.00]")
    estimate, low, high = (None if end is None else float(end) for end in match.groups())
    return {"estimate": estimate, "low": low, "high": high}


def _shares(text: str) -> list[float]:
    return [float(share.removesuffix("%")) / 100 for share in text.split()]


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("expected yes, no or unknown")
    return text == "yes"


class _TableColumn(NamedTuple):
    """A column of the table: the key of a row that it has, and the value of a cell's text."""

    key: str  # dotted
    value: Callable[[str], Any] = str  # ValueError for a text that is none
    is_fact: bool = False  # about the measurement: neither of the cell's key nor a figure


COLUMNS: Mapping[str, _TableColumn] = {
    "model": _TableColumn("target"),
    "file": _TableColumn("model.name", is_fact=True),
    "quantization": _TableColumn("model.quantization", is_fact=True),
    "hash": _TableColumn("model.hash", is_fact=True),
    "draft": _TableColumn("drafter"),
    "draft file": _TableColumn("draft_model.name", is_fact=True),
    "draft hash": _TableColumn("draft_model.hash", is_fact=True),
    "method": _TableColumn("method"),
    "K": _TableColumn("num_speculative_tokens", int),
    "p_min": _TableColumn("p_min", float),
    "workload": _TableColumn("workload"),
    "temperature": _TableColumn("temperature", float),
    "requests": _TableColumn("concurrency", int),
    "decode": _TableColumn("speedup", _interval),
    "end to end": _TableColumn("end_to_end", _interval),
    "accepted by position": _TableColumn("acceptance_rate_per_position", _shares),
    "prompts": _TableColumn("num_prompts", int),
    "valid": _TableColumn("valid", _yes),
    "engine": _TableColumn("engine"),
    "build": _TableColumn("engine_version", is_fact=True),
    "backend": _TableColumn("backend", is_fact=True),
    "machine": _TableColumn("machine", is_fact=True),
    "KV": _TableColumn("kv_type", is_fact=True),
    "context": _TableColumn("context_limit", int, is_fact=True),
    OTHER: _TableColumn("", json.loads),
    "run": _TableColumn("run_id", is_fact=True),
}
_WITH_COLUMN = {column.key for column in COLUMNS.values()}
_OPTIONAL = {name for name, axis in AXES.items() if axis.default is not REQUIRED}
_OTHERS = [name for name in AXES if name not in {*_WITH_COLUMN, "pairing"}]
_NONE = "-"  # in a table: an optional axis without a value


def cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row in a Markdown table, in the order of COLUMNS."""
    other_axes = {name: row[name] for name in _OTHERS if row[name] != AXES[name].default}
    texts = (
        _text(column.key, other_axes if name == OTHER else _at(row, column.key))
        for name, column in COLUMNS.items()
    )
    return [text.replace("|", r"\|") for text in texts]


def _at(row: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key; None if it is missing."""
    value: Any = row
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _text(key: str, value: Any) -> str:
    match value:
        case None | "":
            return _NONE if key in _OPTIONAL else UNKNOWN
        case bool():
            return "yes" if value else "no"
        case {"estimate": _}:
            return speedup_text(Interval(**value))
        case {}:
            return json.dumps(value) if value else _NONE
        case list():
            return " ".join(f"{share:.1%}" for share in value) or UNKNOWN
        case float():
            return f"{value:g}"
    text = str(value)
    if key.endswith("hash"):
        kind, mark, digits = text.rpartition(":")
        return f"{kind}{mark}{digits[:HASH_DIGITS]}"
    return text


def recognizes(result: ResultObject) -> bool:
    return result.has(MARK) or result.has("K", "decode", "run")


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:
    """The answer as a cell of its own: the machine, the build and the run stand as its variant, so
    that rows of different people are not pooled."""
    row = _of_table(result) if MARK not in result.values else result
    if row.values[MARK] != VERSION:
        row.fail(MARK, f"{VERSION} is read, not {str(row.values[MARK])[:40]}; update specbench")
    k = row.whole("num_speculative_tokens") or 0
    if not 0 < k <= MAX_K:
        row.fail("num_speculative_tokens", f"expected K from 1 to {MAX_K}")
    given_target, _, given_drafter = given.pairing.partition("/")
    target = row.text("target") or given_target or UNKNOWN
    drafter = row.text("drafter") or given_drafter or UNKNOWN
    facts = _facts(row)
    parts = row.text("variant"), *map(facts.get, ("machine", "build")), row.text("run_id")
    theirs = [part[:80] for part in parts if part]
    rates = row.numbers("acceptance_rate_per_position")
    if rates and max(rates) > 1:
        row.fail("acceptance_rate_per_position", "expected shares from 0 to 1")
    unknown = [
        name
        for name, column in COLUMNS.items()
        if name != OTHER and column.key not in _OPTIONAL and _at(row.values, column.key) is None
    ]
    unknown += [name for name in ("p_min", *_OTHERS) if name not in row.values]
    words = (f"unknown: {', '.join(unknown)}",) if unknown else ()
    return ParsedResult(
        engine=row.text("engine") or UNKNOWN,
        method=row.text("method"),
        workload=row.text("workload"),
        num_speculative_tokens=k,
        concurrency=row.whole("concurrency") or None,
        temperature=row.number("temperature"),
        tool_version=row.text("specbench_version"),
        measured_at=row.text("measured_at"),
        num_completed=row.whole("num_requests"),
        figures={
            "acceptance_rate": row.number("acceptance_rate"),
            "mean_acceptance_length": row.number("mean_acceptance_length"),
            "acceptance_rate_per_position": rates,
        },
        warnings=conditions(facts, *words),
        parameters=row.place,  # so that different rows of one cell are not pooled
        axes={
            "target": target,
            "drafter": drafter,
            "pairing": f"{target}/{drafter}",
            "dtype": row.text("dtype") or given.dtype or UNKNOWN,
            "adaptive": row.values.get("adaptive") is True,
            "context": row.whole("context") or None,
            "request_rate": row.rate("request_rate"),
            "num_samples": row.whole("num_samples") or 1,
            "request_settings": row.text("request_settings"),
            "p_min": row.number("p_min") or None,
            "lossy": row.text("lossy"),
            "variant": f"theirs ({', '.join(theirs)})",
        },
        stated=_stated(row),
    )


def _of_table(result: ResultObject) -> ResultObject:
    """The keys of a table's row; UsageError names the column of a text that is not a value."""
    values: dict[str, Any] = {MARK: VERSION}
    for name, column in COLUMNS.items():
        text = result.text(name)
        if text in (None, UNKNOWN) or (text == _NONE and column.key not in _OPTIONAL):
            continue
        try:
            value = None if text == _NONE else column.value(str(text))
        except ValueError as error:
            result.fail(name, f"{str(text)[:80]!r}: {error}")
        if name == OTHER:
            if not isinstance(value, dict):
                result.fail(name, "expected a JSON object, such as {}")
            usual = {axis: AXES[axis].default for axis in _OTHERS if axis in _OPTIONAL}
            values |= {**usual, **{axis: value[axis] for axis in _OTHERS if axis in value}}
            continue
        *outer, key = column.key.split(".")
        part = values.setdefault(outer[0], {}) if outer else values
        part[key] = value
    return replace(result, values=values)


def _facts(row: ResultObject) -> dict[str, str]:
    """What the row says about the measurement, by column, and the server's settings."""
    facts: dict[str, str] = {}
    for name, column in COLUMNS.items():
        *outer, key = column.key.split(".")
        part = row.inner(*outer)
        if column.is_fact and _at(row.values, column.key) is not None:
            facts[name] = str(part.text(key) if column.value is str else part.whole(key))
    settings = row.inner("settings")
    return facts | {name: settings.text(name) or "" for name in settings.values}


def _stated(row: ResultObject) -> StatedAnswer:
    """The speedups, of decoding and of whole requests, and why they may not count."""
    is_valid = row.values.get("valid")
    if is_valid is not None and not isinstance(is_valid, bool):
        row.fail("valid", "expected true, false or null")
    reasons = "; ".join(str(reason) for reason in row.items("invalid_reasons") or ())
    return StatedAnswer(
        speedup=_stated_interval(row, "speedup"),
        end_to_end=_stated_interval(row, "end_to_end"),
        num_prompts=row.whole("num_prompts"),
        invalid_reasons=(Kind.STATED_INVALID(because=reasons[:400]),) if is_valid is False else (),
    )


def _stated_interval(row: ResultObject, key: str) -> Interval | None:
    part = row.section(key)
    if part is None:
        return None
    estimate, low, high = (part.number(end) for end in ("estimate", "low", "high"))
    if not estimate:
        part.fail("estimate", "expected a ratio above 0")
    if (low is None) != (high is None) or not (low or 0) <= estimate <= (
        estimate if high is None else high
    ):
        part.fail("low", "expected low <= estimate <= high, or neither bound")
    return Interval(estimate=estimate, low=low, high=high)
