"""How much of what was drafted is kept.

Per round: d = num_drafted, a = num_accepted; N = number of rounds, also those in which
nothing was drafted. Absent at K = 0.
"""

from itertools import pairwise

from specbench.metrics.cell import CellData
from specbench.metrics.registry import metric
from specbench.records import RoundLog


@metric(unit="tokens/round", better="higher")
def mean_acceptance_length(cell: CellData) -> float | None:
    """1 + sum(a) / N, pooled over all rounds; range 1 .. K+1.

    Also called tau; the number that vLLM, SGLang, llama.cpp and TensorRT-LLM print.
    """
    rounds = cell.speculative_rounds
    return None if rounds is None else _length(rounds)


@metric(unit="tokens/round", better="higher")
def mean_acceptance_length_per_request(cell: CellData) -> float | None:
    """Mean over requests of 1 + sum(a) / N of each request; never quoted alone."""
    if cell.speculative_rounds is None:
        return None
    lengths = [_length(request.rounds) for request in cell.finished if request.rounds]
    return sum(lengths) / len(lengths)


@metric(unit="tokens/round", better="higher")
def mean_acceptance_length_when_drafted(cell: CellData) -> float | None:
    """1 + sum(a) / (rounds with d > 0): what vLLM's server counters give."""
    rounds = cell.speculative_rounds
    drafting = 0 if rounds is None else sum(d > 0 for d in rounds.num_drafted)
    if rounds is None or drafting == 0:
        return None
    return 1 + sum(rounds.num_accepted) / drafting


@metric(unit="fraction", better="higher")
def acceptance_rate(cell: CellData) -> float | None:
    """sum(a) / sum(d): vLLM's draft acceptance rate.

    Drafts after the first rejection count as drafted, so it is lower than alpha. Of a tree at
    most one node a level can be kept: compare trees by mean_acceptance_length.
    """
    rounds = cell.speculative_rounds
    if rounds is None or not any(rounds.num_drafted):
        return None
    return sum(rounds.num_accepted) / sum(rounds.num_drafted)


@metric(unit="tokens/round", better=None)
def num_draft_nodes(cell: CellData) -> int | None:
    """max(d): the largest number of tokens drafted in a round; K in a chain, more in a tree.

    A tree's size where a round drafted all of it. Records do not tell what is left out for the
    budget, or because a drafter knew too little: then the tree was larger.
    """
    rounds = cell.speculative_rounds
    return None if rounds is None else max(rounds.num_drafted)


@metric(unit="fraction", better="higher")
def acceptance_rate_per_position(cell: CellData) -> tuple[float, ...] | None:
    """#(a >= i) / N for i = 1 .. K: the joint rate, as vLLM gives it per position."""
    reached = _reached(cell)
    return None if reached is None else tuple(n / reached[0] for n in reached[1:])


@metric(unit="fraction", better="higher")
def conditional_acceptance_rate(cell: CellData) -> tuple[float, ...] | None:
    """#(a >= i) / #(a >= i-1) for i = 1, 2 ..; ends before the first i that no round reached.

    Absent for an adaptive K: rounds that draft fewer tokens could not have accepted more.
    """
    reached = _reached(cell)
    if reached is None or cell.key.adaptive:
        return None
    return tuple(here / before for before, here in pairwise(reached) if before)


@metric(unit="rounds", better=None)
def acceptance_histogram(cell: CellData) -> tuple[float, ...] | None:
    """Number of rounds with a = 0 .. K."""
    rounds = cell.speculative_rounds
    if rounds is None:
        return None
    return tuple(rounds.num_accepted.count(accepted) for accepted in range(cell.k + 1))


@metric(unit="fraction", better="higher")
def alpha(cell: CellData) -> float | None:
    """sum(a) / (sum(a) + rounds with a < d and e > a): the chance that one draft token is kept.

    Maximum-likelihood estimate under Leviathan et al. 2023 (arXiv:2211.17192), definition
    3.1, where drafting stops at the first rejection; not accepted / drafted. Absent for trees,
    where a rejected token may have siblings.
    """
    rounds = cell.speculative_rounds
    if rounds is None or not any(rounds.num_drafted) or max(rounds.num_drafted) > cell.k:
        return None
    accepted = sum(rounds.num_accepted)
    # A text that ends inside the drafts emits what was kept: none was rejected.
    counts = zip(rounds.num_accepted, rounds.num_drafted, rounds.num_emitted, strict=True)
    rejections = sum(a < d and e > a for a, d, e in counts)
    return accepted / (accepted + rejections) if accepted + rejections else None


def _length(rounds: RoundLog) -> float:
    return 1 + sum(rounds.num_accepted) / len(rounds)


def _reached(cell: CellData) -> tuple[int, ...] | None:
    """#(a >= i) for i = 0 .. K; the first entry is N."""
    rounds = cell.speculative_rounds
    if rounds is None:
        return None
    return tuple(sum(a >= i for a in rounds.num_accepted) for i in range(cell.k + 1))
