"""Rounds replayed over a text that is known: what every K would have drafted and accepted.

A text is the target's own whatever the drafts, so rounds are a walk along it: one that starts
after token s and accepts a drafts starts the next after token s + a + 1. At temperature 0 the text
decides every step, and the counts are those of a measured run. Above it each step has a chance,
and the walk is followed with all its chances at once (a renewal process, not independent
drafts), so the counts are exact expectations for this text and nothing is drawn.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.records import TraceRecord
from specbench.stats.acceptance import RoundCounts, joint_rates

Floats = NDArray[np.float64]


class _Steps(NamedTuple):
    """A trace cut to one K, by start s and number of drafts accepted a; S starts."""

    accepted_SA: Floats  # P(a round that starts at s accepts a)
    drafted_S: NDArray[np.int64]
    next_SA: NDArray[np.int64]  # the start that follows


def serves(trace: TraceRecord, k: int) -> bool:
    """Whether rounds at K = k can be replayed over it; K = 0 over any."""
    depth = trace.num_speculative_tokens
    return k in (0, depth) or (trace.is_chain and k < depth)


def replay_one(trace: TraceRecord, k: int) -> RoundCounts:
    """The rounds of one text at K = k."""
    steps = _steps(trace, k)
    starting_S = _starting(steps)
    rounds_SA = starting_S[:, None] * steps.accepted_SA
    num_accepted_A = np.arange(k + 1)
    histogram_A = rounds_SA.sum(0)
    num_accepted = float(histogram_A @ num_accepted_A)
    emitted_SA = steps.next_SA - np.arange(len(starting_S))[:, None]
    # A round that the text's end cut short emits what it accepted and rejects nothing.
    is_rejecting_SA = (num_accepted_A < steps.drafted_S[:, None]) & (emitted_SA > num_accepted_A)
    return RoundCounts(
        num_rounds=float(starting_S.sum()),
        num_drafted=float(starting_S @ steps.drafted_S),
        num_accepted=num_accepted,
        num_emitted=float((rounds_SA * emitted_SA).sum()),
        num_drafting=float(starting_S[steps.drafted_S > 0].sum()),
        num_rejecting=float(rounds_SA[is_rejecting_SA].sum()),
        reached=tuple(histogram_A[::-1].cumsum()[::-1].tolist()),
    )


def _steps(trace: TraceRecord, k: int) -> _Steps:
    num_starts = len(trace.num_drafted)
    accepted_SA = np.zeros((num_starts, k + 1))
    for start, chances in enumerate(trace.chances):
        accepted_SA[start, : k + 1] = _accepted(chances[:k], k)
    drafted = [min(drafted, k) if trace.is_chain else drafted for drafted in trace.num_drafted]
    drafted_S = np.array(drafted if k else [0] * num_starts, dtype=np.int64)
    starts_S1 = np.arange(num_starts)[:, None]
    # The text ends with its last token, also in the middle of what was accepted.
    next_SA = np.minimum(starts_S1 + 1 + np.arange(k + 1), num_starts)
    return _Steps(accepted_SA, drafted_S, next_SA)


def _accepted(chances: Sequence[float], k: int) -> list[float]:
    """P(a = 0 .. k): all before were accepted, and the next one was not."""
    reached = [1.0, *joint_rates(chances)]
    stopped = [here - after for here, after in pairwise([*reached, 0.0])]
    return [*stopped, *[0.0] * (k + 1 - len(stopped))]


def _starting(steps: _Steps) -> Floats:
    """Expected number of rounds, 0 to 1, that start at each place."""
    num_starts = len(steps.drafted_S)
    starting = np.zeros(num_starts + 1)  # the last place is the end of the text
    starting[0] = 1.0
    for start in range(num_starts):
        if starting[start]:
            np.add.at(starting, steps.next_SA[start], starting[start] * steps.accepted_SA[start])
    return starting[:-1]
