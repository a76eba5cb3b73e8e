"""The meaning of a field of a record: tables, JSON schema and reference pages read it from here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

# Amounts, which are never negative.
_AMOUNTS = "s bytes steps W J GPUs tokens tokens/round requests prompts rounds graphs cores threads"
_AMOUNTS += " parameters events samples processes MHz"
_POSITIVE = ("x", "requests/s")  # ratios and rates


@dataclass(frozen=True, slots=True)
class Doc:
    """Belongs in the Annotated[] of a field; "absent" in a meaning is None, and null in JSON."""

    meaning: str
    unit: str = ""  # "": a name, a flag, a position
    low: float | None = None  # None: 0 for an amount, above 0 for a ratio or rate, else unbounded
    high: float | None = None
    is_text: bool = False  # words for a reader, and not one of a few names

    def __get_pydantic_json_schema__(
        self, core_schema: "CoreSchema", handler: "GetJsonSchemaHandler"
    ) -> dict[str, Any]:
        """The schema of the field with its meaning, unit and bounds."""
        low = 0 if self.low is None and self.unit in _AMOUNTS.split() else self.low
        above = 0 if low is None and self.unit in _POSITIVE else None
        limits = {"minimum": low, "exclusiveMinimum": above, "maximum": self.high}
        bounds = {name: limit for name, limit in limits.items() if limit is not None}
        words = {"description": self.meaning, "unit": self.unit}
        schema = _bounded(handler(core_schema), bounds)
        return {**schema, **{name: text for name, text in words.items() if text}}


def _bounded(schema: dict[str, Any], bounds: Mapping[str, float]) -> dict[str, Any]:
    """The schema with bounds of its numbers, also within lists, and of an interval's estimate."""
    if schema.get("type") in ("number", "integer"):
        return {**schema, **bounds}
    if bounds and "Interval" in schema.get("$ref", ""):
        return {**schema, "properties": {"estimate": bounds}}
    schema = {
        name: _bounded(part, bounds)
        if name in ("items", "additionalProperties") and isinstance(part, dict)
        else part
        for name, part in schema.items()
    }
    if "anyOf" in schema:
        schema["anyOf"] = [_bounded(part, bounds) for part in schema["anyOf"]]
    return schema


def docs_of(record: type) -> dict[str, Doc]:
    """The documented fields of a record, in its order."""
    hints = get_type_hints(record, include_extras=True)
    docs = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: doc for name, extras in docs.items() for doc in extras if isinstance(doc, Doc)}
