"""Masks as transformers' modeling code takes them: one, or one for each kind of layer.

Shape suffixes: B rows, T new tokens, S slots.
"""

from typing import Any

import torch
from torch import Tensor

from specbench.files.config import STATE_LAYERS
from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.attention.reach import (
    EVERYTHING,
    Reach,
    field,
    reaches,
    reaches_beside_states,
)
from specbench.forward.tree import Branches

Masks = Tensor | dict[str, Tensor | None]


class StockMasks:
    """The masks of one model's forwards over slots.

    Those that `are_whole` have one row per token and are never left out.
    """

    def __init__(
        self, config: Any, dtype: torch.dtype, *, has_states: bool, are_whole: bool = False
    ) -> None:
        self._dtype = dtype
        self._are_whole = are_whole
        self._pack = 1 if are_whole else _query_heads_per_kv_head(config)
        self._reaches = reaches_beside_states(config) if has_states else reaches(config)
        # A state goes by tokens; which of them are real is not for a mask to say.
        self._unmasked = dict.fromkeys(STATE_LAYERS) if has_states else {}

    def __call__(
        self, positions_BT: Tensor, span: int, branches: Branches | None, *, is_plain: bool
    ) -> Masks:
        """For tokens at those positions; `is_plain` if they are the last of `span` slots."""
        slots_S = torch.arange(span, device=positions_BT.device)
        made: dict[Reach, Tensor] = {}
        for reach in set(self._reaches.values()):
            if is_plain and not self._are_whole and reach == EVERYTHING:
                made[reach] = torch.empty(1, 1, 0, 0, dtype=self._dtype, device=slots_S.device)
                continue
            seen_BTS = visible(positions_BT, slots_S, **reach._asdict(), branches=branches)
            made[reach] = additive_mask(seen_BTS, self._dtype, pack=self._pack)
        masks = {kind: made[reach] for kind, reach in self._reaches.items()}
        if len(masks) == 1 and not self._unmasked:
            return next(iter(masks.values()))
        return {**self._unmasked, **masks}


def _query_heads_per_kv_head(config: Any) -> int:
    heads: int = field(config, "num_attention_heads") or 1
    return max(heads // (field(config, "num_key_value_heads") or heads), 1)
