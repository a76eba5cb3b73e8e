"""One exception tree: a user's mistake is a SpecbenchError; a bug is anything else.

SpecbenchError
|- ConfigError       pairings.yaml: wrong key, type, name or file
|- WorkloadError     a workload file: malformed line, unknown format, wrong checksum
|- ModelError        a model cannot be loaded, or the decoder cannot run it
|  '- ModelMemoryError  it does not fit into the memory that is left
|- CompatibilityError  target and draft do not fit together
|- StoreError        a run on disk: absent, locked, of another schema, damaged
|- UsageError        arguments that contradict each other or name nothing
|- ServerError       a server cannot be reached, refuses, or does not report what is needed
|  |- LostError        it was silent, could not be reached, or broke off
|  '- RefusedError     it answered with an error status
|- DeviceError       the device fails at some work; it may do what comes after
'- DeviceLostError   the device fails at everything since: only a new process helps; exit code 4
"""

_LONGEST_LINE = 300
_BUSY = (408, 425, 429)  # statuses of a request that may be answered another time


def first_line(error: BaseException) -> str:
    """What an error says, short enough for a table; its kind where the words alone say nothing.

    A line that ends in a colon says what the next one is about, so that one is told as well.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    said = lines.pop(0)
    while lines and said.endswith(":"):
        said = f"{said} {lines.pop(0)}"
    if isinstance(error, KeyError):  # the bare key
        said = f"KeyError: {said}"
    return said if len(said) <= _LONGEST_LINE else said[: _LONGEST_LINE - 3] + "..."


class SpecbenchError(Exception):
    """Says what is wrong, where, what is allowed and what to do next; exit code 2."""


class ConfigError(SpecbenchError):
    """pairings.yaml is wrong; the text begins with `file:line: key:`."""


class WorkloadError(SpecbenchError):
    """A workload file is wrong; the text begins with `file:line:` where a line is to blame."""


class ModelError(SpecbenchError):
    """A model cannot be found, loaded, or run by the decoder."""


class ModelMemoryError(ModelError):
    """A model does not fit into the memory that is left."""


class CompatibilityError(SpecbenchError):
    """Target and draft do not fit together."""


class StoreError(SpecbenchError):
    """A stored run is absent, locked, damaged or of another schema."""


class UsageError(SpecbenchError):
    """Arguments contradict each other or name nothing that exists."""


class ServerError(SpecbenchError):
    """A server cannot be reached, refuses, or does not report what is needed of it."""

    is_lost = False  # whether the same request may be answered another time


class LostError(ServerError):
    """It was silent, could not be reached, or broke off."""

    is_lost = True


class RefusedError(ServerError):
    """It answered with an error status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status
        self.is_lost = status in _BUSY or status >= 500


class DeviceError(SpecbenchError):
    """The device fails at a piece of work, and does others."""


class DeviceLostError(SpecbenchError):
    """The device fails at everything that this process asks of it."""
