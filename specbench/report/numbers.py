"""Numbers as a reader sees them: three significant digits and a unit fit for the screen."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specbench.decide.explanation import LARGEST_EFFECT, speedup_text
from specbench.records import Interval

ABSENT = "-"  # what could not be measured; never 0, never nan

_NOTHING = 1e-9  # a picosecond in ms: below any clock, above the errors of rounding
_COUNTS = {"tokens", "rounds", "requests", "texts"}
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class Scale(NamedTuple):
    """The displayed unit and the factor from a stored value to it."""

    unit: str
    factor: float


def effect_text(effect: float) -> str:
    """A minimum detectable effect; `>100%` for a larger one."""
    return f"{effect:.1%}" if effect <= LARGEST_EFFECT else f">{LARGEST_EFFECT:.0%}"


def scale_of(unit: str, largest: float) -> Scale:
    """The displayed unit for values of a metric's unit up to `largest`."""
    if unit.startswith("bytes"):
        size, name = next((s for s in _SIZES if abs(largest) >= s[0]), (1, "bytes"))
        return Scale(unit.replace("bytes", name), 1 / size)
    if unit in {"s", "s/token"}:
        return Scale(f"m{unit}", 1e3)
    return Scale("%", 100.0) if unit == "fraction" else Scale(unit, 1.0)


def memory_scale(largest: float) -> Scale:
    """The unit of an axis of bytes up to `largest`: MiB or GiB."""
    return scale_of("bytes", max(largest, 2**20))


def number(value: float, unit: str, scale: Scale) -> str:
    """A stored value on a scale, without its unit."""
    return f"{value:,.0f}" if unit in _COUNTS else significant(value * scale.factor)


def measured(value: float, unit: str) -> str:
    """A value with its unit: 5.43 ms, 81.0%, 1.90x, 12.6 MiB, 1,234 tokens."""
    scale = scale_of(unit, value)
    gap = "" if scale.unit in {"%", "x"} else " "
    return f"{number(value, unit, scale)}{gap}{scale.unit}"


def significant(value: float) -> str:
    """At least three significant digits: 0.0123, 1.23, 123, 12,345.

    The rounding error of a difference of equal numbers is 0.
    """
    if abs(value) < _NOTHING:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, decimals)}f}"


def value_text(value: float | None, form: str) -> str:
    """A value formatted with `form`, a template of `str.format`; ABSENT for None."""
    return ABSENT if value is None else form.format(value)


def interval_text(speedup: Interval | None) -> str:
    """A speedup with its interval."""
    return ABSENT if speedup is None else speedup_text(speedup)


def list_of(metrics: Mapping[str, float | tuple[float, ...]], name: str) -> tuple[float, ...]:
    """The values of a metric that is a list; empty for an absent one."""
    value = metrics.get(name)
    return value if isinstance(value, tuple) else ()


def plural(count: int, noun: str) -> str:
    """`1 prompt`, `8 prompts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
