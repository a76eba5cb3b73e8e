"""How the target picks its tokens, and noise that is a pure function of their position.

Shape suffixes: B rows, T positions, N distributions, V vocabulary; `...` any leading shape.

A round holds no generator state: the noise of a draw is a hash of (request seed, position, purpose,
token id). A request's sampled text then does not depend on its row, on its neighbors or on the
order of arrival, and a captured graph replays it correctly.

Top-p searches its threshold, since sorting a vocabulary would take most of a round. The order of
float32 numbers is that of their bits, read as integers once negative ones are turned round.
Histograms of the probability mass over these bits, from the upper ones to the lower ones, find the
lowest score that stays: a few passes instead of a sort, of fixed shape and without a wait for the
host. On a GPU with Triton `forward/kernels/sampling.py` does the same in fewer launches.
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
    """Scramble 32-bit values held in int64, a bijection.

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
    """Uniform numbers in (0, 1], float32 [B, T]; different for each turn, 0 by default."""
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
    # Built from the small side of the unit interval, in which float32 resolves 2**-32: rare tokens
    # win by tiny exponentials, and those must not be rounded away.
    return -torch.log1p(-((bits.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24))


class Sampler:
    """Temperature, top-k and top-p, applied alike to the target and to a draft model."""

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
        """The distribution a token is drawn from, float32 [..., V]; one-hot at temperature 0."""
        if self.is_greedy:
            zeros = torch.zeros_like(logits, dtype=torch.float32)
            return zeros.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        # In float32, as transformers' own sampling does it.
        scores, top_p = logits.float() / self.sampling.temperature, self.sampling.top_p
        if 0 < self.sampling.top_k < scores.shape[-1]:
            return likeliest(scores, self.sampling.top_k, top_p)
        return nucleus(scores, top_p) if top_p < 1 else scores.softmax(-1)

    def pick(self, logits_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:
        """The target's own tokens [B, T] for the given positions of the sequence."""
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
        """A draft's tokens [B, T] for the given positions, drawn from its own distributions."""
        return draw(probs_BTV, seeds_B, positions_BT, Purpose.DRAFT)


def draw(weights_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor, purpose: Purpose) -> Tensor:
    """One token per position, with probability proportional to its weight; int64 [B, T].

    An exponential race: argmax of w / Exp(1), which needs neither a sort nor a host sync.
    """
    if DRAWS.is_on(weights_BTV, weights_BTV.shape[-1]):
        drawn_BT: Tensor = kernels.race(weights_BTV, seeds_B, positions_BT, purpose, None)
        return drawn_BT
    noise_BTV = exponential(seeds_B, positions_BT, purpose, weights_BTV.shape[-1])
    return (weights_BTV / noise_BTV).argmax(-1)


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
