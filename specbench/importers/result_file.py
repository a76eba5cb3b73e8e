"""JSON, YAML or Markdown tables, read strictly: every error names the file and the key."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from specbench.errors import UsageError
from specbench.inputs.strict_yaml import read_yaml
from specbench.settings.words import MAX_K
from specbench.untrusted import unique_keys

COMMENTS = "#"  # the key of a YAML file's comments before its first key
MAX_BYTES = 256 * 2**20  # files with every token's time and every text are large
_MAX_WHOLE = 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultObject:
    """One JSON object of a file; reading methods raise UsageError with file and key."""

    place: str  # the file, and the line or item if it has several objects
    file_name: str
    sha256: str
    key: str  # dotted, from the top of the object
    values: Mapping[str, Any]

    def fail(self, key: str, reason: str) -> NoReturn:
        """Raise `file: key: reason`."""
        raise UsageError(f"{self.place}: {self._dotted(key)}: {reason}")

    def has(self, *keys: str) -> bool:
        return all(key in self.values for key in keys)

    def section(self, key: str) -> "ResultObject | None":
        """The object of a key; None if it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, f"expected an object, not {_kind(value)}")
        return replace(self, key=self._dotted(key), values=value)

    def inner(self, *keys: str) -> "ResultObject":
        """The object at the end of a path of keys; an empty one if it is absent."""
        part = self
        for key in keys:
            part = part.section(key) or replace(part, key=part._dotted(key), values={})
        return part

    def items(self, key: str) -> list[Any] | None:
        """A list of anything; None if it is absent or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            self.fail(key, f"expected a list, not {_kind(value)}")
        return value

    def sections(self, key: str) -> "tuple[ResultObject, ...]":
        """Each object of a list; empty if it is absent or null."""
        items = {f"{key}[{i}]": item for i, item in enumerate(self.items(key) or ())}
        parts = (replace(self, values=items).section(name) for name in items)
        return tuple(part for part in parts if part is not None)

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self.fail(key, f"expected text, not {_kind(value)}")
        if value is not None and not value.isprintable():
            self.fail(key, "holds control characters")
        return value or None

    def number(self, key: str, *, low: float = 0.0) -> float | None:
        """A finite number of at least `low`; None if it is absent or null."""
        return None if self.values.get(key) is None else self._number(key, self.values[key], low)

    def milliseconds(self, key: str) -> float | None:
        """A number of milliseconds, in seconds; None if it is absent."""
        value = self.number(key)
        return None if value is None else value / 1e3

    def rate(self, key: str) -> float | None:
        """Arrivals per second; None if it is absent or infinite (no limit)."""
        value = self.values.get(key)
        if value == math.inf or (isinstance(value, str) and value.lower() in ("inf", "infinity")):
            return None
        return self.number(key) or None

    def whole(self, key: str) -> int | None:
        """A whole number from 0; a float such as 20.0 is one."""
        value = self.number(key)
        if value is None:
            return None
        if value != int(value) or value >= _MAX_WHOLE:
            self.fail(key, f"expected a whole number, not {value:g}")
        return int(value)

    def k_of(self, key: str) -> int:
        """The K that a key stands for; UsageError if it is not a K."""
        return parse_digits(key, MAX_K) or self.fail(key, f"expected K from 1 to {MAX_K}")

    def histogram(self, bins: range, expected: str) -> dict[int, int]:
        """Counts by the whole number in their key; UsageError for a key that is not in `bins`."""
        allowed = set(map(str, bins))
        for key in self.values:
            if key not in allowed:
                self.fail(key, f"expected {expected}")
        return {int(key): self.whole(key) or 0 for key in self.values}

    def numbers(self, key: str) -> tuple[float, ...] | None:
        """A list of finite numbers from 0; None if it is absent or null."""
        value = self.items(key)
        if value is None:
            return None
        return tuple(self._number(f"{key}[{i}]", item, 0.0) for i, item in enumerate(value))

    def lists(self, key: str) -> tuple[tuple[float, ...], ...] | None:
        """A list of lists of finite numbers from 0."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
            self.fail(key, f"expected a list of lists, not {_kind(value)}")
        return tuple(
            tuple(self._number(f"{key}[{i}][{j}]", x, 0.0) for j, x in enumerate(item))
            for i, item in enumerate(value)
        )

    def _number(self, key: str, value: Any, low: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, f"expected a number, not {_kind(value)}")
        number = float(value) if abs(value) < _MAX_WHOLE else math.inf
        if not math.isfinite(number) or number < low:
            self.fail(key, f"expected a finite number from {low:g}, not {str(value)[:40]}")
        return number

    def _dotted(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key


def parse_digits(text: str, most: int = 999_999) -> int | None:
    """A whole number from 0 to `most`, in at most six digits; None for other text."""
    is_small = text.isdecimal() and len(text) < 7 and int(text) <= most
    return int(text) if is_small else None


def read_results(file: Path) -> tuple[ResultObject, ...]:
    """The JSON object of a file, or those of its list or lines, or the rows of its Markdown tables
    as texts by header; UsageError names file and place."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UsageError(f"{file}: larger than {MAX_BYTES >> 20} MiB; this cannot be a result")
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text") from error
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise UsageError(f"{file}: the file is empty")
    digest = hashlib.sha256(content).hexdigest()
    if file.suffix.lower() in (".yaml", ".yml"):
        return (_result(str(file), file.name, digest, _parse_yaml(file, lines)),)
    if file.suffix.lower() in (".md", ".markdown"):
        rows = list(_table_rows(file, lines))
        if not rows:
            raise UsageError(f"{file}: the page has no table with headers and a row")
        return tuple(_result(place, file.name, digest, row) for place, row in rows)
    if len(lines) > 1 and _is_object(lines[0][1]):
        return tuple(
            _result(place, file.name, digest, _parse(place, line))
            for n, line in lines
            for place in [f"{file}:{n}"]
        )
    values = _parse(str(file), text)
    if isinstance(values, list) and values:
        return tuple(_result(f"{file}[{i}]", file.name, digest, v) for i, v in enumerate(values))
    return (_result(str(file), file.name, digest, values),)


def _parse_yaml(file: Path, lines: Iterable[tuple[int, str]]) -> Any:
    values = read_yaml(file, UsageError).json(lenient=True)
    if isinstance(values, dict):
        comments = takewhile(lambda line: line.startswith("#"), (text for _, text in lines))
        values[COMMENTS] = [comment.strip("# \r") for comment in comments]
    return values


_RULE = re.compile(r":?-+:?")  # below the headers of a table
_BAR = re.compile(r"(?<!\\)\|")  # between cells


def _table_rows(
    file: Path, lines: Iterable[tuple[int, str]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """The place of each row of a page's tables, and its cells by header; UsageError."""
    rows = [(f"{file}:{n}", _cells(text.strip())) for n, text in lines]
    headers: tuple[str, ...] = ()
    for (place, cells), (_, below) in zip(rows, (*rows[1:], ("", ())), strict=True):
        if _is_rule(below) or not cells:
            headers = cells
        elif headers and not _is_rule(cells):
            if len(cells) != len(headers):
                raise UsageError(f"{place}: {len(cells)} cells below {len(headers)} headers")
            yield place, dict(zip(headers, cells, strict=True))


def _cells(line: str) -> tuple[str, ...]:
    """The cells of a table's row; empty for other text."""
    cells = _BAR.split(line)[1:-1] if line.startswith("|") else ()
    return tuple(cell.strip().replace("\\|", "|") for cell in cells)


def _is_rule(cells: Collection[str]) -> bool:
    return bool(cells) and all(map(_RULE.fullmatch, cells))


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parse(place: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{place}: not JSON: {error.msg} ({position})") from error
    except RecursionError as error:
        raise UsageError(f"{place}: nested too deep to be a result") from error
    except ValueError as error:  # a repeated key, a number of thousands of digits
        raise UsageError(f"{place}: {error}") from error


def _result(place: str, name: str, digest: str, values: Any) -> ResultObject:
    if not isinstance(values, dict):
        raise UsageError(f"{place}: expected a JSON object, not {_kind(values)}")
    return ResultObject(place=place, file_name=name, sha256=digest, key="", values=values)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
