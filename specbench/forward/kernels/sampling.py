"""Triton kernels that sample tokens, in fewer launches than torch's operations.

- Noise: a hash of (seed, position, purpose, token) in one launch instead of 50 to 80. It has the
  same bits as the hash of `decode/sampling.py`, which describes its properties.
- A race: draws tokens with noise computed in the kernel, two launches per draw. Each program
  searches a part of the vocabulary, so that even one row uses the whole GPU. The second launch
  compares the parts.
- The nucleus (top-p), by a search for its threshold: 16 launches, softmax included, instead of 48.
  Each histogram resolves 5 bits, and the vocabulary is split over programs. Their sums are added in
  a fixed order, so that replays cut a row in the same way. `decode/sampling.py` has the rule.

Shape suffixes: B rows, T positions, V vocabulary, P parts of it, N distributions, D digits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.forward.kernels import ARITHMETIC

_BITS = 5
_SHIFTS = range(30, -1, -_BITS)
_BLOCK = 1024
LAUNCHES = {"uniform": 1, "exponential": 1, "race": 2, "nucleus": 2 * len(_SHIFTS) + 1}


@triton.jit
def _mix32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _draw_key(seed, position, purpose):
    """The hash of a draw, uint32, from which the noise of its tokens is computed."""
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    key = _mix32(_mix32(_mix32(low) ^ high) ^ position.to(tl.uint32))
    return _mix32(key + purpose)


@triton.jit
def _exponential_of(key, token):
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
    bits = _draw_key(seed, position, purpose)
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
        PURPOSE=purpose, HAS_TURNS=turns_T is not None, BLOCK=_BLOCK, **ARITHMETIC,
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
    key = _draw_key(seed, tl.load(positions + row * row_stride + t * position_stride), PURPOSE)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + draw * V + token, _exponential_of(key, token), token < V)


@torch.library.custom_op("specbench::exponential", mutates_args=())
def exponential(seeds_B: Tensor, positions_BT: Tensor, purpose: int, num_tokens: int) -> Tensor:
    """Noise above 0 for every token of every draw, float32 [B, T, V]."""
    out_BTV = seeds_B.new_empty(*positions_BT.shape, num_tokens, dtype=torch.float32)
    grid = (positions_BT.numel(), triton.cdiv(num_tokens, _BLOCK))
    _exponential[grid](
        out_BTV, seeds_B, positions_BT, positions_BT.shape[1], num_tokens,
        seeds_B.stride(0), *positions_BT.stride(),
        PURPOSE=purpose, BLOCK=_BLOCK, **ARITHMETIC,
    )  # fmt: skip
    return out_BTV


@exponential.register_fake
def _(seeds_B: Tensor, positions_BT: Tensor, purpose: int, num_tokens: int) -> Tensor:  # noqa: ARG001
    return seeds_B.new_empty(*positions_BT.shape, num_tokens, dtype=torch.float32)


@triton.jit
def _race(
    x, seeds, positions, best, tokens,
    T, V, P, x_row_stride, x_position_stride, seed_stride, row_stride, position_stride, temperature,
    PURPOSE: tl.constexpr, IS_LOGITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    draw = tl.program_id(0).to(tl.int64)
    row, t = draw // T, draw % T
    seed = tl.load(seeds + row * seed_stride)
    key = _draw_key(seed, tl.load(positions + row * row_stride + t * position_stride), PURPOSE)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    address = x + row * x_row_stride + t * x_position_stride + token
    value = tl.load(address, token < V, 0.0).to(tl.float32)
    noise = _exponential_of(key, token)
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
        PURPOSE=purpose, IS_LOGITS=temperature is not None, BLOCK=_BLOCK, **ARITHMETIC,
    )  # fmt: skip
    _winner[B * T,](best, tokens, out_BT, parts, PAD=triton.next_power_of_2(parts), **ARITHMETIC)
    return out_BT


@race.register_fake
def _(x_BTV: Tensor, seeds_B: Tensor, *_: object) -> Tensor:
    return seeds_B.new_empty(x_BTV.shape[:2])


@triton.jit
def _rank_of(score):
    """The rank of a score among all float32 numbers, from 0, uint32."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # -0.0 is 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _histogram(
    scores, probs, lowest, sums, V, P,
    SHIFT: tl.constexpr, BITS: tl.constexpr, IS_FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rank = _rank_of(tl.load(scores + row * V + token, token < V, 0.0))
    mass = tl.load(probs + row * V + token, token < V, 0.0)
    if not IS_FIRST:  # only scores whose higher digits are those of the threshold
        begin = tl.load(lowest + row).to(tl.uint32)
        mass = tl.where((rank >> (SHIFT + BITS)) == (begin >> (SHIFT + BITS)), mass, 0.0)
    digit = tl.arange(0, 1 << BITS)
    is_digit = ((rank >> SHIFT) & ((1 << BITS) - 1)).to(tl.int32)[:, None] == digit
    part = (row * P + tl.program_id(1)) << BITS
    tl.store(sums + part + digit, tl.sum(tl.where(is_digit, mass[:, None], 0.0), 0))


