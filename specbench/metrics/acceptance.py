"""Metrics of acceptance.

Per round: d = num_drafted, a = num_accepted, e = num_emitted; N = number of rounds, also those
in which nothing was drafted. Absent at K = 0.

There are two conventions. Here a stops at the end of the output, and every round counts. vLLM's
counters also have what the last round of an output accepts past EOS or max_tokens, and only rounds
that drafted: its 1 + accepted / drafts is never below ours. If every round drafts, its
(generation_tokens - requests) / num_drafts is sum(e) / N: our mean acceptance length of greedy
text, to the digit. Above temperature 0 the built-in decoder may accept a draft token that ends the
output: that round emits a tokens instead of a + 1.
"""

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Annotated

from specbench.doc import Doc
from specbench.metrics.cell import CellData, counted_by_server
from specbench.metrics.registry import metric
from specbench.records import RequestRecord
from specbench.stats.rounds import mean_length


@metric(unit="tokens/round", better="higher", low=1, label="accept. length")
def mean_acceptance_length(cell: CellData) -> float | None:
    """Mean acceptance length, tokens per round: 1 + sum(a) / N, pooled over all rounds; range 1 ..
    K+1.

    Also called tau. vLLM prints 1 + accepted / drafts, which counts past the end of answers.
    """
    return cell.acceptance.mean_acceptance_length if cell.acceptance else None


@metric(unit="tokens/round", better="higher", low=1)
def mean_acceptance_length_per_request(cell: CellData) -> float | None:
    """Mean over requests of 1 + sum(a) / N of each request; quoted only next to another metric."""
    if cell.acceptance is None:
        return None
    sums = [(sum(r.rounds.num_accepted), len(r.rounds)) for r in cell.finished if r.rounds]
    sums += [(r.counts.num_accepted, r.counts.num_rounds) for r in cell.finished if r.counts]
    lengths = [mean_length(accepted, rounds) for accepted, rounds in sums if rounds]
    return fmean(lengths) if lengths else None


@metric(unit="tokens/round", better="higher", low=1)
def mean_acceptance_length_when_drafted(cell: CellData) -> float | None:
    """1 + sum(a) / (rounds with d > 0): over the rounds that vLLM's server counts.

    In a run imported from vLLM it is by vLLM's convention, which counts past the end of outputs.
    """
    return cell.acceptance.mean_acceptance_length_when_drafted if cell.acceptance else None


@metric(unit="fraction", better="higher", low=0, high=1)
def acceptance_rate(cell: CellData) -> float | None:
    """sum(a) / sum(d): vLLM's draft acceptance rate, but not past the end of outputs.

    Drafts after the first rejection count as drafted, so it is lower than alpha. In a tree at
    most one node per level can be accepted: compare trees by mean_acceptance_length.
    """
    return cell.acceptance.acceptance_rate if cell.acceptance else None


@metric(unit="tokens/round", better=None)
def num_draft_nodes(cell: CellData) -> int | None:
    """max(d): the largest number of tokens drafted in a round; K in a chain, more in a tree.

    The size of a tree if a round drafted all of it. Nodes left out for the budget, or because a
    drafter knew too little, are not recorded: then the tree was larger.
    """
    rounds = cell.speculative_rounds
    return None if rounds is None else max(rounds.num_drafted)


@metric(unit="fraction", better="higher", low=0, high=1)
def acceptance_rate_per_position(cell: CellData) -> tuple[float, ...] | None:
    """#(a >= i) / N for i = 1 .. K: the joint rate; vLLM's is over the rounds that drafted."""
    return (cell.acceptance.acceptance_rate_per_position or None) if cell.acceptance else None


@metric(unit="fraction", better="higher", low=0, high=1)
def conditional_acceptance_rate(cell: CellData) -> tuple[float, ...] | None:
    """#(a >= i) / #(a >= i-1) for i = 1, 2 ..; ends before the first i that no round reached.

    Absent for an adaptive K and for p_min: rounds that draft fewer tokens could not have accepted
    more.
    """
    if cell.acceptance is None or cell.key.draft.stops_early:
        return None
    return cell.acceptance.conditional_acceptance_rate or None


