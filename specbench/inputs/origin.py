"""Where an entry of a catalogue was read: an entry nobody can look up is a rumour."""

import re
from dataclasses import dataclass
from datetime import date

from specbench.inputs.strict_yaml import Section, Value

ORIGIN_KEYS = ("source", "checked", "license", "figure")

_ADDRESS = re.compile(r"https?://[^\s/]+(/\S*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The page that names the entry, and what was read there; None: not told there."""

    source: str
    checked: date
    license: str | None = None
    figure: str | None = None  # what the authors report of it, in their terms


def read_origin(keys: Section) -> Origin | None:
    """The origin that a section gives; one without `source` and `checked` is an error."""
    given = [key for key in ORIGIN_KEYS if key in keys.entries]
    if not given:
        return None
    return Origin(
        source=keys.must("source", _address),
        checked=keys.must("checked", _date),
        license=keys.may("license", Value.text, None),
        figure=keys.may("figure", Value.text, None),
    )


def _address(value: Value) -> str:
    address = value.text()
    if not _ADDRESS.fullmatch(address):
        value.fail(f"{address[:80]!r} is not an address; https://... of the page is needed")
    return address


def _date(value: Value) -> date:
    day = value.text()
    try:
        return date.fromisoformat(day)
    except ValueError:
        value.fail(f'{day[:40]!r} is not a day; one such as "2026-11-23", in quotes, is needed')
