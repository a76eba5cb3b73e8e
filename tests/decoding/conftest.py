"""Planting a bug: one line of a function's source is changed for the length of a test.

The line must occur exactly once, so a bug that no longer fits its function is noticed.
"""

import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

Plant = Callable[[Any, str, str], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """plant(function, right, wrong): the function with `wrong` where its source says `right`."""

    def plant(function: FunctionType, right: str, wrong: str) -> None:
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(right) == 1, f"{function.__name__} no longer says {right!r} once"
        scope: dict[str, Any] = {}
        exec(source.replace(right, wrong), function.__globals__, scope)
        monkeypatch.setattr(function, "__code__", scope[function.__name__].__code__)

    return plant
