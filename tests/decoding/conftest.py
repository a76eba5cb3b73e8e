"""Either runner over a model, and planted bugs for the duration of a test."""

import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner, StockRunner

MakeRunner = Callable[[Any], Runner]
Plant = Callable[[Any, str, str], None]


@pytest.fixture(params=[StockRunner, FusedRunner], ids=["stock", "fused"])
def make_runner(request: pytest.FixtureRequest) -> MakeRunner:
    return request.param


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """plant(function, right, wrong): replace `right` with `wrong` in the function's source.

    The source must contain it exactly once, so a bug that no longer fits its function is noticed.
    """

    def plant(function: FunctionType, right: str, wrong: str) -> None:
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(right) == 1, f"{function.__name__} no longer says {right!r} once"
        scope: dict[str, Any] = {}
        exec(source.replace(right, wrong), function.__globals__, scope)
        monkeypatch.setattr(function, "__code__", scope[function.__name__].__code__)

    return plant
