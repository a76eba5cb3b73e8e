"""What a command's exit status means, everywhere."""

from enum import IntEnum


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
