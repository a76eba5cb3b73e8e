"""The JSON of a row, read strictly; whatever is wrong is refused with the row's place."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from specbench.inputs.prompt_rows import Row

Refuse = Callable[[str], NoReturn]

_HALF_PAIR = re.compile("[\ud800-\udfff]")


def row_object(content: bytes, row: Row) -> Mapping[str, Any]:
    """The object that the row is, without its nulls. WorkloadError."""
    try:
        entry = json.loads(
            content.decode(),
            object_pairs_hook=_without_duplicates,
            parse_constant=_not_finite,
            parse_float=_finite,
        )
        # Only an escape can be half a pair.
        is_text = b"\\u" not in content or not _HALF_PAIR.search(
            json.dumps(entry, ensure_ascii=False)
        )
    except UnicodeDecodeError:
        row.fail("not UTF-8 text")
    except json.JSONDecodeError as wrong:
        row.fail(
            f"not JSON: {wrong.msg} at column {wrong.colno}; a file holds one object per line, or "
            "one array of objects"
        )
    except RecursionError:
        row.fail("nested too deeply")
    except ValueError as wrong:  # ours below, and numbers of thousands of digits
        row.fail(f"not usable JSON: {wrong}")
    if not isinstance(entry, dict):
        row.fail(f"an object is needed, not {kind(entry)}")
    if not is_text:
        row.fail("holds half a surrogate pair, which is not text")
    return without_nulls(entry)


def without_nulls(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A field that is null is one that is not there."""
    return {key: value for key, value in entry.items() if value is not None}


def filled(value: Any, what: str, refuse: Refuse) -> str:
    """Text of at least one character that is not blank."""
    if not text(value, what, refuse).strip():
        refuse(f"{what}: is empty")
    return str(value)


def text(value: Any, what: str, refuse: Refuse) -> str:
    """Text, which may be empty."""
    if not isinstance(value, str):
        refuse(f"{what}: text is needed, not {kind(value)}")
    return value


def items(value: Any, what: str, refuse: Refuse) -> list[Any]:
    """A list of at least one item."""
    if not isinstance(value, list) or not value:
        refuse(f"{what}: a list of at least one item is needed, not {kind(value)}")
    return value


def objects(value: Any, what: str, refuse: Refuse) -> list[Mapping[str, Any]]:
    """A list of objects, which may be empty."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        refuse(f"{what}: a list of objects is needed, not {kind(value)}")
    return value


def mapping(value: Any, what: str, refuse: Refuse) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        refuse(f"{what}: an object is needed, not {kind(value)}")
    return value


def kind(value: Any) -> str:
    """What a value is, in words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text" if value else "empty text"
        case list():
            return "a list of something else" if value else "an empty list"
        case _:
            return "an object"


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} is given twice")
    return entry


def _not_finite(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _not_finite(digits)
