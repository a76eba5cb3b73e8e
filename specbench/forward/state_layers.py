"""Layers that fold their past into a state, run by transformers' own code over state slots.

A recurrent or convolutional layer of a model (gated delta net, Mamba, lightning attention, short
convolution) is called piece by piece, each with the state before it, and the state that it leaves
is kept. In a round a piece is one token: the step that every such layer has for plain decoding,
so that the state after each token exists. Products that depend only on the token are taken out
of the steps: they run once over all tokens, and read their weights once.
Shape suffixes: B rows, T tokens, F hidden size.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache

from specbench.files.config import ATTENTION_LAYERS
from specbench.forward.slot_cache import SlotCache
from specbench.forward.state_slots import Piece, StateSlots

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
        """The states that the layer left."""
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
    """That of lightning attention, whose model has its own class of cache."""

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


# What transformers' layers call on a cache to leave their state there.
_LEAVES_STATE = {"update_recurrent_state", "update_conv_state", "set_linear_cache"}


def state_layers(model: Any) -> list[nn.Module]:
    """The modules of a model that keep a state, in order."""
    kinds: dict[type, bool] = {}
    layers = []
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            kind = type(module)
            if kind not in kinds:
                kinds[kind] = _leaves_state(kind)
            if kinds[kind]:
                layers.append(module)
    return layers


def has_other_state(model: Any) -> bool:
    """Whether the model keeps state that no slot cache can hold.

    A class may keep state in some of its models and have nothing but attention in this one.
    """
    if state_layers(model):
        return "past_key_values" not in inspect.signature(model.forward).parameters
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ("unknown",)
    return getattr(model, "_is_stateful", False) and not ATTENTION_LAYERS.issuperset(kinds)


def run_over_slots(model: Any) -> None:
    """Have the model's state layers use state slots wherever they are called with a SlotCache.

    With any other cache they are what they were.
    """
    config = model.config.get_text_config()
    for module in state_layers(model):
        if not isinstance(vars(module).get("forward"), _OverSlots):
            module.forward = _OverSlots(module, config, _cache_class_of(model))


def slot_cache_class(model: Any) -> type[SlotCache]:
    """The slot cache, as a child of the class of cache that the model insists on, if any."""
    insisted = _cache_class_of(model)
    return SlotCache if insisted is None else type("SlotCache", (SlotCache, insisted), {})


def _cache_class_of(model: Any) -> type[Cache] | None:
    """The class of cache that a model's own file defines; usually none."""
    home = sys.modules[type(model).__module__]
    classes = (thing for thing in vars(home).values() if inspect.isclass(thing))
    return next(
        (c for c in classes if issubclass(c, Cache) and c.__module__ == home.__name__),
        None,
    )


def _leaves_state(kind: type) -> bool:
    methods = (inspect.unwrap(m) for m in vars(kind).values() if inspect.isfunction(m))
    return any(_LEAVES_STATE & set(method.__code__.co_names) for method in methods)


