"""Seeded text from templates: `[a|b]` chooses, `{slot}` fills in, `a*` becomes a or an."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
Slots = Mapping[str, str | Sequence[str]]

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa])\* (\w)")
# A new sentence: the start, after a full stop, or after a quoted one. `?" she` continues one.
_SENTENCE = re.compile(r"(^[\"']?|[.!?]\s+[\"']?|[.][\"']\s+[\"']?)([a-z])", re.MULTILINE)


class Dice:
    """Random choices that depend only on the key, not on the Python version."""

    def __init__(self, *key: object) -> None:
        self._random = random.Random("/".join(str(part) for part in key))

    def below(self, n: int) -> int:
        """A whole number in 0..n-1."""
        return int(self._random.random() * n)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """`n` different items in random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(n)]


def fill(template: str, dice: Dice, slots: Slots) -> str:
    """The template with every choice made and every slot filled, from a list at random."""
    text = template
    while True:
        before = text
        text = _CHOICE.sub(lambda match: dice.pick(match[1].split("|")), text)
        text = _SLOT.sub(lambda match: _value(slots[match[1]], dice), text)
        if text == before:
            return _ARTICLE.sub(_article, text)


def prose(template: str, dice: Dice, slots: Slots) -> str:
    """`fill`, with a capital letter at the start of every sentence."""
    text = re.sub(r"  +", " ", fill(template, dice, slots)).strip()
    return _SENTENCE.sub(lambda match: match[1] + match[2].upper(), text)


def joined(items: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def _value(value: str | Sequence[str], dice: Dice) -> str:
    return value if isinstance(value, str) else dice.pick(value)


def _article(match: re.Match[str]) -> str:
    return f"{match[1]}{'n' if match[2].lower() in 'aeiou' else ''} {match[2]}"
