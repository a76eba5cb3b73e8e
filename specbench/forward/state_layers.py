"""Runs the recurrent layers of a model, by transformers' code, with their states in `StateSlots`.

These layers (gated delta net, Mamba, lightning attention, short convolution) are called piece by
piece: each call gets the state before the piece, and the state after it is stored. In a round a
piece is one token, as in plain decoding, so that the state after each token is available for
rollback. Projections that depend only on the token run once over all tokens, outside these calls,
so that their weights are read only once.
Shape suffixes: B rows, T tokens, F hidden size.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache

from specbench.files.config import ATTENTION_LAYERS
from specbench.forward.slot_cache import Piece, SlotCache, StateSlots
from specbench.library_facts import cache_argument

KINDS = ("conv", "recurrent")


class LayerState:
    """The state of one layer in a transformers cache, as the layer's code reads and writes it."""

    def __init__(self, config: Any, layer: int) -> None:
        self.cache: Cache = DynamicCache(config=config)
        self._layer: Any = self.cache.layers[layer]
        self._names: list[tuple[str, int]] = []

    def load(self, states: list[Tensor] | None) -> None:
        """Set the states, which the layer may overwrite; None: no states yet."""
        layer = self._layer
        if states is not None:
            for (kind, i), state in zip(self._names, states, strict=True):
                getattr(layer, f"{kind}_states")[i] = state
        for kind in KINDS:
            flags = getattr(layer, f"is_{kind}_states_initialized")
            flags.update(dict.fromkeys(flags, states is not None))
        for other in self.cache.layers:  # some layers check whether the last one has a state
            if hasattr(other, "has_previous_state"):
                flags = other.has_previous_state
                flags.update(dict.fromkeys(flags, states is not None))

    def stored(self) -> list[Tensor]:
        """The states that the layer has stored."""
        layer = self._layer
        by_kind = {kind: getattr(layer, f"{kind}_states") for kind in KINDS}
        self._names = [
            (kind, i)
            for kind, states in by_kind.items()
            for i, state in states.items()
            if state is not None
        ]
        return [by_kind[kind][i] for kind, i in self._names]


class LinearState(LayerState):
    """The state of lightning attention, whose model defines its own cache class."""

    def __init__(self, cache_class: type[Cache], layer: int) -> None:
        self._index = layer
        self.cache: Any = cache_class()

    def load(self, states: list[Tensor] | None) -> None:
        self.cache.linear_cache.clear()
        if states is not None:
            self.cache.set_linear_cache(self._index, states[0])

    def stored(self) -> list[Tensor]:
        return [self.cache.linear_cache[self._index]]


def cache_of(out: Any) -> Cache | None:
    """The cache in a model's output, whatever its name; None without one."""
    return next((value for value in out.values() if isinstance(value, Cache)), None)


def cache_bytes(cache: Any) -> tuple[int, int]:
    """Bytes of the keys and values in a transformers cache, and bytes of its states."""
    layers = cache.layers
    keys = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    states = [state for layer in layers for state in _states_in(layer)]
    states += getattr(cache, "linear_cache", [])
    return _bytes_of(keys), _bytes_of(states)


def _states_in(layer: Any) -> list[Tensor | None]:
    """The recurrent states in one layer of a transformers cache."""
    return [s for kind in KINDS for s in getattr(layer, f"{kind}_states", {}).values()]


def _bytes_of(values: list[Any]) -> int:
    return sum(tensor.nbytes for tensor in values if isinstance(tensor, Tensor))


class _ModelStates(NamedTuple):
    """What a model stores besides keys and values, and the cache class that its code makes."""

    layers: list[nn.Module]
    cache_class: type[Cache] | None  # None: one that transformers offers to every model


_KNOWN: WeakKeyDictionary[nn.Module, _ModelStates] = WeakKeyDictionary()


def state_layers(model: Any) -> list[nn.Module]:
    """The modules of a model that store a recurrent state in its cache, in order.

    Raises what the model's code raises for one token.
    """
    return _states_of(model).layers