@triton.jit
def _narrow(
    sums, lowest, above, limit, kept, P,
    TOP_P: tl.constexpr, SHIFT: tl.constexpr, BITS: tl.constexpr, IS_FIRST: tl.constexpr,
    PAD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part, digit = tl.arange(0, PAD)[:, None], tl.arange(0, 1 << BITS)
    parts = tl.load(sums + ((row * P + part) << BITS) + digit, part < P, 0.0)
    mass = tl.sum(parts.to(tl.float64), 0)
    before = tl.sum(mass, 0) - tl.cumsum(mass, 0)
    if IS_FIRST:
        most = tl.sum(mass, 0) * TOP_P  # the sum is 1 except for rounding in float32
        begin = tl.zeros([], tl.int64)
        tl.store(limit + row, most)
    else:
        before += tl.load(above + row)
        most = tl.load(limit + row)
        begin = tl.load(lowest + row)
    lowest_digit = tl.minimum(tl.sum((before >= most).to(tl.int32), 0), (1 << BITS) - 1)
    is_lowest = digit == lowest_digit
    ahead = tl.sum(tl.where(is_lowest, before, 0.0), 0)
    tl.store(lowest + row, begin + (lowest_digit.to(tl.int64) << SHIFT))
    tl.store(above + row, ahead)
    tl.store(kept + row, ahead + tl.sum(tl.where(is_lowest, mass, 0.0), 0))


@triton.jit
def _keep(scores, probs, lowest, kept, out, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rank = _rank_of(tl.load(scores + row * V + token, token < V, 0.0))
    stays = rank >= tl.load(lowest + row).to(tl.uint32)
    prob = tl.load(probs + row * V + token, token < V, 0.0) / tl.load(kept + row).to(tl.float32)
    tl.store(out + row * V + token, tl.where(stays, prob, 0.0), token < V)


@torch.library.custom_op("specbench::nucleus", mutates_args=())
def nucleus(scores_NV: Tensor, probs_NV: Tensor, top_p: float) -> Tensor:
    """`probs`, the softmax of float32 `scores`, cut to the nucleus and renormalized to sum 1."""
    N, V = scores_NV.shape
    scores_NV, probs_NV = scores_NV.contiguous(), probs_NV.contiguous()
    parts = triton.cdiv(V, _BLOCK)
    lowest_N = scores_NV.new_empty(N, dtype=torch.int64)
    above_N, limit_N, kept_N = (scores_NV.new_empty(N, dtype=torch.float64) for _ in range(3))
    sums_NPD = scores_NV.new_empty(N, parts, 1 << _BITS)
    for shift in _SHIFTS:
        digit = {"SHIFT": shift, "BITS": _BITS, "IS_FIRST": shift == _SHIFTS[0]}
        _histogram[N, parts](
            scores_NV, probs_NV, lowest_N, sums_NPD, V, parts, BLOCK=_BLOCK, **digit, num_warps=8,
            **ARITHMETIC,
        )  # fmt: skip
        _narrow[N,](
            sums_NPD, lowest_N, above_N, limit_N, kept_N, parts, TOP_P=top_p,
            PAD=triton.next_power_of_2(parts), **digit, **ARITHMETIC,
        )  # fmt: skip
    out_NV = torch.empty_like(probs_NV)
    _keep[N, parts](scores_NV, probs_NV, lowest_N, kept_N, out_NV, V, BLOCK=_BLOCK, **ARITHMETIC)
    return out_NV


@nucleus.register_fake
def _(scores_NV: Tensor, probs_NV: Tensor, top_p: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(scores_NV)
