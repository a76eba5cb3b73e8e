"""Compares a server's outputs with speculation with those at K = 0; no torch.

It finds the first difference of two texts, the distance of two sets of outputs, and tests whether
both sets follow the same distribution. The distribution need not be known: if it is the same, two
outputs of one prompt are exchangeable, and the test compares its statistic with that of random
exchanges. Shape suffixes: P pairs of outputs, C cells, V tokens.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from scipy.stats import gamma, norm

from specbench.verify.evidence import Distance, Divergence, Floats, Output

MAX_CHARACTERS = 32  # compared per output if the server reports no tokens
SHOWN_CHARACTERS = 12  # of a difference
END = -1  # the token after the end of a text

Cell = tuple[int, ...]

_DEPTHS = (1, 2)  # single tokens, and pairs of neighbors


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedText:
    """One output of a server."""

    prompt: str  # names workload, prompt and turn
    ids: tuple[int, ...]  # empty if the server reports no tokens
    text: str
    num_prompt_tokens: int | None
    is_ended: bool  # by an end-of-text token, not by a limit

    @property
    def num_tokens(self) -> int:
        """The number of tokens, or of characters without tokens; at least 1, for an empty text."""
        return max(len(self.ids) or len(self.text), 1)


def first_divergence(expected: ServedText, actual: ServedText) -> Divergence | None:
    """The first difference in tokens, or in characters if a text has no tokens, without logits;
    None if the texts are equal."""
    prompt = actual.prompt
    if expected.ids and actual.ids:
        pairs = enumerate(zip_longest(expected.ids, actual.ids))
        return next(
            (
                Divergence(prompt_id=prompt, position=i, expected=a, found=b)
                for i, (a, b) in pairs
                if a != b
            ),
            None,
        )
    characters = enumerate(zip_longest(expected.text, actual.text))
    position = next((i for i, (a, b) in characters if a != b), None)
    if position is None:
        return None
    shown = slice(position, position + SHOWN_CHARACTERS)
    return Divergence(
        prompt_id=prompt,
        position=position,
        expected=expected.text[shown] or None,
        found=actual.text[shown] or None,
    )


def as_outputs(texts: Sequence[ServedText], *, has_ids: bool) -> tuple[Output, ...]:
    """The prompt of each text with its tokens, or with its first characters as tokens."""
    return tuple(
        (text.prompt, text.ids if has_ids else tuple(map(ord, text.text[:MAX_CHARACTERS])))
        for text in texts
    )


def have_ids(*sets: Sequence[ServedText]) -> bool:
    """Whether the server reported the tokens of all texts that are not empty."""
    return all(text.ids or not text.text for texts in sets for text in texts)


def between(outputs: Sequence[Output], baseline: Sequence[Output]) -> tuple[Distance, ...]:
    """The total variation between two sets of outputs, at each position."""
    distances = []
    for position in range(_longest(outputs, baseline)):
        by_prompt, of_baseline = _tokens_at(outputs, position), _tokens_at(baseline, position)
        total_variation = floor = num = 0.0
        for prompt in by_prompt.keys() & of_baseline.keys():
            a, b = by_prompt[prompt], of_baseline[prompt]
            n, m = a.total(), b.total()
            tokens = a.keys() | b.keys()
            a_V, b_V = (np.array([c[t] for t in tokens], dtype=np.float64) for c in (a, b))
            pooled_V = (a_V + b_V) / (n + m)
            spread_V = pooled_V * (1 - pooled_V) * (1 / n + 1 / m)
            total_variation += n * float(np.abs(a_V / n - b_V / m).sum()) / 2
            floor += n * float(np.sqrt(2 / np.pi * spread_V).sum()) / 2
            num += n
        if num:
            distances.append(
                Distance(
                    position=position, total_variation=total_variation / num, floor=floor / num
                )
            )
    return tuple(distances)


def _longest(outputs: Sequence[Output], baseline: Sequence[Output]) -> int:
    return max((len(tokens) for _, tokens in (*outputs, *baseline)), default=0)


def _tokens_at(outputs: Iterable[Output], position: int) -> dict[str, "Counter[int]"]:
    """Counts of the tokens at a position, by prompt; a text that ended there counts as END."""
    counts: dict[str, Counter[int]] = {}
    for prompt, tokens in outputs:
        if position <= len(tokens):
            token = tokens[position] if position < len(tokens) else END
            counts.setdefault(prompt, Counter())[token] += 1
    return counts


class _Pairs(NamedTuple):
    """Outputs of both sides for one prompt, all of the same length."""

    ours: Sequence[tuple[int, ...]]
    theirs: Sequence[tuple[int, ...]]

    def columns(self) -> Iterator[tuple[list[Cell], list[Cell]]]:
        """The cells of both sides at each position: single tokens, then pairs of neighbors."""
        length = len(self.ours[0])
        for depth in _DEPTHS:
            for end in range(depth, length + 1):
                ours, theirs = (
                    [row[end - depth : end] for row in side] for side in (self.ours, self.theirs)
                )
                yield ours, theirs


def two_sample_p_value(ours: Sequence[Output], theirs: Sequence[Output]) -> float:
    """Tests whether tokens occur as often on both sides.

    The statistic has two parts of equal variance. One is the chi-square of all tokens, and pairs of
    neighbors, at their positions. The other is the square of how much rarer one side's tokens are,
    as at a different temperature, by the log frequency of both sides together. Its distribution
    under random exchanges is approximated by Pearson's type III with the same three moments.
    Source: Mielke and Berry 2007, Permutation Methods.
    """
    total = variance = third = 0.0
    for pairs in _paired(ours, theirs):
        similarity_PP = np.zeros((len(pairs.ours), len(pairs.ours)))
        lead_P = np.zeros(len(pairs.ours))
        for ours_P, theirs_P in pairs.columns():
            excess_PC = _excess(ours_P, theirs_P)
            similarity_PP += excess_PC @ excess_PC.T
            if len(ours_P[0]) == 1:
                count = Counter([*ours_P, *theirs_P])
                cells = zip(ours_P, theirs_P, strict=True)
                lead_P += [math.log(count[a] / count[b]) for a, b in cells]
        rarity_PP = np.outer(lead_P, lead_P)
        for each_PP in (similarity_PP, rarity_PP):
            np.fill_diagonal(each_PP, 0.0)  # exchanging the sides of a pair does not change it
        if rarity_PP.any():
            similarity_PP += rarity_PP * (np.linalg.norm(similarity_PP) / np.linalg.norm(rarity_PP))
        total += similarity_PP.sum()
        variance += 2 * (similarity_PP**2).sum()
        third += 8 * ((similarity_PP @ similarity_PP) * similarity_PP).sum()
    if not variance:
        return 1.0
    z, skew = total / math.sqrt(variance), third / variance**1.5
    if skew < 1e-6:
        return float(norm.sf(z))
    shape = 4 / skew**2
    return float(gamma.sf(shape + 2 * z / skew, shape))


def _excess(ours_P: Sequence[Cell], theirs_P: Sequence[Cell]) -> Floats:
    """How much more often our output has a cell than theirs [P, C], in standard units.

    Cells that occur only once are omitted, because they add the same on either side.
    """
    count = Counter([*ours_P, *theirs_P])
    common = {cell: i for i, cell in enumerate(cell for cell, n in count.items() if n > 1)}
    excess_PC = np.zeros((len(ours_P), len(common)))
    for side, sign in ((ours_P, 1.0), (theirs_P, -1.0)):
        for i, cell in enumerate(side):
            if cell in common:
                excess_PC[i, common[cell]] += sign / math.sqrt(count[cell])
    return excess_PC


def _paired(ours: Sequence[Output], theirs: Sequence[Output]) -> Iterator[_Pairs]:
    """The same number of outputs of each prompt for both sides; short ones are padded with END."""
    length = _longest(ours, theirs)
    our_rows, their_rows = _padded(ours, length), _padded(theirs, length)
    for prompt, rows in our_rows.items():
        num = min(len(rows), len(their_rows.get(prompt, ())))
        if num and length:
            yield _Pairs(rows[:num], their_rows[prompt][:num])


def _padded(outputs: Sequence[Output], length: int) -> dict[str, list[tuple[int, ...]]]:
    rows: dict[str, list[tuple[int, ...]]] = {}
    for prompt, tokens in outputs:
        rows.setdefault(prompt, []).append(tokens + (END,) * (length - len(tokens)))
    return rows
