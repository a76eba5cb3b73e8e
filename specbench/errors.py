"""One exception tree: a user's mistake is a SpecbenchError; a bug is anything else.

SpecbenchError
|- ConfigError       pairings.yaml: wrong key, type, name or file
|- WorkloadError     a workload file: malformed line, unknown format, wrong checksum
|- ModelError        a model cannot be loaded, or the decoder cannot run it
|  '- ModelMemoryError  it does not fit into the memory that is left
|- CompatibilityError  target and draft do not fit together
|- StoreError        a run on disk: absent, locked, of another schema, damaged
|- UsageError        arguments that contradict each other or name nothing
|- DeviceError       the device fails at some work; it may do what comes after
'- DeviceLostError   the device fails at everything since: only a new process helps; exit code 4
"""


def first_line(error: BaseException) -> str:
    """What an error says, short enough for a table; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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


class DeviceError(SpecbenchError):
    """The device fails at a piece of work, and does others."""


class DeviceLostError(SpecbenchError):
    """The device fails at everything that this process asks of it."""