def _states_of(model: Any) -> _ModelStates:
    """Found by running one token: a layer has a state if one appears in the cache in its call."""
    if model in _KNOWN:
        return _KNOWN[model]
    recurrent: dict[int, nn.Module] = {}

    def record(module: Any, args: Any, kwargs: Any, _: object) -> None:
        cache = next((v for v in (*args, *kwargs.values()) if isinstance(v, Cache)), None)
        index = module.layer_idx
        if cache is None or not isinstance(index, int) or index in recurrent:
            return  # the innermost module ends its call first
        states = [getattr(cache, "linear_cache", [])[index : index + 1]]
        layers = getattr(cache, "layers", [])  # EncoderDecoderCache wraps two caches
        states += [_states_in(layer) for layer in layers[index : index + 1]]
        if any(isinstance(state, Tensor) for part in states for state in part):
            recurrent[index] = module

    layers = [module for module in model.modules() if hasattr(module, "layer_idx")]
    hooks = [layer.register_forward_hook(record, with_kwargs=True) for layer in layers]
    try:
        with torch.no_grad():
            token_11 = torch.zeros(1, 1, dtype=torch.long, device=model.device)
            run = partial(model, input_ids=token_11, use_cache=True)
            try:
                out = run()
            except IndexError:  # it has more layers than its config says (HRM)
                out = run(**{cache_argument(model.forward): DynamicCache()})
    finally:
        for hook in hooks:
            hook.remove()
    made = type(cache_of(out) or DynamicCache())
    is_own = made.__module__ != Cache.__module__
    _KNOWN[model] = _ModelStates(
        [recurrent[i] for i in sorted(recurrent)], made if is_own else None
    )
    return _KNOWN[model]


def has_other_state(model: Any) -> bool:
    """Whether the model has state that a slot cache cannot store.

    transformers marks whole classes as stateful, although some of their models have only attention.
    """
    if state_layers(model):
        needed = {cache_argument(model.forward), "position_ids"}
        return not needed <= inspect.signature(model.forward).parameters.keys()
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ("unknown",)
    return getattr(model, "_is_stateful", False) and not ATTENTION_LAYERS.issuperset(kinds)


def run_over_slots(model: Any) -> None:
    """Make the state layers of a model use state slots if they are called with a SlotCache.

    With any other cache they behave as before.
    """
    config = model.config.get_text_config()
    for module in state_layers(model):
        if not isinstance(vars(module).get("forward"), _SlotForward):
            module.forward = _SlotForward(module, config, _states_of(model).cache_class)


def slot_cache_class(model: Any) -> type[SlotCache]:
    """SlotCache, or a subclass of it and of the cache class that the model requires."""
    required = _states_of(model).cache_class
    return SlotCache if required is None else type("SlotCache", (SlotCache, required), {})


