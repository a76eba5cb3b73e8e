"""What is to be said of packed weights: whether they are slower than plain ones here."""

from functools import partial
from importlib.metadata import version

from specbench.engines.contests import Contests
from specbench.forward.packed_contest import (
    packed_contest,
    packed_layers,
    slower_note,
    times_as_long,
)
from specbench.models.loading import LoadedModel

_TOKENS = (1, 5)  # K = 0 and K = 4


def packed_notes(contests: Contests, loaded: LoadedModel, name: str) -> tuple[str, ...]:
    """A note where the named model's are, timed against plain ones of the same shape."""
    layers = packed_layers(loaded.model)
    if not layers or loaded.quantization is None:
        return ()
    scheme, weight = loaded.quantization, layers[0].weight
    packer = version("torchao")
    ratios = {}
    for T in _TOKENS:
        facts = (scheme, packer, weight.dtype, (T, tuple(weight.shape), len(layers)))
        hold = partial(packed_contest, layers, T, scheme, contests.timing)
        subject = f"{scheme} linear layer of {name}, T = {T}"
        choice = contests.choose(subject, weight.device, facts, (), hold)
        if (ratio := times_as_long(choice.contenders)) is not None:
            ratios[T] = ratio
    note = slower_note(scheme, loaded.dtype, ratios)
    return (note,) if note else ()
