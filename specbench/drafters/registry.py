"""Finds drafters: one file of this folder each, marked with `@drafter("name")`."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from specbench.decoding.drafter import Drafter
from specbench.decoding.runner import Runner
from specbench.drafters.catalogue import find_method
from specbench.errors import UsageError

D = TypeVar("D", bound=Callable[..., Drafter])
_CLASSES: dict[str, Callable[..., Drafter]] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a drafter is built from; `draft_runner` loads its model when first called."""

    target: Runner
    draft_runner: Callable[[], Runner]


def drafter(name: str, *, needs_model: bool = False) -> Callable[[D], D]:  # noqa: ARG001
    """Register a drafter class; its keyword-only parameters are what pairings.yaml may set.

    `needs_model` is read by catalogue.py, without importing the file.
    """

    def register(cls: D) -> D:
        _CLASSES[name] = cls
        return cls

    return register


def build_drafter(name: str, parts: Parts, parameters: dict[str, Any]) -> Drafter:
    """The named drafter with the given parameters.

    Raises UsageError for an unknown name or parameter, or a value the drafter refuses.
    """
    method = find_method(name)
    allowed = {p.name: p.type for p in method.parameters}
    for key, value in parameters.items():
        if key not in allowed:
            raise UsageError(
                f"{name}: unknown parameter {key!r}; allowed: {', '.join(allowed) or 'none'}"
            )
        if type(value).__name__ != allowed[key]:
            raise UsageError(
                f"{name}: {key} is {value!r}; a value of type {allowed[key]} is needed"
            )
    import_module(method.module)
    return _CLASSES[name](parts, **parameters)