class _SlotForward:
    """Replaces the forward of one state layer with one that uses state slots."""

    def __init__(self, module: nn.Module, config: Any, cache_class: type[Cache] | None) -> None:
        self._module = module
        self._plain: Callable[..., Any] = module.forward
        self._names = tuple(inspect.signature(module.forward).parameters)
        index = module.layer_idx
        assert isinstance(index, int), "a layer's number"
        self._layer: int = index
        self._state = (
            LayerState(config, index) if cache_class is None else LinearState(cache_class, index)
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
        given[name] = self._state.cache

        def step(new_BTF: Tensor) -> Any:
            return self._plain(new_BTF, **given)

        pieces = states.pieces
        if len(pieces) == 1:
            return self._run(step, hidden_BTF, states, pieces[0])
        if self._products is None:
            self._products = self._token_products(step, hidden_BTF[:, :1], states, pieces[0])
        with self._shared_products(hidden_BTF) as (select_token, finish):
            outs = []
            for piece in pieces:
                select_token(piece.begin)
                step_B1F = hidden_BTF[:, piece.begin : piece.end]
                outs.append(self._run(step, step_B1F, states, piece))
            return finish(_concatenate(outs))

    def _run(
        self, step: Callable[[Tensor], Any], new_BTF: Tensor, states: StateSlots, piece: Piece
    ) -> Any:
        self._state.load(states.read(self._layer, piece))
        out = step(new_BTF)
        states.write(self._layer, piece, self._state.stored())
        return out

    def _token_products(
        self, step: Callable[[Tensor], Any], hidden_B1F: Tensor, states: StateSlots, piece: Piece
    ) -> tuple[tuple[str, ...], str | None]:
        """The child modules that read the layer's input unchanged, and the one that returns its
        output; None if it is not linear. Found by running one step with hooks.
        """
        inputs: list[str] = []
        outputs: dict[str, Tensor] = {}

        def make_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
            def record(_: nn.Module, args: Any, out: Any) -> None:
                if args and args[0] is hidden_B1F and isinstance(out, Tensor):
                    inputs.append(name)
                if isinstance(out, Tensor):
                    outputs[name] = out

            return record

        children = dict(self._module.named_children())
        hooks = [child.register_forward_hook(make_hook(name)) for name, child in children.items()]
        self._state.load(states.read(self._layer, piece))
        out = _first(step(hidden_B1F))
        for hook in hooks:
            hook.remove()
        last = next((name for name, made in outputs.items() if made is out), None)
        return tuple(inputs), last if isinstance(children.get(last or ""), nn.Linear) else None

    @contextmanager
    def _shared_products(
        self, hidden_BTF: Tensor
    ) -> Iterator[tuple[Callable[[int], None], Callable[[Any], Any]]]:
        """Within this context, steps use precomputed input projections and skip the output one.

        Yields a function that sets the token of the next step, and one that applies the output
        projection.
        """
        assert self._products is not None
        inputs, last = self._products
        modules = self._module._modules
        originals = {name: modules[name] for name in (*inputs, *([last] if last else []))}
        precomputed = {name: _PrecomputedModule(modules[name], hidden_BTF) for name in inputs}

        def select_token(token: int) -> None:
            for product in precomputed.values():
                product.token = token

        def finish(out: Any) -> Any:
            if last is None:
                return out
            product: Any = originals[last]
            made = product(_first(out))
            return (made, *out[1:]) if isinstance(out, tuple) else made

        modules.update(precomputed)  # type: ignore[arg-type]
        if last is not None:
            modules[last] = _SkippedModule(modules[last])  # type: ignore[assignment]
        try:
            yield select_token, finish
        finally:
            modules.update(originals)


class _ModuleProxy:
    """Temporarily replaces a module and forwards access to its attributes."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _PrecomputedModule(_ModuleProxy):
    """A module's output for all tokens, returned token by token."""

    def __init__(self, module: Any, hidden_BTF: Tensor) -> None:
        super().__init__(module)
        self.token = 0
        self._output_BTF: Tensor = module(hidden_BTF)

    def __call__(self, _: Tensor) -> Tensor:
        return self._output_BTF[:, self.token : self.token + 1]


class _SkippedModule(_ModuleProxy):
    """Returns its input: the module runs later, over all tokens."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


def _first(out: Any) -> Tensor:
    first: Tensor = out[0] if isinstance(out, tuple) else out
    return first


def _concatenate(outs: list[Any]) -> Any:
    """Concatenate the outputs of pieces. In a tuple, only tensors with a token axis are
    concatenated (Zaya's queries, keys and values); other values are those of the last piece."""
    if not isinstance(outs[-1], tuple):
        return torch.cat(outs, 1)
    token_shape = _first(outs[-1]).shape[:2]
    return tuple(
        torch.cat(parts, 1)
        if isinstance(parts[-1], Tensor) and parts[-1].shape[:2] == token_shape
        else parts[-1]
        for parts in zip(*outs, strict=True)
    )
