"""Text that does nothing but be read: names come from files and servers of anybody."""

import re

# Control characters but for newline and tab, halves of surrogate pairs, separators of lines, and
# what turns the direction of writing, so that a name could pass for another.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?%?", re.IGNORECASE)


def plain(text: str) -> str:
    """The same with a sign in place of each such character: \u241b for an escape."""
    return _ACTIVE.sub(_sign, text)


def inert_cell(text: str) -> str:
    """As a spreadsheet takes it for text: what would be a formula begins with an apostrophe."""
    shown = plain(text)
    is_formula = shown.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(shown)
    return f"'{shown}" if is_formula else shown


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\u2421" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else "\ufffd"
