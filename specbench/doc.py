"""The meanings of record fields and JSON keys, from which tables, schemas and pages are made."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property
from operator import attrgetter
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

# Amounts, which are never negative.
_AMOUNTS = "s bytes steps W J GPUs tokens tokens/round requests prompts rounds graphs cores threads"
_AMOUNTS += " parameters events samples processes MHz"
_POSITIVE = ("x", "requests/s")  # ratios and rates

Note = TypeVar("Note")


@dataclass(frozen=True, slots=True)
class Doc:
    """The documentation of a field, in its Annotated[]; "absent" means None, and null in JSON."""

    meaning: str
    unit: str = ""  # "": a name, a flag, a position
    low: float | None = None  # None: 0 for an amount, above 0 for a ratio or rate, else unbounded
    high: float | None = None
    is_text: bool = False  # free text, not one of a few names
    is_optional: bool = False  # the key may be missing
    label: str = ""  # header of its column in tables; "": it has none
    form: str = ""  # its text there, as in sentences: `{:.2f}`, `{:effect}`; "": by its unit

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


def noted(hint: Any, kind: type[Note]) -> Note | None:
    """The note of this kind in the Annotated[] of a type; None without one."""
    return next(
        (note for note in getattr(hint, "__metadata__", ()) if isinstance(note, kind)), None
    )


def docs_of(record: type) -> dict[str, Doc]:
    """The documented fields of a record, in its order."""
    hints = get_type_hints(record, include_extras=True)
    return {name: doc for name, hint in hints.items() if (doc := noted(hint, Doc))}


class Key(NamedTuple):
    """A key of a JSON object: its type, its meaning, and the function that fills it.

    The type may be a `JsonObject`, or `Several`, `Maybe` or `ByName` of one: `value` then returns
    the sources of these objects.
    """

    type: Any
    doc: Doc | str
    value: Callable[[Any], Any] | None = None  # None: the field of this name

    @property
    def full_doc(self) -> Doc:
        return Doc(self.doc) if isinstance(self.doc, str) else self.doc

    def of(self, source: Any, name: str = "") -> Any:
        """The value; `name`: of the field, for a key without `value`."""
        return (self.value or attrgetter(name))(source)


@dataclass(frozen=True)
class JsonObject:
    """A JSON object, from one declaration: its keys with their types, meanings and values.

    A key whose Doc is optional is left out if its value is None.
    """

    name: str
    doc: str
    keys: Mapping[str, Key]

    @cached_property
    def type(self) -> Any:
        """The type of the object, for its schema."""
        entries = []
        for name, key in self.keys.items():
            kind = key.type if not isinstance(key.type, _NESTED) else _hint(key.type)
            entries.append((name, Annotated[kind, key.full_doc], field()))
        made = make_dataclass(self.name, entries)
        made.__doc__ = self.doc
        return made

    def of(self, source: Any) -> dict[str, Any]:
        """The object that these keys make of a source."""
        from pydantic_core import to_jsonable_python  # noqa: PLC0415 - --help does not need it

        made: dict[str, Any] = {}
        for name, key in self.keys.items():
            value = key.of(source, name)
            if value is not None or not key.full_doc.is_optional:
                made[name] = (
                    _nested(key.type, value)
                    if isinstance(key.type, _NESTED)
                    else to_jsonable_python(value)
                )
        return made


class Several(NamedTuple):
    """A list of objects."""

    of: JsonObject


class Maybe(NamedTuple):
    """An object, or null."""

    of: JsonObject


class ByName(NamedTuple):
    """Objects by a name."""

    of: JsonObject


_NESTED = (JsonObject, Several, Maybe, ByName)


def _hint(kind: Any) -> Any:
    match kind:
        case Several():
            return GenericAlias(tuple, (kind.of.type, ...))
        case Maybe():
            return kind.of.type | None
        case ByName():
            return GenericAlias(Mapping, (str, kind.of.type))
    return kind.type


def _nested(kind: Any, value: Any) -> Any:
    match kind:
        case Several():
            return [kind.of.of(each) for each in value]
        case Maybe():
            return None if value is None else kind.of.of(value)
        case ByName():
            return {name: kind.of.of(each) for name, each in value.items()}
    return kind.of(value)


def keys_of(
    record: type,
    get: Callable[[Any], Any] = lambda source: source,
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    prefix: str = "",
    objects: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Key]:
    """A key per field of a record, in its order; `get` returns a source's record.

    With a `prefix` of the names, that record may be None. `objects`: the types of nested ones.
    Raises TypeError for a field without a Doc.
    """
    hints, docs = {**get_type_hints(record), **objects}, docs_of(record)
    names = [name for name in hints if name not in without and (only is None or name in only)]
    if undocumented := ", ".join(name for name in names if name not in docs):
        raise TypeError(f"{record.__name__}: fields without a Doc: {undocumented}")
    return {
        prefix + name.removeprefix(prefix): Key(
            hints[name] | None if prefix else hints[name], docs[name], part_of(get, name)
        )
        for name in names
    }


def part_of(get: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """An attribute of what `get` returns; None without it."""

    def part(source: Any) -> Any:
        whole = get(source)
        return None if whole is None else getattr(whole, name)

    return part


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
