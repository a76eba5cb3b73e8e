"""The rows of a file of prompts, one at a time: JSONL or one JSON array, plain or gzipped.

A file of any size is read in pieces; the largest row has MAX_ROW_BYTES.
"""

import gzip
import io
import json
import math
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, NoReturn

from specbench.errors import WorkloadError
from specbench.untrusted import unique_keys
from specbench.whole_file import read_errors_named

MAX_ROW_BYTES = 2**24  # a prompt of a million tokens has a quarter of that

_PIECE_BYTES = 2**20
_MARK = b"\xef\xbb\xbf"  # of byte order
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
# A string is one token, so that brackets and commas in texts do not count. A lone quote begins a
# string whose end is in the next piece.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},"]', re.DOTALL)
_FILLED = re.compile(rb"\S")

# How to make a file of prompts from one of another kind.
_PANDAS = (
    "a table is not read; write its rows as JSON and name the column with --prompt-field: "
    "python -c \"import pandas; pandas.{read}.to_json('{output}', orient='records', lines=True)\""
)
_LINES = (
    "plain text does not mark the ends of prompts; if every line is one: "
    "{cat} {input} | jq -Rc '{{prompt: .}}' > {output}"
)
_ENCODED = (
    "text in {encoding}, and only UTF-8 is read; convert it: "
    "{cat} {input} | iconv -f {encoding} -t UTF-8 > {output}"
)
_PACKED = "packed by {packer}, and only gzip is read; unpack it: {unpack} {input}"
_BY_SUFFIX: Mapping[str, tuple[str, Mapping[str, str]]] = {
    ".csv": (_PANDAS, {"read": "read_csv('{file}')"}),
    ".tsv": (_PANDAS, {"read": "read_csv('{file}', sep='\\t')"}),
    ".txt": (_LINES, {}),
    ".md": (_LINES, {}),
}
# By the first bytes; those of UTF-32 begin with those of UTF-16.
_BY_BYTES: Mapping[bytes, tuple[str, Mapping[str, str]]] = {
    b"PAR1": (_PANDAS, {"read": "read_parquet('{file}')"}),
    b"ARROW1": (_PANDAS, {"read": "read_feather('{file}')"}),
    b"\xff\xfe\0\0": (_ENCODED, {"encoding": "UTF-32"}),
    b"\0\0\xfe\xff": (_ENCODED, {"encoding": "UTF-32"}),
    b"\xff\xfe": (_ENCODED, {"encoding": "UTF-16"}),
    b"\xfe\xff": (_ENCODED, {"encoding": "UTF-16"}),
    b"{\0": (_ENCODED, {"encoding": "UTF-16LE"}),
    b"[\0": (_ENCODED, {"encoding": "UTF-16LE"}),
    b"\0{": (_ENCODED, {"encoding": "UTF-16BE"}),
    b"\0[": (_ENCODED, {"encoding": "UTF-16BE"}),
    b"BZh": (_PACKED, {"packer": "bzip2", "unpack": "bunzip2 -k"}),
    b"\x28\xb5\x2f\xfd": (_PACKED, {"packer": "zstd", "unpack": "zstd -d"}),
    b"\xfd7zXZ\0": (_PACKED, {"packer": "xz", "unpack": "xz -dk"}),
    b"PK\x03\x04": (_PACKED, {"packer": "zip", "unpack": "unzip"}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The position of a prompt, for errors and as its id if it has none."""

    file: Path
    line: int
    item: int | None = None  # its number in a JSON array

    @property
    def number(self) -> int:
        return self.line if self.item is None else self.item

    def fail(self, reason: str) -> NoReturn:
        """Raise `file:line: reason`."""
        position = f"{self.file}:{self.line}: " + (f"item {self.item}: " if self.item else "")
        raise WorkloadError(position + reason)


def read_rows(file: Path) -> Iterator[tuple[Row, bytes]]:
    """Every row that is not blank, as the bytes of its JSON. WorkloadError."""
    with read_errors_named(file, WorkloadError), file.open("rb") as raw:
        is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
        stream = gzip.GzipFile(fileobj=raw) if is_gzip else raw
        start = _start(file, stream)
        yield from _items(file, stream) if start == b"[" else _lines(file, stream)


def _start(file: Path, stream: gzip.GzipFile | io.BufferedReader) -> bytes:
    """The first byte that is not blank; raises an error with advice for a file of another kind."""
    first = Row(file=file, line=1)
    head = _read(stream.peek, 2**12, first)
    start = head.removeprefix(_MARK).lstrip()[:1]
    name = Path(file.name.removesuffix(".gz"))
    kind = next((_BY_BYTES[mark] for mark in _BY_BYTES if head.startswith(mark)), None)
    if kind is None and start not in (b"", b"{", b"["):
        kind = _BY_SUFFIX.get(name.suffix.lower())
    if kind is not None:
        first.fail(_advice(file, *kind))
    return start


def _advice(file: Path, advice: str, facts: Mapping[str, str]) -> str:
    """The advice with the commands for this file, which write a file that does not exist yet."""
    stem = Path(file.name.removesuffix(".gz")).stem
    names = chain([f"{stem}.jsonl"], (f"{stem}-{i}.jsonl" for i in count(2)))
    output = next(name for name in names if not (file.parent / name).exists())
    return advice.format(
        **{fact: text.format(file=file.name) for fact, text in facts.items()},
        cat="gunzip -c" if file.name.endswith(".gz") else "cat",
        input=shlex.quote(file.name),
        output=shlex.quote(output),
    )


def _lines(file: Path, stream: io.BufferedIOBase) -> Iterator[tuple[Row, bytes]]:
    for number in count(1):
        row = Row(file=file, line=number)
        content = _read(stream.readline, MAX_ROW_BYTES + 1, row)
        if not content:
            return
        if len(content) > MAX_ROW_BYTES:
            row.fail(f"longer than {MAX_ROW_BYTES} bytes")
        if number == 1:
            content = content.removeprefix(_MARK)
        if content.strip():
            yield row, content


def _items(file: Path, stream: io.BufferedIOBase) -> Iterator[tuple[Row, bytes]]:
    """The items of one array: the text between the commas of its level."""
    buffer, start, seen = b"", 0, 0  # bytes in memory, start of the item, position read
    depth, line, item = 0, 1, 1

    def row() -> Row:
        begins = _FILLED.search(buffer, start)
        end = begins.start() if begins else len(buffer)
        return Row(file=file, line=line + buffer.count(b"\n", start, end), item=item)

    while True:
        piece = _read(stream.read, _PIECE_BYTES, row())
        if not piece:
            row().fail("the JSON array is cut off: its closing ] is missing")
        buffer, seen, start = buffer[start:] + piece, seen - start, 0
        for token in _TOKEN.finditer(buffer, seen):
            sign = token[0]
            if sign == b'"':  # its other end is in the next piece
                seen = token.start()
                break
            if sign in (b"[", b"{"):
                depth += 1
                if depth == 1:
                    line += buffer.count(b"\n", 0, token.start())
                    start = token.end()
                continue
            is_end = sign in (b"]", b"}")
            depth -= is_end
            if depth == 0 or (depth == 1 and sign == b","):
                content = buffer[start : token.start()]
                if content.strip() or not is_end or item > 1:  # else the array is empty
                    yield row(), content.strip()
                line += content.count(b"\n")
                item, start = item + 1, token.end()
            if depth == 0:
                _require_end(Row(file=file, line=line), buffer[start:], stream)
                return
        else:
            seen = len(buffer)
        if len(buffer) - start > MAX_ROW_BYTES:
            row().fail(f"longer than {MAX_ROW_BYTES} bytes")


def _require_end(row: Row, rest: bytes, stream: io.BufferedIOBase) -> None:
    while not rest.strip():
        rest = _read(stream.read, _PIECE_BYTES, row)
        if not rest:
            return
    row.fail("something follows the JSON array; a file holds one array, or one object per line")


def _read(read: Callable[[int], bytes], num_bytes: int, row: Row) -> bytes:
    """The next bytes; WorkloadError, with the position, if the gzip file is damaged."""
    try:
        return read(num_bytes)
    except _DAMAGED as wrong:
        row.fail(f"the gzip file is cut off or damaged here: {wrong}")


Refuse = Callable[[str], NoReturn]

_HALF_PAIR = re.compile("[\ud800-\udfff]")


def row_object(content: bytes, row: Row) -> Mapping[str, Any]:
    """The row as an object, without its nulls. WorkloadError."""
    try:
        entry = json.loads(
            content.decode(),
            object_pairs_hook=unique_keys,
            parse_constant=_not_finite,
            parse_float=_finite,
        )
        # Only an escape can be half of a surrogate pair.
        is_text = b"\\u" not in content or not _HALF_PAIR.search(
            json.dumps(entry, ensure_ascii=False)
        )
    except UnicodeDecodeError as wrong:
        advice = _advice(row.file, _ENCODED, {"encoding": "WINDOWS-1252"})
        row.fail(
            f"not UTF-8 text: byte {wrong.start + 1} is {content[wrong.start]:#04x}; perhaps "
            f"{advice}"
        )
    except json.JSONDecodeError as wrong:
        reason = wrong.msg.removesuffix(" at")
        row.fail(
            f"not JSON: {reason} at column {wrong.colno}; a file holds one object per line, or one "
            "array of objects"
        )
    except RecursionError:
        row.fail("nested too deeply")
    except ValueError as wrong:  # from the hooks, and for numbers with thousands of digits
        row.fail(f"not usable JSON: {wrong}")
    if not isinstance(entry, dict):
        row.fail(f"expected an object, not {kind(entry)}")
    if not is_text:
        row.fail("holds half a surrogate pair, which is not text")
    return without_nulls(entry)


def without_nulls(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the row without those that are null."""
    return {key: value for key, value in entry.items() if value is not None}


def filled(value: Any, name: str, refuse: Refuse) -> str:
    """Text of at least one character that is not blank."""
    if not text(value, name, refuse).strip():
        refuse(f"{name}: is empty")
    return str(value)


def text(value: Any, name: str, refuse: Refuse) -> str:
    """Text, which may be empty."""
    if not isinstance(value, str):
        refuse(f"{name}: expected text, not {kind(value)}")
    return value


def flag(value: Any, name: str, refuse: Refuse) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        refuse(f"{name}: expected true or false, not {kind(value)}")
    return value


def items(value: Any, name: str, refuse: Refuse) -> list[Any]:
    """A list of at least one item."""
    if not isinstance(value, list) or not value:
        refuse(f"{name}: expected a list of at least one item, not {kind(value)}")
    return value


def objects(value: Any, name: str, refuse: Refuse) -> list[Mapping[str, Any]]:
    """A list of objects, which may be empty."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        refuse(f"{name}: expected a list of objects, not {kind(value)}")
    return value


def mapping(value: Any, name: str, refuse: Refuse) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        refuse(f"{name}: expected an object, not {kind(value)}")
    return value


def kind(value: Any) -> str:
    """The type of a value, in words."""
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


def _not_finite(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _not_finite(digits)
