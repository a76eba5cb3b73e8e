"""The option of a field on the command line; cli/options.py passes it to typer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, TypeGuard, get_args, get_origin, get_type_hints

from specbench.doc import Doc, noted


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """The option of a field, in its Annotated[]; the field has the type and the default."""

    help: str
    names: tuple[str, ...] = ()  # errors show the first one; (): the field's name
    shown: str | bool = True  # in help, as the default; False: nothing
    min: float | None = None
    max: float | None = None
    read: Callable[[Any], object] | None = None  # parses what is typed; None: used as typed
    placeholder: str | None = None  # for the value in help; None: by the type
    is_rare: bool = False  # printed only by --help-all
    is_repeated: bool = False  # `read` gets a list, which is empty without the option
    is_argument: bool = False
    is_stored: bool = True
    unit: str = ""  # of the stored value

    def names_of(self, field: str) -> tuple[str, ...]:
        """The names as they are typed."""
        return self.names or ("--" + field.replace("_", "-"),)


class Leaf(NamedTuple):
    """A value of a group or of a group inside it; all have different names."""

    name: str
    type: Any
    default: Any  # MISSING if there is none
    option: Option | None  # one option may set several values, as -k does
    doc: Doc  # of the field, or else the help of the option


def bare_type(hint: Any) -> Any:
    """The type without its Annotated[]."""
    return getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint


def choices_of(kind: Any) -> tuple[str, ...]:
    """The values of a Literal, also of an optional one; empty for other types."""
    literal = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
    return get_args(literal[0]) if literal else ()


def is_group(kind: Any) -> TypeGuard[type]:
    """Whether a type is a group of settings."""
    return isinstance(kind, type) and is_dataclass(kind)


@cache  # several commands have the same groups, and reading types is a large part of --help
def field_types(group: type) -> dict[str, Any]:
    """The types of a group's fields, with their Annotated[]."""
    return get_type_hints(group, include_extras=True)


def leaves(group: type, option: Option | None = None) -> Iterator[Leaf]:
    """Every value, in the order of help."""
    hints = field_types(group)
    for field in fields(group):
        nearest = noted(hints[field.name], Option) or option
        kind = bare_type(hints[field.name])
        if is_group(kind):
            yield from leaves(kind, nearest)
        elif nearest is None or nearest.is_stored:
            doc = _doc(hints[field.name], field.name, nearest)
            yield Leaf(field.name, kind, field.default, nearest, doc)


def _doc(hint: Any, field: str, option: Option | None) -> Doc:
    """The meaning of a field, or the option's help; the unit and the bounds are the option's."""
    doc = noted(hint, Doc) or Doc("")
    if option is None:
        return doc
    typed = field if option.is_argument else option.names_of(field)[0]
    meaning = doc.meaning or f"`{typed}`: {option.help}"
    return Doc(meaning, option.unit, low=option.min, high=option.max)


def flat(group: Any) -> dict[str, Any]:
    """Every value by its name, also those of groups within the group."""
    values: dict[str, Any] = {}
    for field in fields(group):
        value = getattr(group, field.name)
        values |= flat(value) if is_dataclass(value) else {field.name: value}
    return values


def grouped(group: type, stored: object) -> Any:
    """A group with the values of an object; a value that is never stored has its default."""
    made = {}
    for name, kind in get_type_hints(group).items():
        if is_group(kind):
            made[name] = grouped(kind, stored)
        elif hasattr(stored, name):
            made[name] = getattr(stored, name)
    return group(**made)
