"""Why speculation pays as much as it does, in the terms of its round's cost.

A round costs B = K c + v + h baseline steps and emits AL tokens, so that the speed-up is AL / B
and log(K + 1) - log(speed-up) = log((K + 1) / AL) + log(B): what is lost to rejected
drafts, and what a round costs above one step. The latter is shared out over its parts.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from specbench.methods import METHODS
from specbench.metrics.registry import number_of
from specbench.records import CellSummary
from specbench.stats.break_even import break_even_acceptance

Bound = Literal["draft", "verify", "acceptance", "overhead"]

MISMATCHED = 0.5  # the first draft is accepted less often
TOO_SMALL = 0.3  # of a target's step for one drafted token, and K = 1 must be accepted so often


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """log(K + 1) - log(speed-up), by what is to blame; the largest one bounds the cell."""

    draft: float
    verify: float
    acceptance: float
    overhead: float

    @property
    def bound(self) -> Bound:
        """What would help most if it were for nothing."""
        parts: dict[Bound, float] = {
            "draft": self.draft,
            "verify": self.verify,
            "acceptance": self.acceptance,
            "overhead": self.overhead,
        }
        return max(parts, key=lambda name: parts[name])


def losses(metrics: Mapping[str, float | tuple[float, ...]], k: int) -> Losses | None:
    """Where the K + 1 times of a perfect draft go; None where a cell does not tell.

    Overhead is what overhead_ratio says of the whole round, else what is neither drafting nor
    verifying. A verification cheaper than a step counts as nothing lost.
    """
    length, break_even = number_of(metrics, "mean_acceptance_length"), _break_even(metrics)
    draft, verify = number_of(metrics, "draft_cost_ratio"), number_of(metrics, "verify_cost_ratio")
    if length is None or break_even is None or draft is None or verify is None or k < 1:
        return None
    ratio = number_of(metrics, "overhead_ratio")
    if ratio is None:
        drafting, verifying = k * draft, verify
    else:
        forwards = break_even / max(ratio, 1.0) / (k * draft + verify)
        drafting, verifying = forwards * k * draft, forwards * verify
    parts = {
        "draft": drafting,
        "verify": max(verifying - 1, 0.0),
        "overhead": max(break_even - drafting - verifying, 0.0),
    }
    total, above = sum(parts.values()), math.log(max(break_even, 1.0))
    shares = {name: above * part / total if total else 0.0 for name, part in parts.items()}
    return Losses(acceptance=math.log((k + 1) / length), **shares)


def why(cell: CellSummary, *, is_synthetic: bool = False) -> Iterator[str]:
    """Short sentences: what bounds the cell, what would break even, what is amiss.

    `is_synthetic`: acceptance or weights were made up, so how the models match is not known.
    """
    k, metrics = cell.key.draft.k, cell.metrics
    lost, break_even = losses(metrics, k), _break_even(metrics)
    if lost is not None and not cell.key.draft.is_adaptive:
        yield _BOUND[lost.bound]
    if break_even is not None and not cell.key.draft.is_adaptive:
        needed, alpha = break_even_acceptance(k, break_even), number_of(metrics, "alpha")
        if needed is None:
            yield (
                f"a round costs {break_even:.2f} steps: K={k} loses even if every draft is accepted"
            )
        elif alpha is not None:
            yield f"breaks even if {needed:.0%} of tested drafts are accepted; {alpha:.0%} were"
    states, verify = (
        number_of(metrics, "state_bytes_per_row"),
        number_of(metrics, "verify_cost_ratio"),
    )
    if states:
        checking = "" if verify is None else f": checking K + 1 tokens costs {verify:.2f} steps"
        yield (
            f"recurrent layers step token by token and keep {states / 2**20:,.1f} MiB of states "
            f"per row, so that drafts can be rolled back{checking}"
        )
    first = metrics.get("acceptance_rate_per_position")
    shows_match = _shows_match(cell) and not is_synthetic
    if isinstance(first, tuple) and first and first[0] < MISMATCHED and shows_match:
        yield f"the draft is mismatched: its first token is accepted {first[0]:.0%} of the time"
    cost = number_of(metrics, "draft_cost_ratio")
    method = METHODS.get(cell.key.draft.method)
    has_model = method is not None and method.model != "refused" and not method.is_head
    if cost is not None and cost > TOO_SMALL and has_model:
        yield (
            "the target is too small for a separate draft model of this size: a drafted token "
            f"costs {cost:.2f} of its steps; a smaller draft, a head or n-grams cost less"
        )


_BOUND: Mapping[Bound, str] = {
    "draft": "draft-bound: drafting time dominates; a cheaper draft would help",
    "verify": (
        "verify-bound: verifying K + 1 tokens costs more than a step, which dominates the loss"
    ),
    "acceptance": "acceptance-bound: rejected drafts dominate the loss",
    "overhead": "overhead-bound: time between forwards dominates; on a GPU graphs may help",
}


def _shows_match(cell: CellSummary) -> bool:
    """Whether a perfect drafter would be accepted: above temperature 0 one that draws its drafts.

    Others are accepted with the target's own p, which is low where the text is open.
    """
    method = METHODS.get(cell.key.draft.method)
    if method is None or method.model == "refused":
        return False
    return cell.key.condition.temperature == 0 or method.draws_with({})


def _break_even(metrics: Mapping[str, float | tuple[float, ...]]) -> float | None:
    return number_of(metrics, "break_even_length")
