"""Builds drafters: one file of this folder each, marked with `@drafter("name")`."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar

from specbench.errors import UsageError
from specbench.forward.runner import Runner
from specbench.inputs.methods import find_method
from specbench.models.checkpoint import Checkpoint
from specbench.models.retokenizer import TextTokenizer
from specbench.round.drafter import Drafter

D = TypeVar("D", bound=Callable[..., Drafter])
_CLASSES: dict[str, Callable[..., Drafter]] = {}


def _not_given() -> Any:
    raise UsageError("the drafter needs a model and was given none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a drafter is built from; what it does not ask for is not loaded."""

    target: Runner
    draft_runner: Callable[[], Runner] = _not_given  # the draft model, checked
    checkpoint: Callable[[], Checkpoint] = _not_given  # the files of a head, as they are
    # The target's and the draft model's.
    tokenizers: Callable[[], tuple[TextTokenizer, TextTokenizer]] = _not_given


def drafter(
    name: str,
    *,
    model: Literal["required", "optional", "refused"] = "refused",  # noqa: ARG001
    is_head: bool = False,  # noqa: ARG001
    draws: bool = False,  # noqa: ARG001
    learns: bool = False,  # noqa: ARG001
    retokenizes: bool = False,  # noqa: ARG001
) -> Callable[[D], D]:
    """Register a drafter class; its keyword-only parameters are what pairings.yaml may set.

    The other arguments are read by methods.py, without importing the file.
    """

    def register(cls: D) -> D:
        _CLASSES[name] = cls
        return cls

    return register


def drafter_class(name: str) -> Any:
    """The class of that name; UsageError names the methods there are."""
    import_module(find_method(name).module)
    return _CLASSES[name]


def build_drafter(name: str, parts: Parts, parameters: dict[str, Any]) -> Drafter:
    """The named drafter; UsageError for an unknown name or parameter, or a value that it
    refuses."""
    method = find_method(name)
    for key, value in parameters.items():
        if complaint := method.parameter(key).complaint(value):
            raise UsageError(f"{name}: {key} {complaint}")
    drafter: Drafter = drafter_class(name)(parts, **parameters)
    return drafter
