"""Our attention over slots, registered with transformers, and the masks it needs.

Shape suffixes: B rows, T new tokens, S slots, M slots of branches, H query heads,
N key/value heads, G = H / N, D head size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from specbench.forward.tree import Branches

NAME = "specbench_slots"


def visible(
    positions_BT: Tensor,
    slots_S: Tensor,
    *,
    window: int | None,
    branches: Branches | None = None,
) -> Tensor:
    """Which slots each token attends to, bool [B, T, S].

    In a chain a slot's number is its position, so one comparison covers ragged rows, stale
    slots of rejected drafts and the padded tail. Windows compare positions, never slots.
    """
    places_BT1 = positions_BT[..., None]
    if branches is None:
        seen_BTS = slots_S <= places_BT1
        return seen_BTS if window is None else seen_BTS & (slots_S > places_BT1 - window)
    T, M = branches.seen_BTM.shape[1:]
    offsets_BS = slots_S - branches.base_B1
    is_branch_BS = (offsets_BS >= 0) & (offsets_BS < M)
    node_BS = offsets_BS.clamp(0, M - 1)
    told_BTS = branches.seen_BTM.gather(2, node_BS[:, None].expand(-1, T, -1))
    seen_BTS = (told_BTS & is_branch_BS[:, None]) | (offsets_BS < 0)[:, None]
    if window is None:
        return seen_BTS
    at_BS = torch.where(is_branch_BS, branches.positions_BM.gather(1, node_BS), slots_S)
    return seen_BTS & (at_BS[:, None] > places_BT1 - window)


def additive_mask(seen_BTS: Tensor, dtype: torch.dtype, *, pack: int) -> Tensor:
    """[B, 1, pack * T, S]: 0 where a slot is seen, else the dtype's minimum.

    Not -inf: a row without any visible slot must not become NaN.
    """
    mask_BTS = torch.zeros(seen_BTS.shape, dtype=dtype, device=seen_BTS.device)
    mask_BTS = mask_BTS.masked_fill(~seen_BTS, torch.finfo(dtype).min)
    return mask_BTS.repeat(1, pack, 1)[:, None]


def slot_attention(
    module: nn.Module,  # noqa: ARG001 - the interface passes it
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend query [B, H, T, D] over key and value [B, N, S, D]; return [B, T, H, D].

    Grouped-query heads are packed into the query axis, so keys and values are never repeated;
    the mask comes packed likewise. An empty mask says that the T tokens are the last of the S
    slots and each sees all up to itself: kernels that take no mask can serve that. `softcap`
    (Gemma 2) and `s_aux` (attention sinks, GPT-OSS) are not in torch's kernel and take the
    explicit path.
    """
    B, H, T, D = query.shape
    N = key.shape[1]
    G = H // N
    if attention_mask.numel() == 0:
        if softcap is None and s_aux is None:
            return causal_attention(query, key, value, scaling).transpose(1, 2), None
        places_1T = torch.arange(key.shape[2] - T, key.shape[2], device=key.device)[None]
        slots_S = torch.arange(key.shape[2], device=key.device)
        seen_1TS = visible(places_1T, slots_S, window=None)
        attention_mask = additive_mask(seen_1TS, query.dtype, pack=G)
    packed = query.reshape(B, N, G * T, D)
    if attention_mask.shape[2] != G * T:  # layers with another head count than the config's
        attention_mask = attention_mask[:, :, :T].repeat(1, 1, G, 1)
    if softcap is None and s_aux is None:
        out = scaled_dot_product_attention(
            packed, key, value, attn_mask=attention_mask, scale=scaling
        )
    else:
        scores = packed @ key.transpose(-1, -2) * (D**-0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        out = _softmax(scores + attention_mask, s_aux, T).to(value.dtype) @ value
    return out.reshape(B, H, T, -1).transpose(1, 2), None


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None = None
) -> Tensor:
    """Queries [B, H, T, D] of the last T of S slots, each seeing all up to itself; [B, H, T, D]."""
    T, S = query.shape[2], key.shape[2]
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=causal_lower_right(T, S) if 1 < T < S else None,
        is_causal=1 < T == S,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _softmax(scores_BNMS: Tensor, sinks_H: Tensor | None, T: int) -> Tensor:
    """Softmax over slots; a head's sink takes part in the sum and is then dropped."""
    if sinks_H is None:
        return scores_BNMS.softmax(-1, dtype=torch.float32)
    B, N, M, _ = scores_BNMS.shape
    sinks = sinks_H.reshape(1, N, -1, 1, 1).expand(B, -1, -1, T, 1).reshape(B, N, M, 1)
    return torch.cat([scores_BNMS, sinks], -1).softmax(-1, dtype=torch.float32)[..., :-1]


AttentionInterface.register(NAME, slot_attention)
