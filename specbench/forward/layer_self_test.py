"""Checks a head's fused layers against transformers' own, before they are trusted.

Shape suffixes: B rows, T tokens, F hidden size, W what the first layer's attention reads.
"""

from typing import Any

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.forward.layer_stack import LayerStack
from specbench.forward.self_test import TOLERANCE, Forward, distance
from specbench.forward.tree import Branches, ancestors_of
from specbench.models.library_errors import failure_reason

_SPAN = 64
_KEPT, _ALONE, _TOGETHER = 3, 4, 5  # tokens of a row: keys alone, fed alone, with the other row's
_PARENTS = (0, 0, 1)  # of a tree of three drafts


@torch.inference_mode()
def check_layers(layers: LayerStack, forward: Forward, name: str) -> tuple[str, ...]:
    """Have those of the named head run as `forward` asks for, and what is to be said about it.

    `auto` falls back from fused layers to transformers' own, and the notes say why. ModelError
    where fused ones are asked for and cannot run, or give other states.
    """
    if forward == "stock":
        layers.run_stock("they were asked for")
        return ()
    reason = layers.reason or _difference(layers)
    if reason is None:
        return ()
    if forward == "fused":
        raise ModelError(
            f"{name}: its layers cannot run fused: {reason}; ask for the forward auto or stock"
        )
    layers.run_stock(reason)
    return (f"{name}: stock layers instead of fused ones: {reason}",)


def _difference(layers: LayerStack) -> str | None:
    """None where both make the same states of the same numbers, but for rounding."""
    try:
        fused_TF, stock_TF = _over_slots(layers), _over_slots(layers.as_stock())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return failure_reason(error)
    worst, allowed = distance(fused_TF, stock_TF), TOLERANCE[stock_TF.dtype]
    if worst <= allowed:
        return None
    return (
        f"their states differ from those of transformers' own layers by {worst:.2g} of their "
        f"spread ({allowed:g} is rounding in {stock_TF.dtype})"
    )


def _over_slots(layers: LayerStack) -> Tensor:
    """States of two rows: keys alone, tokens, both rows over wrong ones, a tree."""
    layers.allocate(2, _SPAN)
    attention: Any = layers.layers[0].self_attn
    width, size = attention.q_proj.in_features, attention.o_proj.out_features
    weight = attention.q_proj.weight
    generator = torch.Generator("cpu").manual_seed(0)
    at_T = torch.arange(_SPAN, device=weight.device)
    made = []

    def drawn(B: int, T: int, size: int) -> Tensor:
        numbers = torch.randn(B, T, size, generator=generator, device="cpu")
        return numbers.to(weight.device, weight.dtype)

    def feed(positions_BT: Tensor, first_row: int = 0, branches: Branches | None = None) -> None:
        B, T = positions_BT.shape
        states_BTF = drawn(B, T, size)
        entry_BTW = None if width == size else drawn(B, T, width)
        out_BTF = layers.forward(
            states_BTF,
            positions_BT,
            _SPAN,
            first_row=first_row,
            branches=branches,
            entry_BTW=entry_BTW,
        )
        made.append(out_BTF.reshape(B * T, size))

    stop = _KEPT + _ALONE
    for row in range(2):
        layers.keep(drawn(1, _KEPT, width), at_T[None, :_KEPT], _SPAN, first_row=row)
        feed(at_T[None, _KEPT:stop], row)
    starts_B1 = at_T[stop - 1 : stop + 1, None]  # row 0 takes its last token back
    feed(starts_B1 + at_T[:_TOGETHER])
    length_B1 = starts_B1 + _TOGETHER
    parents_BK = torch.tensor(_PARENTS, device=at_T.device).expand(2, -1)
    seen_BNN, depths_BN = ancestors_of(parents_BK, len(_PARENTS))
    places_BN = length_B1 + depths_BN
    slots_BN = length_B1 + at_T[: len(_PARENTS) + 1]
    feed(places_BN, branches=Branches(length_B1, slots_BN, seen_BNN, places_BN))
    layers.release()
    return torch.cat(made)
