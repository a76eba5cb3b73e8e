"""What a server answered, and how two of its answers differ; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from specbench.verify.evidence import Answer, Divergence

ENOUGH = 32  # characters of an answer that are compared where there are no tokens
SHOWN = 12  # characters that are shown of a difference


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedText:
    """One answer of a server."""

    prompt: str  # names workload, prompt and turn
    ids: tuple[int, ...]  # empty where the server tells none
    text: str
    num_prompt_tokens: int | None
    is_ended: bool  # by the model, not by a limit

    @property
    def num_tokens(self) -> int:
        """Its tokens, or else its characters; at least one, which may be a mere end."""
        return max(len(self.ids) or len(self.text), 1)


def first_divergence(expected: ServedText, found: ServedText) -> Divergence | None:
    """In tokens, and in characters where one of them has no tokens; nothing is known of logits."""
    if expected.ids and found.ids:
        pairs = enumerate(zip_longest(expected.ids, found.ids))
        return next((_at(found.prompt, i, *two) for i, two in pairs if two[0] != two[1]), None)
    ours, theirs = expected.text, found.text
    differs = (i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)
    where = next(differs, None)
    if where is None:
        return None
    shown = slice(where, where + SHOWN)
    return _at(found.prompt, where, ours[shown] or None, theirs[shown] or None)


def _at(
    prompt: str, position: int, expected: int | str | None, found: int | str | None
) -> Divergence:
    return Divergence(
        prompt_id=prompt,
        position=position,
        expected=expected,
        found=found,
        gap=None,
        steps=None,
        tie_steps=None,
    )


def as_answers(texts: Sequence[ServedText], *, has_ids: bool) -> tuple[Answer, ...]:
    """Each with its prompt: its tokens, or its first characters."""
    return tuple(
        (one.prompt, one.ids if has_ids else tuple(map(ord, one.text[:ENOUGH]))) for one in texts
    )


def have_ids(*sets: Sequence[ServedText]) -> bool:
    """Whether all of these answers have tokens that a server told; a mere end has none."""
    return all(one.ids or not one.text for texts in sets for one in texts)
