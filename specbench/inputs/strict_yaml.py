"""A YAML file read strictly: every value knows its file, line and key.

Plain loading drops the lines, and of two equal keys the last one wins. Here the node graph is read
instead, and no object is ever constructed from it. Anchors, aliases and tags are refused, because
with them a small file could expand without bound or construct foreign objects.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from specbench.errors import SpecbenchError
from specbench.settings.words import nearest
from specbench.whole_file import read_errors_named

T = TypeVar("T")
D = TypeVar("D")

MAX_BYTES = 256_000  # far beyond a file written by hand
MAX_DEPTH = 20

_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "null": "nothing",
    "timestamp": "a date",
    "merge": "a merge key",
}
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")  # no setting is longer
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One value of the file; every reading method raises the file's error type."""

    file: Path
    key: str  # dotted, from the top of the file; "" for the file itself
    line: int  # of the key if there is one, else of the value
    node: yaml.Node
    error: type[SpecbenchError]

    def fail(self, reason: str) -> NoReturn:
        """Raise `file:line: key: reason`."""
        raise self.error(f"{self.file}:{self.line}: {self.key + ': ' if self.key else ''}{reason}")

    def section(self, *, allowed: Sequence[str]) -> "YamlMapping":
        """The mapping behind this value; a key that is not in `allowed` is an error."""
        section = YamlMapping(value=self, entries=self.entries())
        for name, entry in section.entries.items():
            if name not in allowed:
                entry.fail(f"unknown key{nearest(name, allowed)}; allowed: {', '.join(allowed)}")
        return section

    def entries(self, *, any_key: bool = False) -> dict[str, "Value"]:
        """The mapping's entries in the file's order; keys are text and differ.

        With `any_key` a number or a word such as `no` is also a key, as it is written.
        """
        if not isinstance(self.node, yaml.MappingNode):
            self.fail(f"expected a mapping (key: value), not {self.kind}")
        entries: dict[str, Value] = {}
        for key_node, value_node in self.node.value:
            line = _line_of(key_node)
            key = self._part(key_node, line, f"a key of {self.key or 'the file'}")
            is_text = not (any_key and isinstance(key_node, yaml.ScalarNode))
            name = key.text() if is_text else str(key_node.value)
            entry = self._part(value_node, line, f"{self.key}.{name}" if self.key else name)
            if name in entries:
                entry.fail(f"given twice, first on line {entries[name].line}; keep one")
            entries[name] = entry
        return entries

    def items(self) -> list["Value"]:
        """The list's items; a single value stands for a list of one."""
        if not isinstance(self.node, yaml.SequenceNode):
            return [self]
        return [self._part(node, _line_of(node), self.key) for node in self.node.value]

    def text(self) -> str:
        """Text of at least one character; `no`, `3` and dates need quotes to be text."""
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag != _TAG + "str":
            self.fail(f"expected text, not {self.kind}{self._quoted_hint()}")
        if _NOT_TEXT.search(self.node.value):
            self.fail("contains control characters or half a surrogate pair; expected plain text")
        if not self.node.value.strip():
            self.fail("is empty; expected text")
        return str(self.node.value)

    def flag(self) -> bool:
        if self.node.tag != _TAG + "bool":
            self.fail(f"expected true or false, not {self.kind}")
        return str(self.node.value).lower() in ("true", "yes", "on")

    def scalar(self) -> str | int | float | bool:
        """A single value of any type."""
        match self.node.tag.removeprefix(_TAG):
            case "bool":
                return self.flag()
            case "int":
                return whole(-(10**18), 10**18)(self)
            case "float":
                return number()(self)
            case _:
                return self.text()

    def setting(self) -> str | int | float | bool | tuple[int, ...]:
        """A single value, or a list of whole numbers."""
        if isinstance(self.node, yaml.SequenceNode):
            return tuple(whole(0, 10**9)(item) for item in self.items())
        return self.scalar()

    def json(self, *, lenient: bool = False) -> Any:
        """The value with all values in it, as JSON has them.

        `lenient` also takes keys that are not text, null, and dates, which are text then.
        """
        if self.is_mapping:
            entries = self.entries(any_key=lenient).items()
            return {name: entry.json(lenient=lenient) for name, entry in entries}
        if isinstance(self.node, yaml.SequenceNode):
            return [item.json(lenient=lenient) for item in self.items()]
        kind = self.node.tag.removeprefix(_TAG)
        if lenient and kind == "null":
            return None
        # Text may be blank here, such as a line break that ends an answer.
        is_text = kind == "str" or (lenient and kind not in ("bool", "int", "float"))
        return str(self.node.value) if is_text else self.scalar()

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def kind(self) -> str:
        """The type of the value, in words."""
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        kind = _KINDS.get(self.node.tag.removeprefix(_TAG), "text")
        return kind if kind == "nothing" else f"{kind} ({self.node.value[:40]!r})"

    def _quoted_hint(self) -> str:
        is_scalar = isinstance(self.node, yaml.ScalarNode) and self.node.tag != _TAG + "null"
        return f"; in quotes it is text: {self.node.value[:40]!r}" if is_scalar else ""

    def _part(self, node: yaml.Node, line: int, key: str) -> "Value":
        return Value(file=self.file, key=key, line=line, node=node, error=self.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlMapping:
    """A mapping whose keys are known to be allowed."""

    value: Value
    entries: Mapping[str, Value]

    def must(self, key: str, read: Callable[[Value], T]) -> T:
        """The entry, read by `read`; it is an error if it is missing."""
        if key not in self.entries:
            self.value.fail(f"the key `{key}` is missing")
        return read(self.entries[key])

    def may(self, key: str, read: Callable[[Value], T], default: D) -> T | D:
        """The entry, read by `read`, or `default` if it is missing."""
        return read(self.entries[key]) if key in self.entries else default


def whole(low: int, high: int) -> Callable[[Value], int]:
    """Reads a whole number from `low` to `high`."""

    def read(value: Value) -> int:
        wanted = f"expected a whole number from {low} to {high}"
        if value.node.tag != _TAG + "int":
            value.fail(f"{wanted}, not {value.kind}")
        digits = str(value.node.value)
        if not _WHOLE.fullmatch(digits) or not low <= int(digits) <= high:
            value.fail(f"{wanted}, not {digits[:40]}")
        return int(digits)

    return read


def number(above: float = -math.inf, most: float = math.inf) -> Callable[[Value], float]:
    """Reads a finite number greater than `above` and not greater than `most`."""

    def read(value: Value) -> float:
        bounds = "" if above == -math.inf else f" above {above:g}"
        bounds += "" if most == math.inf else f" and up to {most:g}"
        wanted = f"expected a number{bounds}"
        if value.node.tag not in (_TAG + "int", _TAG + "float"):
            value.fail(f"{wanted}, not {value.kind}")
        try:
            result = float(value.node.value)
        except ValueError:  # .nan, .inf, octal and base 60 of YAML 1.1
            result = math.nan
        if not math.isfinite(result) or not above < result <= most:
            value.fail(f"{wanted}, not {value.node.value[:40]}")
        return result

    return read


def one_of(allowed: Sequence[str]) -> Callable[[Value], str]:
    """Reads one of the `allowed` words."""

    def read(value: Value) -> str:
        word = value.text()
        if word not in allowed:
            value.fail(f"unknown {word!r}{nearest(word, allowed)}; allowed: {', '.join(allowed)}")
        return word

    return read


def read_yaml(file: Path, error: type[SpecbenchError]) -> Value:
    """The top value of a file; raises `error` with the line of a fault."""
    text = _read_text(file, error)
    try:
        try:
            node = _compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError:  # libyaml's messages name less
            node = _compose(text, yaml.SafeLoader)
    except yaml.reader.ReaderError as wrong:
        line = text.count("\n", 0, wrong.position) + 1
        raise error(f"{file}:{line}: holds the control character {wrong.character:#04x}") from wrong
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        line = mark.line + 1 if mark else 1
        raise error(f"{file}:{line}: {wrong.problem or wrong.context}") from wrong
    if node is None:
        raise error(f"{file}:1: the file is empty")
    return Value(file=file, key="", line=_line_of(node), node=node, error=error)


def _line_of(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _read_text(file: Path, error: type[SpecbenchError]) -> str:
    with read_errors_named(file, error), file.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise error(f"{file}:1: larger than {MAX_BYTES} bytes; this cannot be the right file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line = content.count(b"\n", 0, wrong.start) + 1
        raise error(f"{file}:{line}: not UTF-8 text; save the file as UTF-8") from wrong


def _compose(text: str, loader: type[yaml.SafeLoader | yaml.CSafeLoader]) -> yaml.Node | None:
    """The node of a text of limited depth without anchors, aliases and tags; YAMLError."""
    depth, reason, mark = 0, None, None
    try:
        for event in yaml.parse(text, loader):
            mark = event.start_mark
            if getattr(event, "anchor", None) is not None:
                reason = "anchors (&) and aliases (*) are not allowed; write the value out"
            elif (tag := getattr(event, "tag", None)) is not None:
                reason = f"tags such as {tag!r} are not allowed; leave it out"
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                reason = f"nested deeper than {MAX_DEPTH} levels"
            if reason:
                break
    except (ValueError, OverflowError) as wrong:  # PyYAML raises these for escapes beyond Unicode
        reason = f"not YAML: {wrong}"
    if reason:
        raise yaml.MarkedYAMLError(problem=reason, problem_mark=mark)  # type: ignore[arg-type]
    return yaml.compose(text, loader)
