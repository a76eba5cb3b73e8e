"""Damaged copies of good files: bytes are cut and flipped, values get other types and sizes."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TERMINAL = "\x1b]0;owned\x07\x1b[31mred"
BIDI = "\u202efdp.exe"
NAMES = (TERMINAL, BIDI, "a\nb", "=cmd|' /C calc'!A0", "<script>alert(1)</script>", "../../up")
SPLINTERS = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r", b"\t", b"  ", b'"', b"'", b"{", b"}", b"["),
    *(b"]", b":", b",", b"-", b"? ", b"| ", b"> ", b"&a ", b"*a ", b"!!x ", b"%", b"@", b"# "),
    *(b"<<: ", b"~", b"null", b"\\ud800", b"\\U7fffffff", b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8"),
    *(b"9" * 5000, b"[" * 3000, b"NaN", b"1e999", b"-0", b"0x1f", b"1_0", b"1:30", b"2024-01-01"),
    *(b"yes", b".inf", b"---", b"data: ", b"\r\n\r\n"),
)
# Wrong values, as JSON texts, some of which have no Python value.
VALUES = (
    *("null", "true", "false", "0", "-1", "1.5", "1e300", "1e999", "-0", "NaN", "-Infinity"),
    *(str(2**31), str(2**53 + 1), str(2**63), "1" + "0" * 30, "9" * 5000, "1000000000"),
    *('""', '" "', '"x"', '"1"', '"NaN"', '"\\ud800"', '"\\u0000"', '"' + "x" * 9000 + '"'),
    *("[]", "[[]]", "[null]", "{}", '{"a": 1}', '{"a": 1, "a": 2}', '[1, "a"]', "[" * 9000),
    *("[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900),
    *map(json.dumps, NAMES),
)
_PLACE = re.compile(r'"@(\d+)@"')
_SCALAR = re.compile(r"(?<=[:-] )[^\n#{}\[\],]+|[\w.]+(?=:)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])|(?<=\")[^\"\n]*(?=\")")

Mutation = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A good file, how its copies are damaged, and a reader.

    `read` uses the file as a command does, so that values which a later part cannot use also show.
    """

    file: Path
    content: bytes
    mutated: Mutation
    read: Callable[[], object]
    place: str | None = None  # what each refusal names; None: the file's name
    refuses: bool = True  # False: an unreadable file counts as absent


Make = Callable[[Path], Case]  # in an empty folder


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content after one to four cuts, flips, doublings and foreign splinters."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice([0, 0, 1, 5, 40]))
        flipped = bytes(byte ^ 1 << rng.randrange(8) for byte in content[start : start + 1])
        doubled = content[start:end] * 2
        middle = rng.choice([b"", flipped, doubled, rng.choice(SPLINTERS), rng.choice(SPLINTERS)])
        content = content[:start] + middle + content[end:]
    return content[: rng.randrange(len(content) + 1)] if rng.random() < 0.05 else content


def _damage_or(change: Mutation) -> Mutation:
    """Half of the copies are damaged blindly; a parser accepts the other half."""

    def mutated(content: bytes, rng: random.Random) -> bytes:
        return (damaged if rng.random() < 0.5 else change)(content, rng)

    return mutated


def _changed_json(content: bytes, rng: random.Random) -> bytes:
    """One or two values are replaced, or their keys are dropped, renamed or doubled."""
    document = [json.loads(content)]
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(list(_places(document)))
        change = rng.choice(("value", "value", "value", "drop", "rename", "twice", "deeper"))
        if change == "drop" and holder is not document:
            del holder[key]
        elif change == "rename" and isinstance(holder, dict):
            holder[rng.choice((*NAMES, "", "x", f"{key}s"))] = holder.pop(key)
        elif change == "twice" and isinstance(holder, dict):
            holder[f"{key}@twice@"] = holder[key]
        elif change == "deeper":
            holder[key] = rng.choice(([holder[key]], {"x": holder[key]}))
        else:
            holder[key] = f"@{rng.randrange(len(VALUES))}@"
    text = json.dumps(document[0]).replace('@twice@"', '"')
    return _PLACE.sub(lambda match: VALUES[int(match[1])], text).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every key of every object and list inside."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        yield value, key
        if isinstance(inner, dict | list) and len(inner) < 10_000:
            yield from _places(inner)


def _one_of_its_lines(begins: bytes) -> Mutation:
    """Changes the JSON of a line that begins with `begins`, which may be doubled or dropped."""

    def changed(content: bytes, rng: random.Random) -> bytes:
        lines = content.split(b"\n")
        of_json = [i for i, line in enumerate(lines) if line.startswith(begins + b"{")]
        if not of_json:
            return damaged(content, rng)
        i = rng.choice(of_json)
        new = begins + _changed_json(lines[i].removeprefix(begins), rng)
        lines[i : i + 1] = rng.choice(([new], [new], [new], [new, lines[i]], [lines[i]] * 2, []))
        return b"\n".join(lines)

    return changed


def _changed_words(pattern: re.Pattern[str], values: tuple[str, ...]) -> Mutation:
    def changed(content: bytes, rng: random.Random) -> bytes:
        text = content.decode()
        for _ in range(rng.choice((1, 1, 2))):
            match = rng.choice(list(pattern.finditer(text)))
            text = text[: match.start()] + rng.choice(values) + text[match.end() :]
        return text.encode()

    return changed


def _changed_header(content: bytes, rng: random.Random) -> bytes:
    """The JSON before a file's tensors, whose length may be wrong."""
    length = int.from_bytes(content[:8], "little")
    header = _changed_json(content[8 : 8 + length], rng)
    size = rng.choice((len(header), len(header), len(header), 0, length, 10**9, 2**63))
    return size.to_bytes(8, "little") + header + content[8 + length :]


json_file = _damage_or(_changed_json)
json_lines = _damage_or(_one_of_its_lines(b""))
event_stream = _damage_or(_one_of_its_lines(b"data: "))
yaml_file = _damage_or(_changed_words(_SCALAR, VALUES))
counter_page = _damage_or(_changed_words(_NUMBER, (*VALUES, "+Inf", "-Inf", "0x10", "", '"', "}")))


def tensor_file(content: bytes, rng: random.Random) -> bytes:
    """Tensors are long, so only the part before them is damaged."""
    if rng.random() < 0.5:
        return _changed_header(content, rng)
    return damaged(content[:4000], rng) + content[4000:]
