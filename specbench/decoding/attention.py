"""Our attention over slots, registered with transformers, and the masks it needs.

Shape suffixes: B rows, T new tokens, S slots, H query heads, N key/value heads, G = H / N,
D head size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "specbench_slots"


def causal_mask(
    positions_BT: Tensor, span: int, dtype: torch.dtype, *, window: int | None, pack: int
) -> Tensor:
    """Additive mask [B, 1, pack * T, S]: slot s is seen from position p if p - window < s <= p.

    In a chain a slot's number is its position, so one comparison covers ragged rows, stale
    slots of rejected drafts and the padded tail. Masked entries hold the dtype's minimum, not
    -inf: a row without any visible slot must not become NaN.
    """
    slots_S = torch.arange(span, device=positions_BT.device)
    seen_BTS = slots_S <= positions_BT[..., None]
    if window is not None:
        seen_BTS = seen_BTS & (slots_S > positions_BT[..., None] - window)
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
    the mask comes packed likewise. `softcap` (Gemma 2) and `s_aux` (attention sinks, GPT-OSS)
    are not in torch's kernel and take the explicit path.
    """
    B, H, T, D = query.shape
    N = key.shape[1]
    G = H // N
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


def _softmax(scores_BNMS: Tensor, sinks_H: Tensor | None, T: int) -> Tensor:
    """Softmax over slots; a head's sink takes part in the sum and is then dropped."""
    if sinks_H is None:
        return scores_BNMS.softmax(-1, dtype=torch.float32)
    B, N, M, _ = scores_BNMS.shape
    sinks = sinks_H.reshape(1, N, -1, 1, 1).expand(B, -1, -1, T, 1).reshape(B, N, M, 1)
    return torch.cat([scores_BNMS, sinks], -1).softmax(-1, dtype=torch.float32)[..., :-1]


AttentionInterface.register(NAME, slot_attention)