class _OverSlots:
    """The forward of one state layer; stands in its module's place."""

    def __init__(self, module: nn.Module, config: Any, cache_class: type[Cache] | None) -> None:
        self._module = module
        self._plain: Callable[..., Any] = module.forward
        self._names = tuple(inspect.signature(module.forward).parameters)
        index = module.layer_idx
        assert isinstance(index, int), "a layer's number"
        self._layer: int = index
        self._own = (
            OwnState(config, index) if cache_class is None else LinearState(cache_class, index)
        )
        self._products: tuple[tuple[str, ...], str | None] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        name = next((n for n, value in given.items() if isinstance(value, SlotCache)), None)
        if name is None:
            return self._plain(*args, **kwargs)
        states = given[name].states
        assert states is not None, "the runner's cache has state slots"
        hidden_BTF = given.pop(self._names[0])
        given[name] = self._own.cache

        def step(new_BTF: Tensor) -> Any:
            return self._plain(new_BTF, **given)

        pieces = states.pieces
        if len(pieces) == 1:
            return self._run(step, hidden_BTF, states, pieces[0])
        if self._products is None:
            self._products = self._token_products(step, hidden_BTF[:, :1], states, pieces[0])
        with self._products_once(hidden_BTF) as (at, finish):
            outs = []
            for piece in pieces:
                at(piece.begin)
                step_B1F = hidden_BTF[:, piece.begin : piece.end]
                outs.append(self._run(step, step_B1F, states, piece))
            return finish(_joined(outs))

    def _run(
        self, step: Callable[[Tensor], Any], new_BTF: Tensor, states: StateSlots, piece: Piece
    ) -> Any:
        self._own.load(states.read(self._layer, piece))
        out = step(new_BTF)
        states.write(self._layer, piece, self._own.left())
        return out

    def _token_products(
        self, step: Callable[[Tensor], Any], hidden_B1F: Tensor, states: StateSlots, piece: Piece
    ) -> tuple[tuple[str, ...], str | None]:
        """The children that are fed the layer's input as it is, and the one that gives its output.

        Found by watching one step.
        """
        inputs: list[str] = []
        outputs: dict[str, Tensor] = {}

        def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
            def see(_: nn.Module, args: Any, out: Any) -> None:
                if args and args[0] is hidden_B1F and isinstance(out, Tensor):
                    inputs.append(name)
                if isinstance(out, Tensor):
                    outputs[name] = out

            return see

        children = dict(self._module.named_children())
        hooks = [child.register_forward_hook(watch(name)) for name, child in children.items()]
        self._own.load(states.read(self._layer, piece))
        out = _first(step(hidden_B1F))
        for hook in hooks:
            hook.remove()
        last = next((name for name, made in outputs.items() if made is out), None)
        return tuple(inputs), last if isinstance(children.get(last or ""), nn.Linear) else None

    @contextmanager
    def _products_once(
        self, hidden_BTF: Tensor
    ) -> Iterator[tuple[Callable[[int], None], Callable[[Any], Any]]]:
        """While it lasts, steps look the products of their inputs up and leave out the last one."""
        assert self._products is not None
        inputs, last = self._products
        modules = self._module._modules
        known = {name: modules[name] for name in (*inputs, *([last] if last else []))}
        ready = {name: _Ready(modules[name], hidden_BTF) for name in inputs}

        def at(token: int) -> None:
            for product in ready.values():
                product.token = token

        def finish(out: Any) -> Any:
            if last is None:
                return out
            product: Any = known[last]
            made = product(_first(out))
            return (made, *out[1:]) if isinstance(out, tuple) else made

        modules.update(ready)  # type: ignore[arg-type]
        if last is not None:
            modules[last] = _Through(modules[last])  # type: ignore[assignment]
        try:
            yield at, finish
        finally:
            modules.update(known)


class _Stand:
    """Stands in a module's place for a while; what else is asked of it is the module's."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Ready(_Stand):
    """A module's output for all tokens, returned token by token."""

    def __init__(self, module: Any, hidden_BTF: Tensor) -> None:
        super().__init__(module)
        self.token = 0
        self._made_BTF: Tensor = module(hidden_BTF)

    def __call__(self, _: Tensor) -> Tensor:
        return self._made_BTF[:, self.token : self.token + 1]


class _Through(_Stand):
    """Leaves its module's work to be done later, over all tokens."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


def _first(out: Any) -> Tensor:
    first: Tensor = out[0] if isinstance(out, tuple) else out
    return first


def _joined(outs: list[Any]) -> Any:
    """The outputs of pieces, one after the other, whatever of them goes by tokens (Zaya's queries,
    keys and values); a layer's other results are those of the last piece."""
    if not isinstance(outs[-1], tuple):
        return torch.cat(outs, 1)
    by_tokens = _first(outs[-1]).shape[:2]
    return tuple(
        torch.cat(parts, 1)
        if isinstance(parts[-1], Tensor) and parts[-1].shape[:2] == by_tokens
        else parts[-1]
        for parts in zip(*outs, strict=True)
    )
