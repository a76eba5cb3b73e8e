"""Our attention over slots, registered in transformers for its modeling code, and the choice of the
torch kernels that compute it, which is recorded.

Shape suffixes: B rows, T new tokens, S slots, H query heads, N key/value heads, G = H / N,
D head size.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from specbench.forward.attention.masks import additive_mask, visible
from specbench.models.library_output import quiet

NAME = "specbench_slots"


def attend_by(model: Any, name: str) -> None:
    """Make a model use an attention implementation, by its name in transformers.

    Warnings about the missing parts of a multimodal model are suppressed.
    """
    with quiet():
        model.set_attn_implementation(name)


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

    Grouped-query heads are packed into the query axis, so keys and values are never repeated; the
    mask is packed in the same way. An empty mask means that the T tokens are the last of the S
    slots and attention is causal, which kernels without a mask can compute. `softcap` (Gemma 2) and
    `s_aux` (attention sinks, GPT-OSS) are not supported by torch's kernel and computed explicitly.
    """
    B, H, T, D = query.shape
    N = key.shape[1]
    G = H // N
    if attention_mask.numel() == 0:
        if softcap is None and s_aux is None:
            out = causal_attention(query, key, value, scaling)
            return out.transpose(1, 2).contiguous(), None
        positions_1T = torch.arange(key.shape[2] - T, key.shape[2], device=key.device)[None]
        slots_S = torch.arange(key.shape[2], device=key.device)
        seen_1TS = visible(positions_1T, slots_S, window=None)
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
    return out.reshape(B, H, T, -1).transpose(1, 2).contiguous(), None  # AfMoE calls view()


def are_plain(model: nn.Module) -> list[bool]:
    """Whether `slot_attention` computes a layer explicitly, by layer; empty if no layer of the
    model's class can have soft-capping or sinks."""
    return [
        getattr(module, name) is not None
        for module in model.modules()
        for name in ("attn_logit_softcapping", "sinks")
        if hasattr(module, name)
    ]


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None = None
) -> Tensor:
    """Causal attention [B, H, T, D] of the tokens in the last T of S slots, without a mask."""
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
    """Softmax over slots; a head's sink is included in the sum, then dropped."""
    if sinks_H is None:
        return scores_BNMS.softmax(-1, dtype=torch.float32)
    B, N, M, _ = scores_BNMS.shape
    sinks = sinks_H.reshape(1, N, -1, 1, 1).expand(B, -1, -1, T, 1).reshape(B, N, M, 1)
    return torch.cat([scores_BNMS, sinks], -1).softmax(-1, dtype=torch.float32)[..., :-1]


# In order of preference. cuDNN builds a plan for each shape, so an eager round would build one
# whenever its span grows; the efficient kernel needs no plan. Heads are packed, so no backend
# rejects unequal head counts.
PREFERRED = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]


def pinned_attention(device: torch.device) -> AbstractContextManager[object]:
    """Within this context, attention on CUDA uses the first preferred backend that supports it."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel(PREFERRED, set_priority=True)


def attention_backend(
    device: torch.device,
    dtype: torch.dtype,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_tokens: int = 1,
    span: int = 256,
) -> str:
    """The name of the torch backend that a forward of one row and `num_tokens` tokens uses.

    Torch chooses it from empty tensors of the decoder's shapes, without computing. It does not
    apply to the layers of `are_plain`.
    """

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=device)

    num_queries = num_heads // num_kv_heads * num_tokens
    query = empty(1, num_kv_heads, num_queries, head_dim)
    key, value = (empty(1, span, num_kv_heads, head_dim).transpose(1, 2) for _ in range(2))
    with pinned_attention(device):
        chosen = torch._fused_sdp_choice(query, key, value, empty(1, 1, num_queries, span))
    return SDPBackend(chosen).name.lower()


AttentionInterface.register(NAME, slot_attention)
