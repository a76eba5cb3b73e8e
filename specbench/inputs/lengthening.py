"""Lengthens prompts with real text, to measure speed against context length.

The first user message grows from QUESTION to

    Earlier material:

    (text of other prompts)

    ---

    QUESTION
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, Self

from specbench.errors import UsageError, WorkloadError
from specbench.inputs.workloads import Workload, find_workloads, load_workload
from specbench.records import Prompt
from specbench.shipped import shipped

INTRODUCTION = "Earlier material:"
SEPARATOR = "---"

_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n|(?<=[\u3002\uff01\uff1f])")
_WORD = re.compile(r"\s+")
_WORD_REACH = 64  # characters on both sides within which the end of a word is searched
_CHARS_PER_TOKEN = 4.0  # of English, for the first guess only


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSource:
    """Workloads whose text lengthens prompts, in the order in which they are used up."""

    workloads: tuple[Workload, ...]
    seed: int

    @classmethod
    def starting_with(cls, workload: Workload, *, seed: int) -> Self:
        """The workload itself, then the other shipped ones, by name."""
        folder = shipped("workloads")
        known = (load_workload(name, folder=folder) for name in find_workloads(folder))
        added = (w for w in known if w.sha256 != workload.sha256)
        return cls(workloads=(workload, *added), seed=seed)

    def texts(self, prompt: Prompt) -> Iterator[str]:
        """An endless text of other prompts, without paragraphs of the prompt itself.

        Documents, questions and earlier outputs; no system messages. The prompts of a workload form
        a ring whose order depends on the seed and their ids, and each is followed by those after
        it, so two prompts of a workload begin with different text. After all texts the order
        changes and they repeat. WorkloadError without any text.
        """
        excluded = {part.strip() for part in _paragraphs(prompt)}
        for lap in count():
            texts = [
                "\n\n".join(part for part in _paragraphs(other) if part.strip() not in excluded)
                for workload in self.workloads
                for other in self._following_prompts(prompt, workload, lap)
            ]
            if not any(texts):
                raise WorkloadError(
                    f"prompt {prompt.id} cannot be lengthened: no other prompt has text"
                )
            yield from filter(None, texts)

    def _following_prompts(self, prompt: Prompt, workload: Workload, lap: int) -> list[Prompt]:
        def rank(item: Prompt) -> str:
            return hashlib.sha256(f"{self.seed}/{lap}/{item.id}".encode()).hexdigest()

        start = rank(prompt)
        return sorted(workload.prompts, key=lambda other: (rank(other) <= start, rank(other)))


def fewest_tokens(num_tokens: int) -> int:
    """The fewest tokens of a first turn that is lengthened to `num_tokens`: 98% of them."""
    return -(-98 * num_tokens // 100)


def lengthen(
    prompt: Prompt, num_tokens: int, source: TextSource, count_tokens: Callable[[Prompt], int]
) -> Prompt:
    """The prompt with a first turn of 98% to 100% of `num_tokens` tokens, never more.

    `count_tokens` returns the number of tokens of a first turn, chat template included; it is
    called few times, because each call tokenizes everything. The question stays whole and last; id,
    system messages, tools and later turns are unchanged. The text ends with a paragraph, else a
    sentence, else a word, and inside a word only if one is longer than the 2%. The prompt is
    returned unchanged if it is too long already, or would be with the words around the text, or if
    its first turn has no user message. UsageError below one token.
    """
    if num_tokens < 1:
        raise UsageError(f"a context of {num_tokens} tokens: at least 1 is needed")
    least = fewest_tokens(num_tokens)
    shortest = _Cut(chars=0, tokens=count_tokens(prompt))
    if all(message.role != "user" for message in prompt.turns[0]):
        return prompt

    texts = source.texts(prompt)
    text = ""
    result, fits, too_long = prompt, shortest, None
    attempts = 0
    while fits.tokens < least and (too_long is None or too_long.chars - fits.chars > 1):
        attempts += 1
        chars_per_token = _slope(shortest, fits, too_long)
        aim = fits.chars + int(((least + num_tokens) / 2 - fits.tokens) * chars_per_token)
        if too_long and attempts % 3 == 0:  # bounds the calls for uneven text
            aim = (fits.chars + too_long.chars) // 2
        slack = int((num_tokens - least) / 2 * chars_per_token)
        while len(text) <= aim + max(slack, _WORD_REACH):
            text += next(texts) + "\n\n"
        last = too_long.chars - 1 if too_long else len(text)
        chars = _end_near(text, aim, slack, fits.chars + 1, last)
        longer = _preceded(prompt, text[:chars])
        cut = _Cut(chars=chars, tokens=count_tokens(longer))
        if cut.tokens > num_tokens:
            too_long = cut
        else:
            result, fits = longer, cut
    return result


class _Cut(NamedTuple):
    """Tokens of the first turn with `chars` characters of text before it."""

    chars: int
    tokens: int


def _paragraphs(prompt: Prompt) -> list[str]:
    """Paragraphs of a prompt without its system messages, blank ones left out."""
    texts = [m.content for turn in prompt.turns for m in turn if m.role != "system"]
    return [part for text in texts for part in _PARAGRAPH.split(text) if part.strip()]


def _slope(shortest: _Cut, fits: _Cut, too_long: _Cut | None) -> float:
    """Characters per token, between the nearest two counts."""
    low, high = (fits, too_long) if too_long else (shortest, fits)
    if high.chars == 0:
        return _CHARS_PER_TOKEN
    return (high.chars - low.chars) / max(high.tokens - low.tokens, 1)


def _end_near(text: str, aim: int, slack: int, first: int, last: int) -> int:
    """Position of the cut within first..last: the best kind of end near `aim`, else `aim`."""
    aim = min(max(aim, first), last)
    for end, reach in ((_PARAGRAPH, slack), (_SENTENCE, slack), (_WORD, _WORD_REACH)):
        matches = end.finditer(text, max(first, aim - reach), min(last, aim + reach) + 1)
        if ends := [match.start() for match in matches if match.start() <= last]:
            return min(ends, key=lambda chars: abs(chars - aim))
    return aim


def _preceded(prompt: Prompt, text: str) -> Prompt:
    first, *later = prompt.turns
    index = next(i for i, message in enumerate(first) if message.role == "user")
    question = first[index].content
    content = "\n\n".join((INTRODUCTION, text, SEPARATOR, question))
    message = replace(first[index], content=content)
    return replace(prompt, turns=((*first[:index], message, *first[index + 1 :]), *later))