@metric(unit="rounds", better=None)
def acceptance_histogram(cell: CellData) -> tuple[float, ...] | None:
    """Number of rounds with a = 0 .. K."""
    if (rounds := cell.speculative_rounds) is not None:
        return tuple(rounds.num_accepted.count(accepted) for accepted in range(cell.k + 1))
    if cell.acceptance is None or not cell.acceptance.reached:
        return None
    return tuple(at - more for at, more in pairwise((*cell.acceptance.reached, 0)))


@metric(unit="fraction", better="higher", low=0, high=1)
def alpha(cell: CellData) -> float | None:
    """sum(a) / (sum(a) + rounds with a < d and e > a): the chance that one draft token is accepted.

    Maximum-likelihood estimate under Leviathan et al. 2023 (arXiv:2211.17192), definition
    3.1, which stops drafting at the first rejection; not accepted / drafted. Absent for trees, in
    which a rejected token may have siblings.
    """
    counts = cell.acceptance
    if counts is None or not counts.num_drafted or (num_draft_nodes(cell) or 0) > cell.k:
        return None
    return counts.alpha


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmCounts:
    """A cell's counts under the names of vLLM's request metrics, for tools that read those."""

    num_spec_steps: Annotated[int, Doc("rounds", "rounds")]
    num_draft_tokens: Annotated[int, Doc("drafted tokens", "tokens")]
    num_accepted_draft_tokens: Annotated[
        int, Doc("of them accepted, without the bonus or recovered token", "tokens")
    ]
    acceptance_histogram: Annotated[
        tuple[int, ...], Doc("rounds with 0, 1 .. K accepted tokens", "rounds")
    ]
    num_spec_tokens: Annotated[int, Doc("K", "tokens/round")]
    mean_acceptance_length: Annotated[float, Doc("1 + accepted / rounds", "tokens/round", low=1)]
    draft_acceptance_rate: Annotated[
        float | None,
        Doc("accepted / drafted; absent if nothing was drafted", "fraction", low=0, high=1),
    ]


def vllm_counts(cell: CellData) -> VllmCounts | None:
    """The counts, summed over a cell; None at K = 0 and if the engine does not report rounds."""
    counts, length = cell.acceptance, mean_acceptance_length(cell)
    histogram = acceptance_histogram(cell)
    if counts is None or length is None or histogram is None:
        return None
    return VllmCounts(
        num_spec_steps=int(counts.num_rounds),
        num_draft_tokens=int(counts.num_drafted),
        num_accepted_draft_tokens=int(counts.num_accepted),
        acceptance_histogram=tuple(int(n) for n in histogram),
        num_spec_tokens=cell.k,
        mean_acceptance_length=length,
        draft_acceptance_rate=acceptance_rate(cell),
    )


@metric(unit="tokens", better=None)
def num_overshot(cell: CellData) -> int | None:
    """Drafts accepted past the ends of answers: the engine's own figures include them, ours do
    not.
    """
    counts = [request.counts for request in cell.finished if request.counts]
    return sum(c.num_overshot for c in counts) if counts else None


@metric(unit="tokens/round", better=None, low=1, label="engine's length")
def mean_acceptance_length_of_engine(cell: CellData) -> float | None:
    """Mean acceptance length as the engine counts it, past the ends of outputs: 1 + accepted /
    rounds that drafted.
    """
    if not cell.k:
        return None
    by_requests = _length_by_requests(cell.finished)
    counts = None if by_requests else counted_by_server(cell)
    return counts.mean_acceptance_length_when_drafted if counts else by_requests


def _length_by_requests(requests: tuple[RequestRecord, ...]) -> float | None:
    """The length by the counts of requests; None if one does not have the tokens that its last
    round accepted past the end.
    """
    accepted, rounds = 0, 0
    for request in requests:
        if request.counts is None or request.counts.num_drafting is None:
            return None
        accepted += request.counts.num_accepted + request.counts.num_overshot
        rounds += request.counts.num_drafting
    return mean_length(accepted, rounds) if rounds else None
