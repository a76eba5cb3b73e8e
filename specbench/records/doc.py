"""The meaning of a field of a record: tables, JSON schema and reference pages read it from here."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

# Amounts, which are never negative.
_AMOUNTS = "s bytes steps W J GPUs tokens tokens/round requests prompts rounds graphs cores threads"
_AMOUNTS += " parameters events samples processes MHz requests/s"


@dataclass(frozen=True, slots=True)
class Doc:
    """Stands in the Annotated[] of a field; "absent" in a meaning is None, and null in JSON."""

    meaning: str
    unit: str = ""  # "": a name, a flag, a position
    low: float | None = None  # None: 0 for an amount, otherwise unbounded
    high: float | None = None
    is_text: bool = False  # words for a reader, and not one of a few names

    def __get_pydantic_json_schema__(
        self, core_schema: "CoreSchema", handler: "GetJsonSchemaHandler"
    ) -> dict[str, Any]:
        """The schema of the field with its meaning, unit and bounds."""
        schema = handler(core_schema)
        low = 0 if self.low is None and self.unit in _AMOUNTS.split() else self.low
        for number in (schema, *schema.get("anyOf", ())):
            if number.get("type") in ("number", "integer"):
                number |= {"minimum": low} if low is not None else {}
                number |= {"maximum": self.high} if self.high is not None else {}
        unit = {"unit": self.unit} if self.unit else {}
        return {**schema, "description": self.meaning, **unit}


def docs_of(record: type) -> dict[str, Doc]:
    """The documented fields of a record, in its order."""
    hints = get_type_hints(record, include_extras=True)
    docs = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: doc for name, extras in docs.items() for doc in extras if isinstance(doc, Doc)}
