"""Held-out acceptance: how far a head's greedy chains follow the target's own greedy answers.

Shape suffixes: D positions of a draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specbench.stats.rounds import mean_length_from_rates
from specbench.training.student import Student
from specbench.training.teacher import Batch, Teacher

DEPTH = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """`per_position[d]`: fraction of contexts whose first d + 1 drafts are all accepted.

    Drafts are the head's own, one after the other; contexts are all tokens of the answers that at
    least d + 1 more tokens follow. `ranks` of Medusa: how often each rank of each head is right.
    """

    per_position: tuple[float, ...]
    contexts: int
    ranks: tuple[tuple[float, ...], ...] = ()

    @property
    def mean_length(self) -> float:
        """Tokens per round of a chain: 1 + the sum over its positions."""
        return mean_length_from_rates(self.per_position)


def measure_acceptance(
    student: Student, teacher: Teacher, batches: Sequence[Batch], depth: int = DEPTH
) -> Acceptance:
    """The acceptance over all batches; every token has equal weight."""
    agreements = [student.agreement(teacher.lesson(batch), depth) for batch in batches]
    contexts_D = torch.stack([agreement.contexts_D for agreement in agreements]).sum(0)
    correct_D = torch.stack([agreement.correct_D for agreement in agreements]).sum(0)
    rates_D = correct_D / contexts_D.clamp(min=1)
    counts = [agreement.ranks for agreement in agreements if agreement.ranks is not None]
    ranks: tuple[tuple[float, ...], ...] = ()
    if counts:
        rates = torch.stack(counts).sum(0) / contexts_D.clamp(min=1)[:, None]
        ranks = tuple(tuple(round(rate, 4) for rate in head) for head in rates.tolist())
    return Acceptance(
        per_position=tuple(round(rate, 4) for rate in rates_D.tolist()),
        contexts=int(contexts_D[0]),
        ranks=ranks,
    )
