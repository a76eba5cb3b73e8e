"""The prompts of a file that are held in memory: all of them, or an even draw of very many."""

import heapq

from specbench.records import Prompt

MOST_CHARACTERS = 2**27  # of text; 30,000 long conversations, more than any run asks
_PROMPT_CHARACTERS = 2**10  # what a prompt and its messages take beside their text


class PromptSample:
    """Prompts come one by one; those with the lowest hashes stay, as many as there is room for.

    What stays depends on the prompts and not on their order: a file that is shuffled has the same
    sample.
    """

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self.num_left_out = 0
        self._most = most_characters
        self._held: list[tuple[int, int, Prompt]] = []  # the highest hash first
        self._num_added = self._size = 0

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Those held, in the order of the file."""
        return tuple(prompt for _, _, prompt in sorted(self._held, key=lambda one: one[1]))

    def add(self, prompt: Prompt, sha256: str) -> None:
        """Hold the prompt; `sha256`, of its id, decides between it and others."""
        self._num_added += 1
        heapq.heappush(self._held, (-int(sha256, 16), self._num_added, prompt))
        self._size += _size(prompt)
        while self._size > self._most and len(self._held) > 1:
            self._size -= _size(heapq.heappop(self._held)[-1])
            self.num_left_out += 1

    def note(self, file: str) -> str:
        """What a reader should know of a file that is not held as a whole."""
        return (
            f"{file}: {len(self._held):,} of {self._num_added:,} prompts are used, drawn evenly: "
            f"at most {self._most / 2**20:,.0f} MiB of text are held"
        )


def _size(prompt: Prompt) -> int:
    texts = [message.content for turn in prompt.turns for message in turn]
    return sum(map(len, texts)) + _PROMPT_CHARACTERS
