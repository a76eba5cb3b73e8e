"""A layer's state in a cache of transformers' own, which is what its code reads and writes."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

KINDS = ("conv", "recurrent")


class OwnState:
    """The state of one layer as transformers' own cache hands it to the layer's code."""

    def __init__(self, config: Any, layer: int) -> None:
        self.cache: Cache = DynamicCache(config=config)
        self._layer: Any = self.cache.layers[layer]
        self._names: list[tuple[str, int]] = []

    def load(self, states: list[Tensor] | None) -> None:
        """Begin with these, which the layer may write to; None: with none."""
        layer = self._layer
        if states is not None:
            for (kind, i), state in zip(self._names, states, strict=True):
                getattr(layer, f"{kind}_states")[i] = state
        for kind in KINDS:
            is_there = getattr(layer, f"is_{kind}_states_initialized")
            is_there.update(dict.fromkeys(is_there, states is not None))
        for other in self.cache.layers:  # some layers ask whether the last one has any
            if hasattr(other, "has_previous_state"):
                had = other.has_previous_state
                had.update(dict.fromkeys(had, states is not None))

    def left(self) -> list[Tensor]:
        """What the layer left."""
        layer = self._layer
        kept = {kind: getattr(layer, f"{kind}_states") for kind in KINDS}
        self._names = [
            (kind, i)
            for kind, states in kept.items()
            for i, state in states.items()
            if state is not None
        ]
        return [kept[kind][i] for kind, i in self._names]


class LinearState(OwnState):
    """That of lightning attention, whose model has a class of cache of its own."""

    def __init__(self, cache_class: type[Cache], layer: int) -> None:
        self._class = cache_class
        self._index = layer
        self.cache: Any = cache_class()

    def load(self, states: list[Tensor] | None) -> None:
        self.cache.linear_cache.clear()
        if states is not None:
            self.cache.set_linear_cache(self._index, states[0])

    def left(self) -> list[Tensor]:
        return [self.cache.linear_cache[self._index]]


def cache_bytes(cache: Any) -> tuple[int, int]:
    """Bytes of the keys and values in a cache of transformers' own, and of the states."""
    layers = cache.layers
    keys = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    states = [
        state
        for layer in layers
        for kind in KINDS
        for state in getattr(layer, f"{kind}_states", {}).values()
    ]
    states += getattr(cache, "linear_cache", [])
    return _bytes_of(keys), _bytes_of(states)


def _bytes_of(kept: list[Any]) -> int:
    return sum(tensor.nbytes for tensor in kept if isinstance(tensor, Tensor))
