"""Text from files and servers that are not trusted: printed as plain text, or parsed as JSON."""

import json
import re
from collections.abc import Sequence
from typing import Any

# Control characters except newline and tab, unpaired surrogates, line separators, and marks that
# change the direction of writing, with which a name could look like another.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?%?", re.IGNORECASE)


def plain(text: str) -> str:
    """The text with a visible symbol for each control character, such as \u241b for an escape."""
    return _ACTIVE.sub(_sign, text)


def inert_cell(text: str) -> str:
    """The text as a spreadsheet cell, with an apostrophe before text that looks like a formula."""
    shown = plain(text)
    is_formula = shown.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(shown)
    return f"'{shown}" if is_formula else shown


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\u2421" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else "\ufffd"


def parse_json(text: str | bytes) -> Any:
    """Like json.loads, but with a ValueError also for deep nesting."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The entries of a JSON object, for json.loads; ValueError if a key is given twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated[:80]!r} is given twice")
    return values
