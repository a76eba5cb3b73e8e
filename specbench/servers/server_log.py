"""What a started server printed, and what it says of the server's end."""

import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

READ_BYTES = 2**18  # of the end of a log: the cause often stands far above its last lines
NUM_LAST, LONGEST_LINE = 15, 300  # lines that are shown, and characters of each


class Cause(NamedTuple):
    """What engines print of a common failure, and what their user can do."""

    printed: re.Pattern[str]
    advice: str


MEMORY = (
    "it needs more memory than is free: end what else takes memory, or have the engine take less "
    "with --engine-args (a shorter context, a smaller share of the GPU)"
)
PORT = (
    "its port is taken: put {port} in --launch in place of a number, and no port in --engine-args; "
    "a free one is then picked for each start"
)
FILE = "a file is missing: if it is a model's, look at its place in pairings.yaml"
COMMAND = "name the engine's own Python with --engine-python, or its whole command with --launch"
_HARMLESS = re.compile(r"\b(WARNING|INFO|DEBUG)\b")  # engines print much of what they do without
# In the words of Python, the C library, PyTorch, vLLM, SGLang and llama.cpp. The first that is
# found counts: of those further down, engines print some as warnings.
CAUSES = tuple(
    Cause(re.compile(printed, re.IGNORECASE), advice)
    for printed, advice in (
        (r"address already in use|couldn't bind .*socket", PORT),
        (
            r"out of memory|MemoryError|not enough memory|cannot allocate memory|bad_alloc"
            r"|failed to allocate|no available memory for the cache"
            r"|free memory on device .* is less than|larger than the available KV cache memory",
            MEMORY,
        ),
        (
            r"FileNotFoundError|failed to open GGUF|is not a local folder|Repository Not Found"
            r"|HFValidationError: Repo id|Invalid repository ID or local directory"
            r"|does not appear to have a file named|LocalEntryNotFoundError",
            FILE,
        ),
        (r"No module named", f"this Python lacks the engine or a part of it: {COMMAND}"),
    )
)
# Exit statuses that say it themselves, as shells and Docker have them.
ADVICE_BY_STATUS = {
    0: "if its command left it in the background, it cannot be watched: keep it in front",
    126: f"its command cannot be run: {COMMAND}",
    127: f"its command, or a part of it, is not found: {COMMAND}",
    128 + signal.SIGKILL: f"if nobody killed it, the system did for want of memory, and {MEMORY}",
}


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A log from the byte on at which this server's part begins."""

    path: Path
    start: int

    def explain(self, what: str, status: int | None = None) -> str:
        """What happened, its likely cause, what to do about it, and the last lines of the log."""
        lines = self._lines()
        parts = [what, *_cause(lines, status), f"the end of its log {self.path}:"]
        return "\n".join(["; ".join(parts), *(f"  {line}" for line in lines[-NUM_LAST:])])

    def _lines(self) -> list[str]:
        with self.path.open("rb") as stream:
            stream.seek(max(self.start, self.path.stat().st_size - READ_BYTES))
            text = stream.read().decode("utf-8", "replace")
        return [line[:LONGEST_LINE].rstrip() for line in text.splitlines() if line.strip()]


def how_it_ended(status: int) -> str:
    """An exit status in words; 128 and a signal's number is how a shell tells that one."""
    with suppress(ValueError):
        return f"by {signal.Signals(status - 128).name}"
    return f"with exit status {status}"


def _cause(lines: Sequence[str], status: int | None) -> list[str]:
    """What was printed of a known cause, and advice; of others what was printed last."""
    if status in ADVICE_BY_STATUS:
        return [ADVICE_BY_STATUS[status]]
    for cause in CAUSES:
        for line in reversed(lines):
            if cause.printed.search(line) and not _HARMLESS.search(line):
                return [f"it printed `{line.strip()}`", cause.advice]
    return [f"the last that it printed is `{lines[-1].strip()}`"] if lines else []
