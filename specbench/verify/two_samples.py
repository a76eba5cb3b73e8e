"""Do two engines answer alike? Tests two sets of answers against each other; no torch.

What they were drawn from may stay unknown: if it is the same, two answers to one prompt can change
sides, and every statistic below is held to what it is when they do at random.
Shape suffixes: P pairs of answers, L positions, C cells.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import gamma, norm

from specbench.verify.evidence import Answer, Floats
from specbench.verify.tally import END

Cell = tuple[int, ...]

_DEPTHS = (1, 2)  # a token by itself, and with the one before it


class _Pairs(NamedTuple):
    """Answers of both sides to one prompt, all of one length."""

    ours: Sequence[tuple[int, ...]]
    theirs: Sequence[tuple[int, ...]]

    def columns(self) -> Iterator[tuple[list[Cell], list[Cell]]]:
        """What each answer has at one position; at the next; then with the token before it."""
        length = len(self.ours[0])
        for depth in _DEPTHS:
            for end in range(depth, length + 1):
                ours, theirs = (
                    [row[end - depth : end] for row in side] for side in (self.ours, self.theirs)
                )
                yield ours, theirs


def rarity_p_value(ours: Sequence[Answer], theirs: Sequence[Answer]) -> float:
    """Does one side take rare tokens more often, as at another temperature?

    The sum over pairs of how much more usual our tokens are, by the logarithm of how often both
    sides together have them. Safe for any number of answers: by Hoeffding's inequality for sums of
    numbers whose signs are drawn at random. Source: Hoeffding 1963, theorem 2.
    """
    total = squares = 0.0
    for pairs in _paired(ours, theirs):
        lead_P = np.zeros(len(pairs.ours))
        for mine, others in pairs.columns():
            if len(mine[0]) == 1:
                often = Counter([*mine, *others])
                lead_P += [math.log(often[a] / often[b]) for a, b in zip(mine, others, strict=True)]
        total += lead_P.sum()
        squares += float(lead_P @ lead_P)
    return min(1.0, 2 * math.exp(-(total**2) / (2 * squares))) if squares else 1.0


def frequency_p_value(ours: Sequence[Answer], theirs: Sequence[Answer]) -> float:
    """Does one side have some token, or some pair of neighbours, more often at some position?

    The chi-square of all of these together. Its distribution when pairs change sides at random is
    taken to be of Pearson's type III with the three moments it has. Source: Mielke and Berry
    2007, Permutation Methods.
    """
    total = variance = third = 0.0
    for pairs in _paired(ours, theirs):
        likeness_PP = np.zeros((len(pairs.ours), len(pairs.ours)))
        for mine, others in pairs.columns():
            apart_PC = _apart(mine, others)
            likeness_PP += apart_PC @ apart_PC.T
        np.fill_diagonal(likeness_PP, 0.0)  # the same whoever is on which side
        total += likeness_PP.sum()
        variance += 2 * (likeness_PP**2).sum()
        third += 8 * ((likeness_PP @ likeness_PP) * likeness_PP).sum()
    if not variance:
        return 1.0
    z, skew = total / math.sqrt(variance), third / variance**1.5
    if skew < 1e-6:
        return float(norm.sf(z))
    shape = 4 / skew**2
    return float(gamma.sf(shape + 2 * z / skew, shape))


def _apart(mine: Sequence[Cell], others: Sequence[Cell]) -> Floats:
    """By how much our answer has a cell more than theirs [P, C], in units of what chance does.

    A cell that came once is left out: it adds the same whoever has it.
    """
    often = Counter([*mine, *others])
    common = {cell: i for i, cell in enumerate(cell for cell, n in often.items() if n > 1)}
    apart_PC = np.zeros((len(mine), len(common)))
    for side, sign in ((mine, 1.0), (others, -1.0)):
        for i, cell in enumerate(side):
            if cell in common:
                apart_PC[i, common[cell]] += sign / math.sqrt(often[cell])
    return apart_PC


def _paired(ours: Sequence[Answer], theirs: Sequence[Answer]) -> Iterator[_Pairs]:
    """Prompt by prompt, as many answers of either side as both have; END fills up short ones."""
    length = max((len(text) for _, text in (*ours, *theirs)), default=0)
    mine, others = _by_prompt(ours, length), _by_prompt(theirs, length)
    for prompt, rows in mine.items():
        num = min(len(rows), len(others.get(prompt, ())))
        if num and length:
            yield _Pairs(rows[:num], others[prompt][:num])


def _by_prompt(answers: Sequence[Answer], length: int) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for prompt, text in answers:
        found.setdefault(prompt, []).append(text + (END,) * (length - len(text)))
    return found
