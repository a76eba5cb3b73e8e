"""Draws tokens by an exponential race, with noise computed in the kernel: two launches per draw.

Each program searches a part of the vocabulary, so that even one row uses the whole GPU. The second
launch compares the parts. Shape suffixes: B rows, T positions, V vocabulary, P parts of it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.forward.kernels.noise import draw_key, exponential_of

LAUNCHES = 2
_BLOCK = 1024


@triton.jit
def _race(
    x, seeds, positions, best, tokens,
    T, V, P, x_row_stride, x_position_stride, seed_stride, row_stride, position_stride, temperature,
    PURPOSE: tl.constexpr, IS_LOGITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    draw = tl.program_id(0).to(tl.int64)
    row, t = draw // T, draw % T
    seed = tl.load(seeds + row * seed_stride)
    key = draw_key(seed, tl.load(positions + row * row_stride + t * position_stride), PURPOSE)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    address = x + row * x_row_stride + t * x_position_stride + token
    value = tl.load(address, token < V, 0.0).to(tl.float32)
    noise = exponential_of(key, token)
    # For logits: the logarithm of the ratio, without the constant common to all tokens.
    score = value / temperature - tl.log(noise) if IS_LOGITS else value / noise
    # NaN wins, as in torch; a comparison with NaN could yield an index past the end.
    score = tl.where(score == score, score, float("inf"))
    score = tl.where(token < V, score, float("-inf"))
    highest, index = tl.max(score, 0, return_indices=True)
    part = draw * P + tl.program_id(1)
    tl.store(best + part, highest)
    tl.store(tokens + part, tl.program_id(1) * BLOCK + index)


@triton.jit
def _winner(best, tokens, out, P, PAD: tl.constexpr):
    draw = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PAD)
    score = tl.load(best + draw * P + i, i < P, float("-inf"))
    _, part = tl.max(score, 0, return_indices=True)
    tl.store(out + draw, tl.load(tokens + draw * P + part).to(tl.int64))


@torch.library.custom_op("specbench::race", mutates_args=())
def race(
    x_BTV: Tensor,
    seeds_B: Tensor,
    positions_BT: Tensor,
    purpose: int,
    temperature: float | None,
) -> Tensor:
    """One token per position, int64 [B, T]: the argmax of weight / Exp(1).

    `x_BTV` contains weights with any sum, or logits if a temperature above 0 is given: the weights
    are then softmax(logits / temperature).
    """
    if x_BTV.stride(2) != 1:
        x_BTV = x_BTV.contiguous()
    B, T, V = x_BTV.shape
    parts = triton.cdiv(V, _BLOCK)
    best = x_BTV.new_empty(B * T * parts, dtype=torch.float32)
    tokens = x_BTV.new_empty(B * T * parts, dtype=torch.int32)
    out_BT = seeds_B.new_empty(B, T)
    _race[B * T, parts](
        x_BTV, seeds_B, positions_BT, best, tokens,
        T, V, parts, x_BTV.stride(0), x_BTV.stride(1), seeds_B.stride(0), *positions_BT.stride(),
        temperature or 1.0,
        PURPOSE=purpose, IS_LOGITS=temperature is not None, BLOCK=_BLOCK,
    )  # fmt: skip
    _winner[B * T,](best, tokens, out_BT, parts, PAD=triton.next_power_of_2(parts))
    return out_BT


@race.register_fake
def _(x_BTV: Tensor, seeds_B: Tensor, *_: object) -> Tensor:
    return seeds_B.new_empty(x_BTV.shape[:2])
