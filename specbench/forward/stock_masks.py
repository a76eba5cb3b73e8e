"""Masks as transformers' modelling code takes them: one, or one for each kind of layer.

Shape suffixes: B rows, T new tokens, S slots.
"""

from typing import Any

import torch
from torch import Tensor

from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.tree import Branches
from specbench.model_files.attention import STATE_LAYERS

Masks = Tensor | dict[str, Tensor | None]


class StockMasks:
    """The masks of one model's forwards over slots."""

    def __init__(self, config: Any, dtype: torch.dtype, *, has_states: bool) -> None:
        self._dtype = dtype
        heads: int = config.num_attention_heads
        self._pack = heads // (getattr(config, "num_key_value_heads", None) or heads)
        self._windows = _windows(config, has_states=has_states)
        # A state goes by tokens; which of them are real is not for a mask to say.
        self._unmasked = dict.fromkeys(STATE_LAYERS) if has_states else {}

    def __call__(
        self, positions_BT: Tensor, span: int, branches: Branches | None, *, is_plain: bool
    ) -> Masks:
        """For tokens at those positions; `is_plain` if they are the last of `span` slots."""
        slots_S = torch.arange(span, device=positions_BT.device)
        masks: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            if is_plain and window is None:
                masks[kind] = torch.empty(1, 1, 0, 0, dtype=self._dtype, device=slots_S.device)
                continue
            seen_BTS = visible(positions_BT, slots_S, window=window, branches=branches)
            masks[kind] = additive_mask(seen_BTS, self._dtype, pack=self._pack)
        if len(masks) == 1 and not self._unmasked:
            return next(iter(masks.values()))
        return {**self._unmasked, **masks}


def _windows(config: Any, *, has_states: bool) -> dict[str, int | None]:
    """Attention window per layer type; one entry means that the model takes a single mask."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    if has_states:  # whose attention goes by this name, whatever the layers are called
        return {"full_attention": window}
    if len(kinds) > 1:
        return {kind: window if kind == "sliding_attention" else None for kind in kinds}
    if kinds == ["full_attention"]:
        return {"full_attention": None}
    return {"all": window}
