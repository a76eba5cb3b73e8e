"""Builds drafters by name; each file of this folder registers one with `@drafter("name")`."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from specbench.decode.drafter import Drafter
from specbench.errors import UsageError
from specbench.forward.runner import Runner
from specbench.methods import find_method, require_builtin
from specbench.models.checkpoint import Checkpoint
from specbench.models.tokenizer import ChatTokenizer

D = TypeVar("D", bound=Callable[..., Drafter])
_CLASSES: dict[str, Callable[..., Drafter]] = {}


def _not_given() -> Any:
    raise UsageError("the drafter needs a model and was given none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Inputs that a drafter is built from; those it does not use are not loaded."""

    target: Runner
    draft_runner: Callable[[], Runner] = _not_given  # the draft model, already checked
    checkpoint: Callable[[], Checkpoint] = _not_given  # the unmodified files of a head
    # The tokenizers of the target and of the draft model.
    tokenizers: Callable[[], tuple[ChatTokenizer, ChatTokenizer]] = _not_given


def drafter(name: str) -> Callable[[D], D]:
    """Register a method's class, whose keyword-only arguments are the method's parameters."""

    def register(cls: D) -> D:
        _CLASSES[name] = cls
        return cls

    return register


def drafter_class(name: str) -> Any:
    """The class of a method; UsageError for an unknown name lists all methods, and for a method
    that only serving engines have."""
    require_builtin(method := find_method(name))
    import_module(method.module)
    return _CLASSES[name]


def build_drafter(name: str, parts: Parts, parameters: dict[str, Any]) -> Drafter:
    """The named drafter; UsageError for an unknown name or parameter, or an invalid value."""
    method = find_method(name)
    for key, value in parameters.items():
        if complaint := method.parameter(key).complaint(value):
            raise UsageError(f"{name}: {key} {complaint}")
    drafter: Drafter = drafter_class(name)(parts, **method.settings(parameters))
    return drafter
