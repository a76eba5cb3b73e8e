"""Earlier answers in one suffix tree: first in, first out."""

from collections.abc import Iterable, Sequence

from specbench.drafters.shared.suffix_tree import SuffixTree

PromptIds = tuple[int, ...]


class AnswerCache:
    """Up to `max_answers` answers, one a prompt.

    An answer never helps to answer its own prompt again: a benchmark asks a prompt many times,
    and would measure how well answers are remembered.
    """

    def __init__(self, max_answers: int, max_depth: int) -> None:
        self.tree = SuffixTree(max_depth)
        self._max_answers = max_answers
        self._texts: dict[PromptIds, list[int]] = {}  # the oldest first

    def add(
        self, prompt: PromptIds, answer: Sequence[int], being_answered: Iterable[PromptIds]
    ) -> None:
        """Keep an answer, unless one of the other prompts is its own or led to it."""
        if not self._max_answers or not answer:
            return
        if any(_leads_to(other, prompt) for other in being_answered):
            return
        self._drop(prompt)
        if len(self._texts) == self._max_answers:
            self._drop(next(iter(self._texts)))
        self._texts[prompt] = self.tree.add(answer)

    def forget(self, prompt: PromptIds) -> None:
        """Drop the answers to a prompt that is asked again, and to later turns of it."""
        for known in [known for known in self._texts if _leads_to(prompt, known)]:
            self._drop(known)

    def _drop(self, prompt: PromptIds) -> None:
        text = self._texts.pop(prompt, None)
        if text is not None:
            self.tree.remove(text)


def _leads_to(prompt: PromptIds, later: PromptIds) -> bool:
    """Whether the later one is the prompt itself or goes on from it."""
    return later[: len(prompt)] == prompt
