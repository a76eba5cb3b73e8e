"""Numbers as a reader sees them: three significant digits and a unit fit for the screen."""

import math
from collections.abc import Sequence

ABSENT = "-"  # what could not be measured; never 0, never nan

_COUNTS = {"tokens", "rounds", "requests"}
_SCREEN_UNITS = {"s": ("ms", 1e3), "s/token": ("ms/token", 1e3), "fraction": ("%", 1e2)}
_BYTE_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def significant(value: float, digits: int = 3) -> str:
    """Such as 0.0123, 1.23, 123 and 12,345: integers keep all their digits."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, decimals)}f}"


def measured(value: float, unit: str) -> str:
    """A metric's value with its unit: 5.43 ms, 81.0%, 1.90x, 12.6 MiB, 1,234 tokens."""
    if unit.startswith("bytes"):
        size, name = next((u for u in _BYTE_UNITS if abs(value) >= u[0]), (1, "bytes"))
        return f"{significant(value / size)} {name}{unit.removeprefix('bytes')}"
    if unit == "x":
        return f"{value:.2f}x"
    if unit in _COUNTS:
        return f"{value:,.0f} {unit}"
    name, scale = _SCREEN_UNITS.get(unit, (unit, 1.0))
    gap = "" if name == "%" else " "
    return f"{significant(value * scale)}{gap}{name}"


def scalar(value: float | tuple[float, ...] | None) -> float | None:
    """The value of a metric that is a single number; None for a list or an absent one."""
    return None if isinstance(value, tuple) else value


def series(value: float | tuple[float, ...] | None) -> tuple[float, ...]:
    """The values of a metric that is a list; empty for an absent one."""
    return value if isinstance(value, tuple) else ()


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def ranges(numbers: Sequence[int]) -> str:
    """Runs of neighbours joined: 1, 3..5, 8."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)
