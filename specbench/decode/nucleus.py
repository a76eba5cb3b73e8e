"""Top-p by searching its threshold: sorting a vocabulary would take most of a round.

The order of float32 numbers is that of their bits, read as integers once negative ones are turned
round. Histograms of the probability mass over these bits, from the upper ones to the lower ones,
find the lowest score that stays: a few passes instead of a sort, of fixed shape and without a wait
for the host. On a GPU with Triton `forward/kernels/nucleus.py` does the same in fewer launches.

Shape suffixes: N distributions, V vocabulary; `...` any leading shape.
"""

import torch
from torch import Tensor

from specbench.forward.kernels.availability import DEVICES, TOP_P

if DEVICES:
    from specbench.forward.kernels import nucleus as in_parts

# Bits that a histogram distinguishes, by the least number of tokens: with more buckets than tokens,
# a further histogram is faster.
_BITS = ((1 << 15, 16), (1 << 7, 8), (0, 4))
_CACHED = 1 << 18  # numbers at once on a CPU, so that they stay in its cache


def likeliest(scores: Tensor, top_k: int, top_p: float) -> Tensor:
    """The softmax of float32 scores [..., V], cut to the `top_k` likeliest, then to their nucleus.

    Tokens of equal score stay or go together at either cut. `top_k` is below V; torch sorts those
    few tokens, so no threshold is searched.
    """
    best = scores.topk(top_k, dim=-1)
    scores = scores.masked_fill(scores < best.values[..., -1:], -torch.inf)
    if top_p < 1:
        mass = scores.softmax(-1).gather(-1, best.indices).double()
        is_past = mass.cumsum(-1) - mass >= top_p
        lowest = best.values.masked_fill(is_past, torch.inf).amin(-1, keepdim=True)
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    return scores.softmax(-1)


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """The softmax of float32 scores [..., V], cut to its nucleus, with sum 1.

    A token stays while all likelier ones together have less than `top_p`, so that the fewest
    likeliest tokens which reach it stay. Tokens of equal score stay or go together, and by sorting
    it would hang on the sort which of them stay. Source: Holtzman et al. 2020 (arXiv:1904.09751).
    """
    rows_NV = scores.flatten(0, -2) if scores.dim() > 1 else scores[None]
    if TOP_P.is_on(scores, scores.shape[-1]):
        kept_NV: Tensor = in_parts.nucleus(rows_NV, rows_NV.softmax(-1), top_p)
        return kept_NV.view_as(scores)
    num_bits = next(bits for tokens, bits in _BITS if scores.shape[-1] >= tokens)
    num_rows = max(len(rows_NV), 1)
    if scores.device.type == "cpu":
        num_rows = max(_CACHED // max(scores.shape[-1], 1 << num_bits), 1)
    kept = [_cut(part, top_p, num_bits) for part in torch.split(rows_NV, num_rows)]
    return torch.cat(kept).view_as(scores)


def _cut(scores_NV: Tensor, top_p: float, num_bits: int) -> Tensor:
    probs_NV = scores_NV.softmax(-1)
    mass_NV = probs_NV.double()
    limit_N1 = top_p * mass_NV.sum(-1, keepdim=True)  # 1, but for what float32 rounds away
    rank_NV = _rank(scores_NV)
    lowest_N1 = torch.zeros_like(rank_NV[:, :1])
    for shift in range(32 - num_bits, -1, -num_bits):
        # Bucket 0 has what is below, the last one what is above.
        buckets_NV = (rank_NV >> shift).sub_((lowest_N1 >> shift) - 1)
        buckets_NV.clamp_(0, (1 << num_bits) + 1)
        bucket_N1 = _lowest_that_stays(buckets_NV, mass_NV, limit_N1, (1 << num_bits) + 2)
        lowest_N1 = lowest_N1 + ((bucket_N1 - 1) << shift)
    kept_NV = probs_NV * (rank_NV >= lowest_N1)
    return kept_NV / kept_NV.sum(-1, keepdim=True)


def _rank(scores_NV: Tensor) -> Tensor:
    """The place of each score among all float32 numbers, from 0 on, int64."""
    bits_NV = (scores_NV + 0.0).view(torch.int32)  # -0.0 is 0.0
    return (bits_NV ^ ((bits_NV >> 31) & 0x7FFFFFFF)).long() + (1 << 31)


def _lowest_that_stays(
    buckets_NV: Tensor, mass_NV: Tensor, limit_N1: Tensor, num_buckets: int
) -> Tensor:
    """The lowest bucket [N, 1] above which there is less mass than the limit."""
    sums = mass_NV.new_zeros(len(mass_NV), num_buckets).scatter_add_(-1, buckets_NV, mass_NV)
    above = sums.flip(-1).cumsum(-1).flip(-1) - sums
    return (above >= limit_N1).sum(-1, keepdim=True)
