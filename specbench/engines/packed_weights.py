"""Are packed weights slower than plain ones here? A model's largest layers, timed in turns.

A kernel that writes unpacked weights to memory before it multiplies reads more than plain ones.
Shape suffixes: T tokens, F inputs, G outputs.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from specbench.forward.autotune import Autotuner, Outcome, Results, Timing, Work, autotune
from specbench.models.loading import LoadedModel
from specbench.records import Contender

_TOKENS = (1, 5)  # K = 0 and K = 4
_MOST_LAYERS = 4  # more than a GPU's cache holds: each is read from memory, as in decoding
_SLOWER = 1.05


def packed_notes(autotuner: Autotuner, loaded: LoadedModel, name: str) -> tuple[str, ...]:
    """A note if the named model's are slower, timed against plain ones of the same shape."""
    layers = packed_layers(loaded.model)
    if not layers or loaded.quantization is None:
        return ()
    scheme, weight = loaded.quantization, layers[0].weight
    packer = version("torchao")
    ratios = {}
    for T in _TOKENS:
        facts = (scheme, packer, weight.dtype, (T, tuple(weight.shape), len(layers)))
        tune = partial(time_packed, layers, T, scheme, autotuner.timing)
        subject = f"{scheme} linear layer of {name}, T = {T}"
        choice = autotuner.choose(subject, weight.device, facts, (), tune)
        if (ratio := times_as_long(choice.contenders)) is not None:
            ratios[T] = ratio
    note = slower_note(scheme, loaded.dtype, ratios)
    return (note,) if note else ()


def packed_layers(model: Any) -> list[nn.Linear]:
    """The largest packed linear layers, all of one shape; none if nothing is packed."""
    packed = [
        module
        for module in model.modules()
        if type(module) is nn.Linear and hasattr(module.weight, "__tensor_flatten__")
    ]
    shape = max((layer.weight.shape for layer in packed), key=torch.Size.numel, default=None)
    return [layer for layer in packed if layer.weight.shape == shape][:_MOST_LAYERS]


@torch.inference_mode()
def time_packed(layers: list[nn.Linear], num_tokens: int, scheme: str, timing: Timing) -> Outcome:
    """Seconds of the packed layers, and of plain ones with their shape, dtype and device.

    The requested scheme runs, whichever is faster, and plain weights are random: there is nothing
    to compare results with. If either cannot run, for lack of memory for instance, there is a
    reason instead of seconds.
    """
    first = layers[0].weight
    x_TF = torch.rand(num_tokens, first.shape[1], dtype=first.dtype, device=first.device)

    def packed() -> list[Work]:
        return [partial(_products, [partial(layer, x_TF) for layer in layers])]

    def plain() -> list[Work]:
        weights = [torch.rand(first.shape, dtype=x_TF.dtype, device=x_TF.device) for _ in layers]
        return [partial(_products, [partial(linear, x_TF, weight_GF) for weight_GF in weights])]

    candidates = {scheme: packed, str(first.dtype).removeprefix("torch."): plain}
    return scheme, autotune(candidates, [()], lambda *_: None, timing)[1]


def _products(products: list[Callable[[], Tensor]]) -> Results:
    return tuple(product() for product in products)


def times_as_long(contenders: tuple[Contender, ...]) -> float | None:
    """Seconds of the packed layers / seconds of the plain ones; None if they were not timed."""
    packed, plain = contenders
    if packed.seconds is None or not plain.seconds:
        return None
    return packed.seconds / plain.seconds


def slower_note(scheme: str, dtype: str, ratios: dict[int, float]) -> str | None:
    """Says that packed weights are slower, by the number of tokens; None if they are not."""
    if max(ratios.values(), default=0.0) <= _SLOWER:
        return None
    shown = " and ".join(f"{ratio:.2f} times as long for T = {T}" for T, ratio in ratios.items())
    return f"{scheme} weights are slower than {dtype} here: a large linear layer takes {shown}"
