"""Samples tokens, with noise that is a pure function of their position.

Shape suffixes: B rows, T positions, N distributions, V vocabulary; `...` any leading shape.

A round has no generator state: the noise of a draw is a hash of (request seed, position, purpose,
token id). So a request's sampled text does not depend on its row, on other rows or on the order of
arrival, and a captured graph replays it correctly.

Top-p searches for its threshold, since sorting a vocabulary would take most of a round. Float32
numbers have the order of their bits read as integers, if those of negative numbers are flipped.
Histograms of the probability mass over these bits, from the upper bits to the lower ones, find the
lowest score that is kept: a few passes of fixed shape instead of a sort, without a host sync. On a
GPU with Triton, `forward/kernels/sampling.py` does the same in fewer launches.
"""

from enum import IntEnum

import torch
from torch import Tensor

from specbench.errors import UsageError
from specbench.forward.kernels.availability import DEVICES, DRAWS, TOP_P
from specbench.records import Sampling

if DEVICES:
    from specbench.forward.kernels import sampling as kernels

_MASK32 = 0xFFFFFFFF


class Purpose(IntEnum):
    """The purpose of a draw; draws for different purposes are independent."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    SYNTHETIC = 3


def _mix32(x: Tensor) -> Tensor:
    """Scramble 32-bit values stored in int64; a bijection.

    Source: the `lowbias32` constants found by C. Wellons' hash prospector.
    """
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def _key(seeds_B: Tensor, positions_BT: Tensor, purpose: Tensor | int) -> Tensor:
    """One 32-bit key per draw [B, T]."""
    seed_B = _mix32(_mix32(seeds_B & _MASK32) ^ ((seeds_B >> 32) & _MASK32))
    return _mix32(_mix32(seed_B[:, None] ^ (positions_BT & _MASK32)) + purpose & _MASK32)


def uniform(
    seeds_B: Tensor, positions_BT: Tensor, purpose: Purpose, turns_T: Tensor | None = None
) -> Tensor:
    """Uniform numbers in (0, 1], float32 [B, T]; each turn (0 by default) has different ones."""
    if DRAWS.is_on(seeds_B):
        drawn_BT: Tensor = kernels.uniform(seeds_B, positions_BT, purpose, turns_T, len(Purpose))
        return drawn_BT
    own_T = purpose if turns_T is None else turns_T * len(Purpose) + purpose
    key_BT = _key(seeds_B, positions_BT, own_T)
    return (key_BT.float() + 0.5) * 2.0**-32


def exponential(seeds_B: Tensor, positions_BT: Tensor, purpose: Purpose, num_tokens: int) -> Tensor:
    """Exponential(1) noise for every token of every draw, float32 [B, T, V], above 0."""
    if DRAWS.is_on(seeds_B, num_tokens):
        drawn_BTV: Tensor = kernels.exponential(seeds_B, positions_BT, purpose, num_tokens)
        return drawn_BTV
    tokens_V = _mix32(torch.arange(num_tokens, device=seeds_B.device) * 2 + 1)
    bits = _mix32(_key(seeds_B, positions_BT, purpose)[..., None] ^ tokens_V)
    # Computed from the small end of the unit interval, because float32 resolves 2**-32 there:
    # rare tokens win with tiny exponentials, which must not be rounded away.
    return -torch.log1p(-((bits.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24))


class Sampler:
    """Temperature, top-k and top-p, the same for the target and for a draft model."""

    def __init__(self, sampling: Sampling) -> None:
        if sampling.temperature < 0 or sampling.top_k < 0 or not 0 < sampling.top_p <= 1:
            raise UsageError(
                f"sampling: {sampling}; temperature and top_k are 0 or more, top_p is in (0, 1]"
            )
        self.sampling = sampling

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature == 0

    def probs(self, logits: Tensor) -> Tensor:
        """The distribution to sample from, float32 [..., V]; one-hot at temperature 0."""
        if self.is_greedy:
            zeros = torch.zeros_like(logits, dtype=torch.float32)
            return zeros.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        # In float32, as in transformers.
        scores, top_p = logits.float() / self.sampling.temperature, self.sampling.top_p
        if 0 < self.sampling.top_k < scores.shape[-1]:
            return likeliest(scores, self.sampling.top_k, top_p)
        return nucleus(scores, top_p) if top_p < 1 else scores.softmax(-1)

    def pick(self, logits_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:
        """Sample the target's tokens [B, T] for the given positions of the sequence."""
        if self.is_greedy:
            return logits_BTV.argmax(-1)
        is_cut = self.sampling.top_k > 0 or self.sampling.top_p < 1
        if DRAWS.is_on(logits_BTV, logits_BTV.shape[-1]) and not is_cut:
            own_BT: Tensor = kernels.race(
                logits_BTV, seeds_B, positions_BT, Purpose.TARGET, self.sampling.temperature
            )
            return own_BT
        return draw(self.probs(logits_BTV), seeds_B, positions_BT, Purpose.TARGET)

    def guess(self, probs_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:
        """Sample draft tokens [B, T] for the given positions from the draft's distributions."""
        return draw(probs_BTV, seeds_B, positions_BT, Purpose.DRAFT)


def draw(weights_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor, purpose: Purpose) -> Tensor:
    """Draw one token per position, with probability proportional to its weight; int64 [B, T].

    It is an exponential race: the argmax of w / Exp(1), which needs no sort and no host sync.
    """
    if DRAWS.is_on(weights_BTV, weights_BTV.shape[-1]):
        drawn_BT: Tensor = kernels.race(weights_BTV, seeds_B, positions_BT, purpose, None)
        return drawn_BT
    noise_BTV = exponential(seeds_B, positions_BT, purpose, weights_BTV.shape[-1])
    return (weights_BTV / noise_BTV).argmax(-1)


# (Minimum number of tokens, bits per histogram). With more buckets than tokens, another histogram
# would be faster.
_BITS = ((1 << 15, 16), (1 << 7, 8), (0, 4))
_CACHED = 1 << 18  # numbers that a CPU processes together, so that they stay in its cache


def likeliest(scores: Tensor, top_k: int, top_p: float) -> Tensor:
    """The softmax of float32 scores [..., V], cut to the `top_k` likeliest, then to their nucleus.

    Both cuts keep or drop tokens with equal scores together. `top_k` is below V; torch sorts these
    few tokens instead of searching for a threshold.
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

    A token is kept if all likelier tokens together have less than `top_p`, so the nucleus is the
    smallest set of likeliest tokens that reaches it. Tokens with equal scores are kept or dropped
    together; after a sort, their order in it would decide. Source: Holtzman et al. 2020
    (arXiv:1904.09751).
    """
    rows_NV = scores.flatten(0, -2) if scores.dim() > 1 else scores[None]
    if TOP_P.is_on(scores, scores.shape[-1]):
        kept_NV: Tensor = kernels.nucleus(rows_NV, rows_NV.softmax(-1), top_p)
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
    limit_N1 = top_p * mass_NV.sum(-1, keepdim=True)  # the sum is 1 up to float32 rounding
    rank_NV = _rank(scores_NV)
    lowest_N1 = torch.zeros_like(rank_NV[:, :1])
    for shift in range(32 - num_bits, -1, -num_bits):
        # Bucket 0 has all lower scores, the last bucket all higher ones.
        buckets_NV = (rank_NV >> shift).sub_((lowest_N1 >> shift) - 1)
        buckets_NV.clamp_(0, (1 << num_bits) + 1)
        bucket_N1 = _lowest_that_stays(buckets_NV, mass_NV, limit_N1, (1 << num_bits) + 2)
        lowest_N1 = lowest_N1 + ((bucket_N1 - 1) << shift)
    kept_NV = probs_NV * (rank_NV >= lowest_N1)
    return kept_NV / kept_NV.sum(-1, keepdim=True)


def _rank(scores_NV: Tensor) -> Tensor:
    """The rank of each score among all float32 numbers, from 0 up, int64."""
    bits_NV = (scores_NV + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    return (bits_NV ^ ((bits_NV >> 31) & 0x7FFFFFFF)).long() + (1 << 31)


def _lowest_that_stays(
    buckets_NV: Tensor, mass_NV: Tensor, limit_N1: Tensor, num_buckets: int
) -> Tensor:
    """The lowest bucket [N, 1] with less mass above it than the limit."""
    sums = mass_NV.new_zeros(len(mass_NV), num_buckets).scatter_add_(-1, buckets_NV, mass_NV)
    above = sums.flip(-1).cumsum(-1).flip(-1) - sums
    return (above >= limit_N1).sum(-1, keepdim=True)
