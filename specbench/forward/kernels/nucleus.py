"""Top-p by a search for its threshold: 16 launches, softmax included, instead of 48.

`decode/sampling.py` has the rule and the order of numbers. Here each histogram resolves 5 bits, and
the vocabulary is split over programs. Their sums are added in a fixed order, so that replays cut a
row in the same way. Shape suffixes: N distributions, V vocabulary, P parts of it, D digits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BITS = 5
_SHIFTS = range(30, -1, -_BITS)
LAUNCHES = 2 * len(_SHIFTS) + 1
_BLOCK = 1024


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
            scores_NV, probs_NV, lowest_N, sums_NPD, V, parts, BLOCK=_BLOCK, **digit, num_warps=8
        )
        _narrow[N,](
            sums_NPD, lowest_N, above_N, limit_N, kept_N, parts, TOP_P=top_p,
            PAD=triton.next_power_of_2(parts), **digit,
        )  # fmt: skip
    out_NV = torch.empty_like(probs_NV)
    _keep[N, parts](scores_NV, probs_NV, lowest_N, kept_N, out_NV, V, BLOCK=_BLOCK)
    return out_NV


@nucleus.register_fake
def _(scores_NV: Tensor, probs_NV: Tensor, top_p: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(scores_NV)
