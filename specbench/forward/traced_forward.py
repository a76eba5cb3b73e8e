"""The fused forward written for a compiler: no tensor but the keys and values is written in place.

What FusedRunner saves by hand - views, buffers, operations - a compiler finds by itself, if
only nothing aliases. Same weights, same cache, same numbers up to rounding.
Shape suffixes: B rows, T new tokens, N = B * T, S slots, F hidden size, D head size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from specbench.footprint import Sizes
from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.fused_weights import FusedLayer, FusedWeights
from specbench.forward.tree import Branches
from specbench.forward.workspace import Kept, Reach


def traced_states(
    weights: FusedWeights,
    sizes: Sizes,
    eps: float,
    reach: Reach,
    rope: Tensor,
    tokens_BT: Tensor,
    positions_BT: Tensor,
    branches: Branches | None = None,
) -> list[Tensor]:
    """All hidden states [N, F], numbered as Runner.forward has them."""
    B, T = tokens_BT.shape
    slots_BT = positions_BT if branches is None else branches.slots_BT
    slots_N = (slots_BT + reach.first_slot_B1).reshape(-1)
    cos, sin = rope.index_select(0, positions_BT.reshape(-1)).unbind(1)
    masks = {
        window: additive_mask(
            visible(positions_BT, reach.slots_S, window=window, branches=branches),
            rope.dtype,
            pack=sizes.group,
        )
        for window in {layer.window for layer in weights.layers}
    }
    states = [embedding(tokens_BT.reshape(-1), weights.embedding)]
    for layer, kept in zip(weights.layers, reach.layers, strict=False):  # the cache may have more
        qkv_NW = _product(_norm(states[-1], layer.input_norm, eps), layer.qkv, layer.qkv_bias)
        query, new_kv = _heads(layer, sizes, eps, qkv_NW, cos, sin)
        heads_NW = _attend(query, new_kv, kept, slots_N, masks[layer.window], (B, T), sizes)
        hidden = states[-1] + _product(heads_NW, layer.output, layer.output_bias)
        gate_up = _product(_norm(hidden, layer.mlp_norm, eps), layer.gate_up, layer.gate_up_bias)
        gate, up = gate_up.chunk(2, 1)
        states.append(hidden + _product(silu(gate) * up, layer.down, layer.down_bias))
    states[-1] = _norm(states[-1], weights.final_norm, eps)
    return states


def _heads(
    layer: FusedLayer, sizes: Sizes, eps: float, qkv_NW: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Turned queries [N, heads, D], and keys and values as the cache keeps them."""
    N, D = len(qkv_NW), sizes.head
    num_turned = sizes.query_heads + sizes.kv_heads
    turned = qkv_NW[:, : num_turned * D].view(N, num_turned, D)
    if layer.head_norm is not None:
        turned = torch.rms_norm(turned, (D,), None, eps) * layer.head_norm
    halves = turned.view(N, num_turned, 2, D // 2)
    turned = (halves * cos + halves.flip(2) * sin).view(N, num_turned, D)
    keys = turned[:, sizes.query_heads :].reshape(N, -1)
    return turned[:, : sizes.query_heads], torch.cat((keys, qkv_NW[:, num_turned * D :]), 1)


def _attend(
    query: Tensor,
    new_kv: Tensor,
    kept: Kept,
    slots_N: Tensor,
    mask: Tensor,
    shape: Sequence[int],
    sizes: Sizes,
) -> Tensor:
    B, T = shape
    H, G, D = sizes.kv_heads, sizes.group, sizes.head
    kept.buffer.index_copy_(0, slots_N, new_kv)
    packed = query.reshape(B, T, H, G, D).permute(0, 2, 3, 1, 4).reshape(B, H, G * T, D)
    out = scaled_dot_product_attention(packed, kept.keys, kept.values, mask)
    return out.view(B, H, G, T, D).permute(0, 3, 1, 2, 4).reshape(B * T, H * G * D)


def _norm(x_NF: Tensor, weight: Tensor, eps: float) -> Tensor:
    F = x_NF.shape[1]
    return torch.rms_norm(x_NF, (F,), weight[:F], eps)


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return linear(x, matrix.t(), bias)
