"""The noise of draws: a hash of (seed, position, purpose, token) in one launch instead of 50 to 80.

It has the same bits as the hash of `decode/sampling.py`, which describes its properties.
Shape suffixes: B rows, T positions, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LAUNCHES = 1
_BLOCK = 1024


@triton.jit
def _mix32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def draw_key(seed, position, purpose):
    """The hash of a draw, uint32, from which the noise of its tokens is computed."""
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    key = _mix32(_mix32(_mix32(low) ^ high) ^ position.to(tl.uint32))
    return _mix32(key + purpose)


@triton.jit
def exponential_of(key, token):
    """Exponential(1) noise of each token, float32; precise for values near 0."""
    bits = _mix32(key ^ _mix32(token.to(tl.uint32) * 2 + 1))
    chance = tl.minimum((bits.to(tl.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    # -log1p(-chance), accurate to the last digits; source: Goldberg 1991, theorem 4.
    rest = 1 - chance
    taken = tl.where(rest == 1, 1.0, 1 - rest)
    return tl.where(rest == 1, chance, -tl.log(rest) * (chance / taken))


@triton.jit
def _uniform(
    out, seeds, positions, turns,
    N, T, seed_stride, row_stride, position_stride, num_purposes,
    PURPOSE: tl.constexpr, HAS_TURNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    row, t = i // T, i % T
    seed = tl.load(seeds + row * seed_stride, inside, 0)
    position = tl.load(positions + row * row_stride + t * position_stride, inside, 0)
    purpose = tl.full([BLOCK], PURPOSE, tl.uint32)
    if HAS_TURNS:
        purpose += (tl.load(turns + t, inside, 0) * num_purposes).to(tl.uint32)
    bits = draw_key(seed, position, purpose)
    tl.store(out + i, (bits.to(tl.float32) + 0.5) * 2.0**-32, inside)


@torch.library.custom_op("specbench::uniform", mutates_args=())
def uniform(
    seeds_B: Tensor, positions_BT: Tensor, purpose: int, turns_T: Tensor | None, num_purposes: int
) -> Tensor:
    """Uniform numbers in (0, 1], float32 [B, T]; `turns_T` number the draws at one position."""
    out_BT = seeds_B.new_empty(positions_BT.shape, dtype=torch.float32)
    _uniform[triton.cdiv(out_BT.numel(), _BLOCK),](
        out_BT, seeds_B, positions_BT, turns_T,
        out_BT.numel(), out_BT.shape[1], seeds_B.stride(0), *positions_BT.stride(), num_purposes,
        PURPOSE=purpose, HAS_TURNS=turns_T is not None, BLOCK=_BLOCK,
    )  # fmt: skip
    return out_BT


@uniform.register_fake
def _(seeds_B: Tensor, positions_BT: Tensor, *_: object) -> Tensor:  # noqa: ARG001
    return positions_BT.new_empty(positions_BT.shape, dtype=torch.float32)


@triton.jit
def _exponential(
    out, seeds, positions, T, V, seed_stride, row_stride, position_stride,
    PURPOSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    draw = tl.program_id(0).to(tl.int64)
    row, t = draw // T, draw % T
    seed = tl.load(seeds + row * seed_stride)
    key = draw_key(seed, tl.load(positions + row * row_stride + t * position_stride), PURPOSE)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + draw * V + token, exponential_of(key, token), token < V)


@torch.library.custom_op("specbench::exponential", mutates_args=())
def exponential(seeds_B: Tensor, positions_BT: Tensor, purpose: int, num_tokens: int) -> Tensor:
    """Noise above 0 for every token of every draw, float32 [B, T, V]."""
    out_BTV = seeds_B.new_empty(*positions_BT.shape, num_tokens, dtype=torch.float32)
    grid = (positions_BT.numel(), triton.cdiv(num_tokens, _BLOCK))
    _exponential[grid](
        out_BTV, seeds_B, positions_BT, positions_BT.shape[1], num_tokens,
        seeds_B.stride(0), *positions_BT.stride(),
        PURPOSE=purpose, BLOCK=_BLOCK,
    )  # fmt: skip
    return out_BTV


@exponential.register_fake
def _(seeds_B: Tensor, positions_BT: Tensor, purpose: int, num_tokens: int) -> Tensor:  # noqa: ARG001
    return seeds_B.new_empty(*positions_BT.shape, num_tokens, dtype=torch.float32)
