"""The meanings of record fields and JSON keys, from which tables, schemas and pages are made."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, make_dataclass
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

# Amounts, which are never negative.
_AMOUNTS = "s bytes steps W J GPUs tokens tokens/round requests prompts rounds graphs cores threads"
_AMOUNTS += " parameters events samples processes MHz"
_POSITIVE = ("x", "requests/s")  # ratios and rates


@dataclass(frozen=True, slots=True)
class Doc:
    """The documentation of a field, in its Annotated[]; "absent" means None, and null in JSON."""

    meaning: str
    unit: str = ""  # "": a name, a flag, a position
    low: float | None = None  # None: 0 for an amount, above 0 for a ratio or rate, else unbounded
    high: float | None = None
    is_text: bool = False  # free text, not one of a few names
    is_optional: bool = False  # the key may be missing

    def __get_pydantic_json_schema__(
        self, core_schema: "CoreSchema", handler: "GetJsonSchemaHandler"
    ) -> dict[str, Any]:
        """The schema of the field with its meaning, unit and bounds."""
        low = 0 if self.low is None and self.unit in _AMOUNTS.split() else self.low
        above = 0 if low is None and self.unit in _POSITIVE else None
        limits = {"minimum": low, "exclusiveMinimum": above, "maximum": self.high}
        bounds = {name: limit for name, limit in limits.items() if limit is not None}
        words = {"description": self.meaning, "unit": self.unit, "optional": self.is_optional}
        schema = _bounded(handler(core_schema), bounds)
        return {**schema, **{name: text for name, text in words.items() if text}}


def _bounded(schema: dict[str, Any], bounds: Mapping[str, float]) -> dict[str, Any]:
    """The schema with bounds for its numbers, also in lists, and for an interval's estimate."""
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


class Key(NamedTuple):
    """A key of a JSON object: its type, its meaning, and the function that fills it."""

    type: Any
    meaning: str
    value: Callable[[Any], Any] | None = None  # None: the field of this name


def json_object(keys: Mapping[str, Key], source: object) -> dict[str, Any]:
    """The JSON object that these keys make of a record."""
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - --help does not need it

    values = {n: key.value(source) if key.value else getattr(source, n) for n, key in keys.items()}
    made: dict[str, Any] = to_jsonable_python(values)
    return made


def type_of_keys(name: str, doc: str, keys: Mapping[str, Key]) -> Any:
    """The type of a JSON object with these keys."""
    hints: dict[str, Any] = {n: Annotated[k.type, Doc(k.meaning)] for n, k in keys.items()}
    return type_of(name, doc, **hints)


def type_of(name: str, doc: str, /, *parts: tuple[type, Collection[str]], **more: Any) -> Any:
    """A type with the fields of several records except the named ones, and with `more` fields.

    A field of `more` replaces a record's field of that name.
    """
    entries: dict[str, Any] = {}
    for record, left_out in parts:
        hints = get_type_hints(record, include_extras=True)
        entries |= {name: hint for name, hint in hints.items() if name not in left_out}
    made = make_dataclass(name, [(*entry, field()) for entry in {**entries, **more}.items()])
    made.__doc__ = doc
    return made


def several(kind: Any) -> Any:
    """The type of a list of a type that `type_of` made."""
    return GenericAlias(tuple, (kind, ...))


def schema_of(kind: Any) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a type, in which objects have exactly the keys they name."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - only the schema needs it

    schema: dict[str, Any] = _closed(TypeAdapter(kind).json_schema(mode="serialization"))
    return schema


def _closed(schema: Any) -> Any:
    """The schema without titles and defaults, in which objects have exactly the keys they name."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: {key: _closed(part) for key, part in value.items()}
        if name in ("properties", "$defs")
        else _closed(value)
        for name, value in schema.items()
        if name not in ("title", "default", "optional")
    }
    properties = schema.get("properties")
    if properties and "$ref" not in schema:
        required = [name for name, part in properties.items() if not part.get("optional")]
        kept |= {"required": required, "additionalProperties": False}
    return kept
