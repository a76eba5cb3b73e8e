"""Kernels of a layer's small operations: one launch each instead of two to six.

Shape suffixes: N tokens, Q query heads, H key/value heads, D head size, P positions, S slots,
M width of the MLP.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.forward.kernels import ARITHMETIC

LAUNCHES = 1  # per operation


@triton.jit
def _turn_and_keep(
    qkv, cos_sin, head_norm, positions, slots, kept,
    eps, qkv_stride, kept_stride, position_stride, slot_stride,
    Q: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, HALF)
    inside = i < D // 2
    first = qkv + token * qkv_stride + head * D + i
    second = first + D // 2
    x = tl.load(first, inside, 0.0).to(tl.float32)
    y = tl.load(second, inside, 0.0).to(tl.float32)
    slot = tl.load(slots + token * slot_stride).to(tl.int64)
    if head < Q + H:
        if HAS_NORM:
            scale = tl.rsqrt((tl.sum(x * x, 0) + tl.sum(y * y, 0)) / D + eps)
            weight = head_norm + head * D + i
            x = x * scale * tl.load(weight, inside, 0.0).to(tl.float32)
            y = y * scale * tl.load(weight + D // 2, inside, 0.0).to(tl.float32)
        # The table has cosines twice, then sines whose first half is negated.
        table = cos_sin + tl.load(positions + token * position_stride).to(tl.int64) * 2 * D + i
        cos = tl.load(table, inside, 0.0).to(tl.float32)
        sin = tl.load(table + D + D // 2, inside, 0.0).to(tl.float32)
        x, y = x * cos - y * sin, y * cos + x * sin
    if head < Q:
        tl.store(first, x.to(qkv.dtype.element_ty), inside)
        tl.store(second, y.to(qkv.dtype.element_ty), inside)
    else:
        address = kept + slot * kept_stride + (head - Q) * D + i
        tl.store(address, x.to(kept.dtype.element_ty), inside)
        tl.store(address + D // 2, y.to(kept.dtype.element_ty), inside)


@torch.library.custom_op("specbench::rotary", mutates_args=("qkv_NW", "kept_SW"))
def turn_and_keep(
    qkv_NW: Tensor,
    kept_SW: Tensor,
    cos_sin_P2D: Tensor,
    head_norm: Tensor | None,
    positions_N: Tensor,
    slots_N: Tensor,
    query_heads: int,
    head_size: int,
    eps: float,
) -> None:
    """Rotate the queries of qkv [N, (Q + 2 H) D] in place, and write rotated keys and values side
    by side to `kept` [S, 2 H D] at `slots`.

    `cos_sin` [P, 2, D] has the cosines and sines of each position, each half twice, the first half
    of the sines negated. With `head_norm` [(Q + H) D], heads get their RMS norm first (Qwen 3).
    All arithmetic is in float32. Source: Su et al. 2021 (arXiv:2104.09864), section 3.4.2.
    """
    num_heads = qkv_NW.shape[1] // head_size
    kv_heads = (num_heads - query_heads) // 2
    half = triton.next_power_of_2(head_size // 2)
    _turn_and_keep[len(qkv_NW), num_heads](
        qkv_NW, cos_sin_P2D, head_norm, positions_N, slots_N, kept_SW,
        eps, qkv_NW.stride(0), kept_SW.stride(0), positions_N.stride(0), slots_N.stride(0),
        Q=query_heads, H=kv_heads, D=head_size, HALF=half, HAS_NORM=head_norm is not None,
        num_warps=1, **ARITHMETIC,
    )  # fmt: skip


@turn_and_keep.register_fake
def _(*_: object) -> None: ...


_BLOCK = 1024


@triton.jit
def _gated(gate_up, stride, M, BLOCK: tl.constexpr):
    row = gate_up + tl.program_id(0).to(tl.int64) * stride
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(row + i, i < M, 0.0).to(tl.float32)
    up = tl.load(row + M + i, i < M, 0.0).to(tl.float32)
    gated = gate / (1 + tl.exp(-gate)) * up
    tl.store(row + i, gated.to(gate_up.dtype.element_ty), i < M)


@torch.library.custom_op("specbench::gated", mutates_args=("gate_up_N2M",))
def gate(gate_up_N2M: Tensor) -> None:
    """Replace the gate, the first half, by silu(gate) * up, computed in float32."""
    width = gate_up_N2M.shape[1] // 2
    grid = (len(gate_up_N2M), triton.cdiv(width, _BLOCK))
    _gated[grid](gate_up_N2M, gate_up_N2M.stride(0), width, BLOCK=_BLOCK, **ARITHMETIC)


@gate.register_fake
def _(gate_up_N2M: Tensor) -> None: ...
