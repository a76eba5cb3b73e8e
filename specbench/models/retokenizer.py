"""Converts a model's growing text to the tokens of another model.

A text is encoded word by word, so that new text changes only the tokens of the last word, and a
row's tokens depend only on its text.
"""

import re
from collections.abc import Iterator, Sequence

from specbench.errors import CompatibilityError
from specbench.files.tokenizer import (
    NOTHING_IN_COMMON,
    Overlap,
    Vocabulary,
    common_tokens,
)
from specbench.models.tokenizer import ChatTokenizer

MOST_WORDS = 1 << 16  # in the cache
LONGEST_WORD = 64  # tokens; texts without spaces are split at this length
_WORDS = re.compile(rb"(?<=\S)(?=\s)")
_RUNS = re.compile("[\udc80-\udcff]+|[^\udc80-\udcff]+")


class Encoder:
    """Encodes bytes with the tokens of one vocabulary."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts = tokenizer.vocabulary.texts()
        self._bytes = {text[0]: i for i, text in self._texts.items() if len(text) == 1}
        self._words: dict[bytes, tuple[int, ...]] = {}

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text, word by word."""
        return [i for word in _WORDS.split(text) for i in self.encode_word(word)]

    def encode_word(self, word: bytes) -> tuple[int, ...]:
        """The tokenizer's ids of a word; bytes of an incomplete character become one id each."""
        ids = self._words.get(word)
        if ids is None:
            if len(self._words) >= MOST_WORDS:
                self._words.clear()
            ids = self._words[word] = tuple(self._encode(word))
        return ids

    def text(self, ids: Sequence[int]) -> bytes:
        """The bytes of these tokens; special tokens have none."""
        return b"".join(self._texts.get(i, b"") for i in ids)

    def _encode(self, word: bytes) -> Iterator[int]:
        for run in _RUNS.findall(word.decode("utf-8", "surrogateescape")):
            data = run.encode("utf-8", "surrogateescape")
            if "\udc80" <= run[0] <= "\udcff":
                yield from (self._bytes[byte] for byte in data if byte in self._bytes)
                continue
            ids = self._tokenizer.ids(run)
            if run[0] == " " and self.text(ids) == b" " + data:  # it adds another space
                ids = self._tokenizer.ids(run[1:])
            yield from ids


class RetokenizedText:
    """A growing text, converted from the tokens of its model to those of another."""

    def __init__(self, retokenizer: "Retokenizer") -> None:
        self._retokenizer = retokenizer
        self.num_read = 0
        self.word = b""  # the last word, which may continue
        self._num_in_word = 0
        self._closed: list[int] = []  # converted tokens before the last word

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        retokenizer = self._retokenizer
        for token in tokens:
            if token in retokenizer.source_specials:
                self._close()
                self._closed += retokenizer.specials.get(token, ())
                continue
            text = retokenizer.source_texts.get(token, b"")
            begins = text[:1].isspace() and not self.word[-1:].isspace()
            if begins or self._num_in_word == LONGEST_WORD:
                self._close()
            self.word += text
            self._num_in_word += 1
        self.num_read += len(tokens)

    @property
    def ids(self) -> list[int]:
        """The whole text in the tokens of the other model, with the prefix that it expects."""
        prefix = self._retokenizer.prefix
        ids = [*self._closed, *self._retokenizer.encoder.encode_word(self.word)]
        return ids if tuple(ids[: len(prefix)]) == prefix else [*prefix, *ids]

    def _close(self) -> None:
        self._closed += self._retokenizer.encoder.encode_word(self.word)
        self.word, self._num_in_word = b"", 0


class Retokenizer:
    """Converts tokens of `source` to those of `destination`, special ones by name or to nothing."""

    def __init__(self, source: ChatTokenizer, destination: ChatTokenizer) -> None:
        self.encoder = Encoder(destination)
        self.prefix = destination.prefix_ids
        self.source_texts = source.vocabulary.texts()
        names = destination.vocabulary.specials()
        source_ids = source.vocabulary.specials()
        self.source_specials = frozenset(source_ids.values())
        self.specials = {i: (names[name],) for name, i in source_ids.items() if name in names}

    def read(self) -> RetokenizedText:
        """An empty text."""
        return RetokenizedText(self)


def require_common_tokens(target: Vocabulary, draft: Vocabulary) -> Overlap:
    """The common tokens; CompatibilityError if there are none, or their texts are unknown."""
    common = common_tokens(target, draft)
    if not common.draft_ids:
        raise CompatibilityError(NOTHING_IN_COMMON)
    return common
