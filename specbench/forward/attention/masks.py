"""Which slots each token sees, as booleans and as a mask to be added to scores.

Shape suffixes: B rows, T new tokens, S slots, M slots of branches.
"""

import torch
from torch import Tensor

from specbench.forward.tree import Branches


def hidden(dtype: torch.dtype) -> float:
    """The mask value for a slot that is not seen: half of the dtype's minimum.

    The minimum itself becomes -inf if a kernel scales its scores for a base of 2, and a tile of
    nothing else becomes NaN.
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
    """Which slots each token attends to, bool [B, T, S].

    In a chain a slot's number is its position, so one comparison covers ragged rows, stale slots of
    rejected drafts and the padded tail. Windows and chunks compare positions, never slots: a token
    sees the last `window` positions, or those of its `chunk` (Llama 4).
    """
    places_BT1 = positions_BT[..., None]
    first_BT1 = None
    if window is not None:
        first_BT1 = places_BT1 - window + 1
    elif chunk is not None:
        first_BT1 = places_BT1 - places_BT1 % chunk
    if branches is None:
        seen_BTS = slots_S <= places_BT1
        return seen_BTS if first_BT1 is None else seen_BTS & (slots_S >= first_BT1)
    T, M = branches.seen_BTM.shape[1:]
    offsets_BS = slots_S - branches.base_B1
    is_branch_BS = (offsets_BS >= 0) & (offsets_BS < M)
    node_BS = offsets_BS.clamp(0, M - 1)
    told_BTS = branches.seen_BTM.gather(2, node_BS[:, None].expand(-1, T, -1))
    seen_BTS = (told_BTS & is_branch_BS[:, None]) | (offsets_BS < 0)[:, None]
    if first_BT1 is None:
        return seen_BTS
    at_BS = torch.where(is_branch_BS, branches.positions_BM.gather(1, node_BS), slots_S)
    return seen_BTS & (at_BS[:, None] >= first_BT1)


def additive_mask(seen_BTS: Tensor, dtype: torch.dtype, *, pack: int) -> Tensor:
    """[B, 1, pack * T, S]: 0 if a slot is seen, else `hidden`."""
    mask_BTS = torch.zeros(seen_BTS.shape, dtype=dtype, device=seen_BTS.device)
    mask_BTS = mask_BTS.masked_fill(~seen_BTS, hidden(dtype))
    return mask_BTS.repeat(1, pack, 1)[:, None]
