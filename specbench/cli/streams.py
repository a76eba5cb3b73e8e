"""Output streams of commands, without control characters in the names that are printed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from specbench.plain_text import plain

_UP = "\x1b[A"  # a line up: progress bars of libraries write it, like a carriage return


class _PlainStream:
    """A stream that writes plain text; rich, whose colors are its own, finds the stream itself.

    Progress bars of libraries keep their way back to the beginning of a line.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        start = "\r" if text.startswith("\r") else ""
        shown = text if not text.replace(_UP, "").strip("\n") else start + plain(text[len(start) :])
        self.rich_proxied_file.write(shown)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def plain_streams() -> Iterator[None]:
    """Within it whatever is printed is plain."""
    ours = _PlainStream(sys.stdout), _PlainStream(sys.stderr)
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        sys.stdout, sys.stderr = (stream.rich_proxied_file for stream in ours)
