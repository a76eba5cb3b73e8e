"""The registry of all metrics, for tables, JSON, reports and the gate."""

import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from typing import Any, Literal, TypeVar, cast, get_type_hints

from specbench.doc import Doc, Key
from specbench.metrics.cell import CellData

Value = float | tuple[float, ...]
MetricFunction = Callable[[CellData], Value | None]
Better = Literal["higher", "lower"]
Function = TypeVar("Function", bound=MetricFunction)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric: its function, and its description in tables and in the report's formulas."""

    name: str
    unit: str
    better: Better | None  # None: neither is better
    formula: str  # first paragraph of the function's docstring
    function: MetricFunction
    low: float = -math.inf
    high: float = math.inf
    label: str = ""  # header in the result tables; "": only in the table of all metrics

    @property
    def meaning(self) -> str:
        """The explanation of its header: the formula up to the first colon or semicolon."""
        text = re.split(r"[:;] |\.$", self.formula)[0]
        # An acronym, such as KV, stays in capitals.
        return text if text[:2].isupper() else text[0].lower() + text[1:]

    def key(self, get: Callable[[Any], Any]) -> Key:
        """The key of its value; `get` returns a source's cell, which has metrics."""
        kind = get_type_hints(self.function).get("return", float | None)
        doc = Doc(self.formula, self.unit, label=self.label)
        return Key(kind, doc, lambda source: get(source).metrics.get(self.name))


_PACKAGE = "specbench.metrics"
_METRICS: dict[str, Metric] = {}


def metric(
    *,
    unit: str,
    better: Better | None,
    low: float = -math.inf,
    high: float = math.inf,
    label: str = "",
) -> Callable[[Function], Function]:
    """Registers a pure function of a cell as the metric of the same name.

    It returns None for an unknown value; the metric is then absent, never zero. A value outside
    `low` .. `high`, which only a faulty measurement gives, is also absent. The docstring's first
    paragraph is the formula that the report prints.
    """

    def in_range(function: Function) -> Function:
        @wraps(function)
        def checked(cell: CellData) -> Value | None:
            value = function(cell)
            if value is None or is_between(value, low, high):
                return value
            return None

        return cast(Function, checked)

    def register(function: Function) -> Function:
        if (low, high) != (-math.inf, math.inf):
            function = in_range(function)
        name = function.__name__
        existing = _METRICS.get(name)
        if existing is not None and existing.function.__module__ != function.__module__:
            raise ValueError(f"metric {name} is already defined in {existing.function.__module__}")
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
    """The metrics of all modules in this package by name, in alphabetical order."""
    _import_modules(tuple(import_module(_PACKAGE).__path__))
    return dict(sorted(_METRICS.items()))


@cache
def _import_modules(folders: tuple[str, ...]) -> None:
    """Imports every module of this package once, which registers its metrics."""
    for module in pkgutil.iter_modules(folders):
        import_module(f"{_PACKAGE}.{module.name}")


def measure(cell: CellData) -> Mapping[str, Value]:
    """The metrics of a cell, without absent ones.

    Raises ArithmeticError when a metric is not finite, which is a bug of that metric.
    """
    values: dict[str, Value] = {}
    for name, definition in all_metrics().items():
        value = definition.function(cell)
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
