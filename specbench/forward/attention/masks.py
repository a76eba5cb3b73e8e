"""The slots that each token attends to, as booleans and as masks to add to scores, for one window
or for all layer types of a model.

Shape suffixes: B rows, T new tokens, S slots, M slots of branches.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.files.config import STATE_LAYERS
from specbench.forward.tree import Branches


def hidden(dtype: torch.dtype) -> float:
    """The mask value of a hidden slot: half of the dtype's minimum.

    The minimum itself would become -inf in kernels that scale scores for a base of 2, and a tile
    with only hidden slots would become NaN.
    """
    return torch.finfo(dtype).min / 2


def visible(
    positions_BT: Tensor,
    slots_S: Tensor,
    *,
    window: int | None,
    chunk: int | None = None,
    branches: Branches | None = None,
) -> Tensor:
    """The slots that each token attends to, bool [B, T, S].

    In a chain a slot's number is its position, so one comparison covers ragged rows, stale slots of
    rejected drafts and the padded tail. Windows and chunks compare positions, not slots: a token
    attends to the last `window` positions, or to those of its `chunk` (Llama 4).
    """
    positions_BT1 = positions_BT[..., None]
    first_BT1 = None
    if window is not None:
        first_BT1 = positions_BT1 - window + 1
    elif chunk is not None:
        first_BT1 = positions_BT1 - positions_BT1 % chunk
    if branches is None:
        seen_BTS = slots_S <= positions_BT1
        return seen_BTS if first_BT1 is None else seen_BTS & (slots_S >= first_BT1)
    T, M = branches.seen_BTM.shape[1:]
    offsets_BS = slots_S - branches.base_B1
    is_branch_BS = (offsets_BS >= 0) & (offsets_BS < M)
    node_BS = offsets_BS.clamp(0, M - 1)
    branch_BTS = branches.seen_BTM.gather(2, node_BS[:, None].expand(-1, T, -1))
    seen_BTS = (branch_BTS & is_branch_BS[:, None]) | (offsets_BS < 0)[:, None]
    if first_BT1 is None:
        return seen_BTS
    slot_positions_BS = torch.where(is_branch_BS, branches.positions_BM.gather(1, node_BS), slots_S)
    return seen_BTS & (slot_positions_BS[:, None] >= first_BT1)


def additive_mask(seen_BTS: Tensor, dtype: torch.dtype, *, pack: int) -> Tensor:
    """The mask [B, 1, pack * T, S] to add to scores: 0 for visible slots, else `hidden`."""
    mask_BTS = torch.zeros(seen_BTS.shape, dtype=dtype, device=seen_BTS.device)
    mask_BTS = mask_BTS.masked_fill(~seen_BTS, hidden(dtype))
    return mask_BTS.repeat(1, pack, 1)[:, None]


class Reach(NamedTuple):
    """The visible positions: the last `window`, or those of the token's `chunk`; default: all."""

    window: int | None = None
    chunk: int | None = None


EVERYTHING = Reach()


def reaches(config: Any) -> dict[str, Reach]:
    """The reach of each layer type; if there is one entry, the model takes a single mask."""
    window = Reach(window=field(config, "sliding_window"))
    known = {
        "full_attention": EVERYTHING,
        "sliding_attention": window,
        "chunked_attention": Reach(chunk=field(config, "attention_chunk_size")),
    }
    kinds = sorted(set(field(config, "layer_types") or ()))
    return {kind: known.get(kind, EVERYTHING) for kind in kinds} if kinds else {"all": window}


def hybrid_reaches(config: Any) -> dict[str, Reach]:
    """The reach of each mask, by name, in models with recurrent layers.

    In these models all attention layers share one name. If only some have a window, those have a
    separate name (LFM3, Zaya).
    """
    window = Reach(window=field(config, "sliding_window"))
    windowed = {"sliding_attention": window, "hybrid_sliding": window}
    kinds = sorted(set(field(config, "layer_types") or ()))
    named = {
        kind: reach for kind in kinds if (reach := {"hybrid": EVERYTHING, **windowed}.get(kind))
    }
    return {"full_attention": window if windowed.keys().isdisjoint(named) else EVERYTHING, **named}


def field(config: Any, name: str) -> Any:
    """A field of a loaded config; None if it is missing, or differs by layer (Gemma 4)."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None


Masks = Tensor | dict[str, Tensor | None]


class StockMasks:
    """Makes the masks of one model's forwards over slots.

    If they `are_whole`, masks have one row per token and are never omitted.
    """

    def __init__(
        self, config: Any, dtype: torch.dtype, *, has_states: bool, are_whole: bool = False
    ) -> None:
        self._dtype = dtype
        self._are_whole = are_whole
        self._pack = 1 if are_whole else _query_heads_per_kv_head(config)
        self._reaches = hybrid_reaches(config) if has_states else reaches(config)
        # Recurrent layers get no mask: their skipped tokens are chosen by `StateSlots`.
        self._unmasked = dict.fromkeys(STATE_LAYERS) if has_states else {}

    def __call__(
        self, positions_BT: Tensor, span: int, branches: Branches | None, *, is_plain: bool
    ) -> Masks:
        """Masks for tokens at these positions; `is_plain`: they are the last of `span` slots."""
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
