"""Finds the root cause of a started server's end in its log."""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import NamedTuple

from specbench.errors import ServerError

READ_BYTES = 2**18  # of the end of a log: the cause is often far above its last lines
LONGEST_LINE = 300  # characters of a cause


@dataclass(frozen=True, slots=True)
class LogFormat:
    """The format of an engine's log lines, and the failures that only this engine prints.

    The prefix may have the groups `process` and `level`. `known`: the remedy, by a
    case-insensitive pattern of the printed line.
    """

    prefix: re.Pattern[str] = re.compile(r"(?P<level>DEBUG|INFO|WARNING)\b")
    known: Mapping[str, str] = field(default_factory=dict)


PLAIN = LogFormat()
MEMORY = (
    "it needs more memory than is free: end what else takes memory, or have the engine take less "
    "with --engine-args (a shorter context, a smaller share of the GPU)"
)
PORT = "its port is taken: in --engine-command write {port} instead of a number, to get a free one"
FILE = "a file is missing: if it is a model's, correct its path in pairings.yaml"
DOWNLOAD = "download the whole model again, or correct its `model:` in pairings.yaml"
COMMAND = (
    "name the engine's own Python with --engine-python, or its whole command with --engine-command"
)
ARGUMENTS = (
    "correct --engine-args; if specbench gave this flag, name the engine's release with "
    "--engine-version"
)
ARGPARSE = r"^[\w. -]+: error: "  # Python's parser of arguments
_HARMLESS = ("DEBUG", "INFO", "WARNING", "D", "I", "W")  # levels
_TRACEBACK = "Traceback (most recent call last):"
_MODULE = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")  # of an exception's type
# Printed by Python, the C library, PyTorch and Hugging Face's libraries.
COMMON = {
    r"address already in use": PORT,
    r"out of memory|MemoryError|not enough memory|cannot allocate memory|bad_alloc": MEMORY,
    r"operator torchvision::nms does not exist": (
        "its torchvision does not fit its torch: uninstall torchvision in the engine's environment "
        "(`PYTHON -m pip uninstall torchvision`)"
    ),
    r"FileNotFoundError|is not a local folder|Repository Not Found"
    r"|HFValidationError: Repo id|Invalid repository ID or local directory"
    r"|does not appear to have a file named|LocalEntryNotFoundError": FILE,
    r"No module named": f"this Python lacks the engine or a part of it: {COMMAND}",
}
# Exit statuses with a fixed meaning, as in shells and Docker.
ADVICE_BY_STATUS = {
    0: "if its command left it in the background, run it in the foreground",
    126: f"its command cannot be run: {COMMAND}",
    127: f"its command, or a part of it, is not found: {COMMAND}",
    128 + signal.SIGKILL: f"if you did not kill it, the system did, for lack of memory; {MEMORY}",
}


class EngineError(ServerError):
    """A started server ended, or did not become healthy.

    `reason` is one line without the log's path, so that equal causes have equal reasons.
    """

    def __init__(self, event: str, cause: str, advice: str, log: Path) -> None:
        first = f"{event}:" if cause else event
        super().__init__("\n  ".join(filter(None, (first, cause, advice, f"log: {log}"))))
        self.reason = "; ".join(filter(None, (f"{event}: {cause}" if cause else event, advice)))
        self.log = log


class _LogLine(NamedTuple):
    """A line without its prefix."""

    process: str  # "" if the prefix names none
    is_harmless: bool
    text: str


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A log file, and the byte at which this server's part begins."""

    path: Path
    start: int
    format: LogFormat = LogFormat()

    def explain(self, event: str, status: int | None = None) -> EngineError:
        """The event with its root cause, and the remedy if one is known."""
        cause, advice = _root_cause(self._lines(), {**self.format.known, **COMMON})
        if status is not None:
            advice = advice or ADVICE_BY_STATUS.get(status, "")
        return EngineError(event, cause[:LONGEST_LINE], advice, self.path)

    def _lines(self) -> list[_LogLine]:
        with self.path.open("rb") as stream:
            stream.seek(max(self.start, self.path.stat().st_size - READ_BYTES))
            text = stream.read().decode("utf-8", "replace")
        lines = (self._parse(line.rstrip()) for line in text.splitlines())
        return [line for line in lines if line.text.strip()]

    def _parse(self, line: str) -> _LogLine:
        prefix = self.format.prefix.match(line)
        if prefix is None:
            return _LogLine("", False, line)
        groups, text = prefix.groupdict(), line[prefix.end() :]
        return _LogLine(groups.get("process") or "", groups.get("level") in _HARMLESS, text)


def how_it_ended(status: int) -> str:
    """An exit status in words; 128 plus a signal's number means that signal, as in a shell."""
    with suppress(ValueError):
        return f"by {signal.Signals(status - 128).name}"
    return f"with exit status {status}"


def _root_cause(lines: Sequence[_LogLine], known: Mapping[str, str]) -> tuple[str, str]:
    """The cause and the advice, each "" if unknown.

    The first of these that exists: a known exception, a known line, an exception, the last line.
    """
    lines = [line for line in lines if not line.is_harmless]
    exceptions = list(_exceptions(lines))
    # Indented lines are source code, or usage.
    printed = [line.text for line in lines if not line.text[:1].isspace()]
    for text in (*exceptions, *printed):
        for pattern, advice in known.items():
            if re.search(pattern, text, re.IGNORECASE):
                return text, advice
    return next(iter((*exceptions, *printed[-1:])), ""), ""


def _exceptions(lines: Sequence[_LogLine]) -> Iterator[str]:
    """The exceptions of all tracebacks, in order: the deepest process fails first."""
    for i, line in enumerate(lines, start=1):
        if line.text.endswith(_TRACEBACK) and not line.text[0].isspace():
            same = (later.text for later in lines[i:] if later.process == lines[i].process)
            after = dropwhile(lambda text: text[0].isspace(), same)
            text = _MODULE.sub("", next(after, ""))
            if "validation error" in text:  # Pydantic's: the field, if it is one, and what is wrong
                more = takewhile(lambda text: "For further information" not in text, after)
                text = " ".join((text, *(part.strip() for part in islice(more, 2))))
            if text:
                yield text
