"""The last layer's output as it enters a model's final norm, which some heads read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from specbench.errors import ModelError

_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


def state_features(layer_ids: Sequence[int], model: Any, num_layers: int) -> tuple[int, ...]:
    """The features that are those layers' inputs; `num_layers` is the last one's bare output.

    ModelError if that is asked for and cannot be read.
    """
    if num_layers in layer_ids and _final_norm(model) is None:
        raise ModelError(
            f"{type(model).__name__}: its last layer's output (aux layer id {num_layers}) cannot "
            "be read: no final norm is found by the names that are known; choose a head without it"
        )
    return tuple(i if i < num_layers else num_layers + 1 for i in layer_ids)


def _final_norm(model: Any) -> nn.Module | None:
    decoder = model.get_decoder()
    candidates = (getattr(decoder, name, None) for name in _NAMES)
    return next((norm for norm in candidates if isinstance(norm, nn.Module)), None)


@contextmanager
def entering(model: Any, *, is_wanted: bool) -> Iterator[list[Tensor]]:
    """Collects the inputs of the model's final norm in forwards inside; empty unless wanted."""
    entered: list[Tensor] = []
    norm = _final_norm(model) if is_wanted else None
    if norm is None:
        yield entered
        return
    hook = norm.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    try:
        yield entered
    finally:
        hook.remove()
