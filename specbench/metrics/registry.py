"""The registry of all metrics, for tables, JSON, reports and the gate."""

import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from typing import Literal, TypeVar, cast

from specbench.metrics.cell import CellData

Value = float | tuple[float, ...]
MetricFunction = Callable[[CellData], Value | None]
Better = Literal["higher", "lower"]
F = TypeVar("F", bound=MetricFunction)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The description of a metric for tables and the report's formulas."""

    name: str
    unit: str
    better: Better | None  # None: a description, neither good nor bad
    formula: str  # first paragraph of the function's docstring
    function: MetricFunction
    low: float = -math.inf
    high: float = math.inf
    label: str = ""  # its header in the result tables; "": it is only among all metrics

    @property
    def meaning(self) -> str:
        """The meaning of its header: the formula up to its first colon or semicolon."""
        text = re.split(r"[:;] |\.$", self.formula)[0]
        return text if text[:2].isupper() else text[0].lower() + text[1:]


_FOLDER = "specbench.metrics"
_METRICS: dict[str, Metric] = {}


def metric(
    *,
    unit: str,
    better: Better | None,
    low: float = -math.inf,
    high: float = math.inf,
    label: str = "",
) -> Callable[[F], F]:
    """Registers a pure function of a cell under its own name.

    It returns None for an unknown value, which is absent and never zero. A value outside `low` ..
    `high`, which only a faulty measurement gives, is also absent. The docstring's first paragraph
    is the formula that the report prints.
    """

    def in_range(function: F) -> F:
        @wraps(function)
        def checked(cell: CellData) -> Value | None:
            value = function(cell)
            if value is None or is_between(value, low, high):
                return value
            return None

        return cast(F, checked)

    def register(function: F) -> F:
        if (low, high) != (-math.inf, math.inf):
            function = in_range(function)
        name = function.__name__
        known = _METRICS.get(name)
        if known is not None and known.function.__module__ != function.__module__:
            raise ValueError(f"metric {name} is already defined in {known.function.__module__}")
        if not function.__doc__:
            raise ValueError(f"metric {name} has no docstring: its first paragraph is its formula")
        paragraph = inspect.cleandoc(function.__doc__).split("\n\n")[0]
        _METRICS[name] = Metric(
            name=name,
            unit=unit,
            better=better,
            formula=" ".join(paragraph.split()),
            function=function,
            low=low,
            high=high,
            label=label,
        )
        return function

    return register


def is_between(value: Value, low: float, high: float) -> bool:
    """Whether a number, or each entry of a list, is in the range; NaN is not."""
    numbers = value if isinstance(value, tuple) else (value,)
    return all(low <= number <= high for number in numbers)


def all_metrics() -> Mapping[str, Metric]:
    """Every metric of every module in this folder, by name in alphabetical order."""
    _import_modules(tuple(import_module(_FOLDER).__path__))
    return dict(sorted(_METRICS.items()))


@cache
def _import_modules(folders: tuple[str, ...]) -> None:
    """Imports every module of this folder once, which registers its metrics."""
    for module in pkgutil.iter_modules(folders):
        import_module(f"{_FOLDER}.{module.name}")


def measure(cell: CellData) -> Mapping[str, Value]:
    """The metrics of a cell, without absent ones.

    Raises ArithmeticError when a metric is not finite, which is a bug of that metric.
    """
    values: dict[str, Value] = {}
    for name, known in all_metrics().items():
        value = known.function(cell)
        if value is None:
            continue
        if not all(map(math.isfinite, value if isinstance(value, tuple) else (value,))):
            raise ArithmeticError(f"{name} of {cell.key.id} is {value}")
        values[name] = value
    return values


def number_of(metrics: Mapping[str, Value], name: str) -> float | None:
    """A metric that is a single number; None for a list or an absent one."""
    value = metrics.get(name)
    return None if isinstance(value, tuple) else value
