"""One exception tree: a user's mistake is a SpecbenchError; a bug is anything else. Exit codes.

SpecbenchError
|- ConfigError       pairings.yaml: wrong key, type, name or file
|- WorkloadError     a workload file: malformed line, unknown format, wrong checksum
|- ModelError        a model cannot be loaded, or the decoder cannot run it
|  '- ModelMemoryError  it does not fit into the free memory
|- CompatibilityError  target and draft do not fit together
|- StoreError        a run on disk is absent, locked, damaged or of another schema, or a file
|                    cannot be written
|- LibraryError      an installed library is of a version whose internals are unknown
|- UsageError        arguments that contradict each other or name nothing
|- ServerError       a server cannot be reached, refuses, or does not report what is needed
|  |- LostError        no response: timed out, unreachable, or connection closed
|  '- RefusedError     the response has an error status
|- DeviceError       the device failed at one piece of work and can continue
'- DeviceLostError   the device fails at everything; only a new process helps; exit code 4
"""

from enum import IntEnum

_LONGEST_LINE = 300
_BUSY = (408, 425, 429)  # HTTP statuses after which the same request may succeed later


def first_line(error: BaseException) -> str:
    """The first line of an error's message, short enough for a table; its type if it has none.

    A line that ends in a colon introduces the next one, so both are returned.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    line = lines.pop(0)
    while lines and line.endswith(":"):
        line = f"{line} {lines.pop(0)}"
    if isinstance(error, KeyError):  # its message is only the key
        line = f"KeyError: {line}"
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "..."


class SpecbenchError(Exception):
    """A mistake of the user. The message says what is wrong, where, what is allowed and what to
    type next; exit code 2."""


class ConfigError(SpecbenchError):
    """pairings.yaml is wrong; the text begins with `file:line: key:`."""


class WorkloadError(SpecbenchError):
    """A workload file is wrong; the text begins with `file:line:` if one line is wrong."""


class ModelError(SpecbenchError):
    """A model cannot be found, loaded, or run by the decoder."""


class ModelMemoryError(ModelError):
    """A model does not fit into the free memory."""


class CompatibilityError(SpecbenchError):
    """Target and draft do not fit together."""


class StoreError(SpecbenchError):
    """A stored run is absent, locked, damaged or of another schema, or a file cannot be written."""


class LibraryError(SpecbenchError):
    """An installed library is of a version whose internals specbench does not know."""


class UsageError(SpecbenchError):
    """Arguments contradict each other or name nothing that exists."""


class ServerError(SpecbenchError):
    """A server cannot be reached, refuses, or does not report a figure that is needed."""

    is_lost = False  # whether the same request may succeed later


class LostError(ServerError):
    """No response: the server timed out, could not be reached, or closed the connection."""

    is_lost = True


class RefusedError(ServerError):
    """The server's response has an error status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status
        self.is_lost = status in _BUSY or status >= 500


class DeviceError(SpecbenchError):
    """The device failed at one piece of work and can continue with others."""


class DeviceLostError(SpecbenchError):
    """The device fails at everything that this process starts on it."""


class ExitCode(IntEnum):
    """0 good; the others name what a caller, such as CI, should do next."""

    GOOD = 0
    FAILED = 1  # a check failed: a regression, or output that is not the target's
    USER_ERROR = 2  # wrong input, or runs that may not be compared
    INCONCLUSIVE = 3  # one of the answers is undecided; 1 and 4 take precedence
    INCOMPLETE = 4  # cells are missing or failed, or the device was lost: resume the run
    BUG = 70  # ours
    INTERRUPTED = 130
    TERMINATED = 143
