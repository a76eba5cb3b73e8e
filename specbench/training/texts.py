"""The target's own texts, kept in a file that grows answer by answer.

The first line says what they follow from; every other line is one text. What a killed run left
of a line is dropped.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import StoreError
from specbench.training.replacing import not_written

_LARGEST_LINE = 2**24


class Text(NamedTuple):
    """Token ids of a prompt and its answer; heads learn to foresee the answer."""

    ids: tuple[int, ...]
    num_prompt: int
    is_held_out: bool


class TextFile:
    """Texts of one target, in the order of their questions; one process at a time adds to them."""

    def __init__(self, path: Path, origin: dict[str, Any], vocab_size: int) -> None:
        """Read what is there; StoreError where it follows from something else or is damaged."""
        self.path = path
        self.texts: list[Text] = []
        self._size = 0  # bytes of whole lines
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        self._found = len(content)
        first = json.dumps(origin)
        if first.startswith(content.decode(errors="replace")):  # nothing, or a line cut short
            self._append([first])
            return
        self._size = content.rfind(b"\n") + 1
        stored, *texts = self._lines(content[: self._size]) or [None]
        if stored != origin:
            differing = [
                k for k in origin if not isinstance(stored, dict) or stored.get(k) != origin[k]
            ]
            raise StoreError(
                f"{path} holds texts of another training: {', '.join(differing)} differ; choose "
                "another --output or --texts"
            )
        self.texts = [self._text(i, line, vocab_size) for i, line in enumerate(texts, 2)]

    def add(self, texts: Sequence[Text]) -> None:
        """On disk once it returns; StoreError where somebody else added something."""
        self._append([json.dumps([list(t.ids), t.num_prompt, t.is_held_out]) for t in texts])
        self.texts += texts

    def _append(self, lines: list[str]) -> None:
        content = "".join(f"{line}\n" for line in lines).encode()
        try:
            with self.path.open("ab") as stream:
                if stream.tell() != self._found:
                    raise StoreError(
                        f"{self.path}: another training is writing to it; wait for it to end, "
                        "then --resume"
                    )
                stream.truncate(self._size)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self._size)
                self._found = self._size
            raise not_written(self.path, error) from error
        self._found = self._size = self._size + len(content)

    def _lines(self, content: bytes) -> list[Any]:
        found = []
        for number, line in enumerate(content.splitlines(), 1):
            try:
                if len(line) > _LARGEST_LINE:
                    raise ValueError(f"longer than {_LARGEST_LINE} bytes")
                found.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise StoreError(
                    f"{self.path}:{number}: {error}; remove the file to start again"
                ) from error
        return found

    def _text(self, number: int, line: Any, vocab_size: int) -> Text:
        match line:
            case [list() as ids, int() as num_prompt, bool() as is_held_out] if (
                0 < num_prompt < len(ids)
                and all(type(i) is int and 0 <= i < vocab_size for i in ids)
            ):
                return Text(tuple(ids), num_prompt, is_held_out)
        raise StoreError(f"{self.path}:{number}: not a text of this target; remove the file")
