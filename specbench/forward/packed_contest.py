"""Are packed weights slower than plain ones here? A model's largest layers, timed in turns.

A kernel that writes unpacked weights to memory before it multiplies reads more than plain ones.
Shape suffixes: T tokens, F inputs, G outputs.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from specbench.forward.contest import Run, Timing, fastest, in_turn, prepared
from specbench.records import Contender

_MOST_LAYERS = 4  # so many do not fit a GPU's cache: each is read from memory, as in decoding
_SLOWER = 1.05


def packed_layers(model: Any) -> list[nn.Linear]:
    """The largest packed linear layers, all of one shape; none where nothing is packed."""
    packed = [
        module
        for module in model.modules()
        if type(module) is nn.Linear and hasattr(module.weight, "__tensor_flatten__")
    ]
    shape = max((layer.weight.shape for layer in packed), key=torch.Size.numel, default=None)
    return [layer for layer in packed if layer.weight.shape == shape][:_MOST_LAYERS]


@torch.inference_mode()
def packed_contest(
    layers: list[nn.Linear], num_tokens: int, scheme: str, timing: Timing
) -> tuple[str, list[Contender]]:
    """Seconds of the packed layers, and of plain ones with their shape, dtype and device.

    Nothing is chosen: the scheme that was asked for runs. Where either cannot run, for want of
    memory for instance, there is a reason instead of seconds.
    """
    first = layers[0].weight
    x_TF = torch.rand(num_tokens, first.shape[1], dtype=first.dtype, device=first.device)
    name = str(first.dtype).removeprefix("torch.")

    def packed() -> Run:
        return as_rounds_run([partial(layer, x_TF) for layer in layers])

    def plain() -> Run:
        weights = [torch.rand(first.shape, dtype=x_TF.dtype, device=x_TF.device) for _ in layers]
        return as_rounds_run([partial(linear, x_TF, weight_GF) for weight_GF in weights])

    def as_rounds_run(runs: list[Run]) -> Run:
        run = in_turn(runs)
        return run if timing.captured is None else timing.captured(run)

    candidates = [prepared(scheme, packed, timing), prepared(name, plain, timing)]
    return scheme, fastest(candidates, timing)[1]


def times_as_long(contenders: tuple[Contender, ...]) -> float | None:
    """Seconds of the packed layers / seconds of the plain ones; None where they were not timed."""
    packed, plain = contenders
    if packed.seconds is None or not plain.seconds:
        return None
    return packed.seconds / plain.seconds


def slower_note(scheme: str, dtype: str, ratios: dict[int, float]) -> str | None:
    """What to say where packed weights are slower, by the number of tokens; None: they are not."""
    if max(ratios.values(), default=0.0) <= _SLOWER:
        return None
    shown = " and ".join(f"{ratio:.2f} times as long for T = {T}" for T, ratio in ratios.items())
    return f"{scheme} weights are slower than {dtype} here: a large linear layer takes {shown}"
