"""Two tokenizers for models of made-up weights: 60% of their tokens are in common.

Common tokens are single characters, a space among them, in another order; the others are pairs
of these, which the two sides pair differently.
"""

from typing import NamedTuple

from specbench.files.tokenizer import Vocabulary

_FIRST = 0x4E00  # enough characters for any vocabulary, each of several bytes


class MadeUpTokenizer(NamedTuple):
    """Encodes by the longest token that fits, and leaves out what no token has."""

    vocabulary: Vocabulary
    prefix_ids: tuple[int, ...] = ()

    def ids(self, text: str) -> tuple[int, ...]:
        known, found, place = self.vocabulary.ids_by_token, [], 0
        while place < len(text):
            size = next((n for n in (2, 1) if text[place : place + n] in known), 0)
            if size:
                found.append(known[text[place : place + size]])
            place += max(size, 1)
        return tuple(found)


def made_up_tokenizers(
    num_ids: int, num_draft_ids: int | None = None
) -> tuple[MadeUpTokenizer, MadeUpTokenizer]:
    """A target's and a draft's, of so many tokens; ids beyond are padding."""
    of_draft = num_draft_ids or num_ids
    num_common = max(round(0.6 * min(num_ids, of_draft)), 1)
    single = [" ", *(chr(_FIRST + i) for i in range(num_common - 1))]
    after = [*single[1:], single[0]]
    ours = [one + two for one, two in zip(single, after, strict=True)]
    theirs = [two + one for one, two in zip(single, after, strict=True)]
    target = [*single, *ours[: num_ids - num_common]]
    draft = [*theirs[: of_draft - num_common], *reversed(single)]
    return _tokenizer(target), _tokenizer(draft)


def _tokenizer(tokens: list[str]) -> MadeUpTokenizer:
    ids = {token: i for i, token in enumerate(tokens)}
    return MadeUpTokenizer(Vocabulary(ids, frozenset(), "pieces"))
