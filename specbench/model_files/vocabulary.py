"""Which tokens the ids of a model stand for, and where a draft's stand for others."""

from collections.abc import Mapping
from typing import NamedTuple


class Vocabulary(NamedTuple):
    """A tokenizer's tokens. `special_ids` are those of control tokens, reserved ones included."""

    ids_by_token: Mapping[str, int]
    special_ids: frozenset[int]

    @property
    def num_ids(self) -> int:
        """One more than the highest id."""
        return max(self.ids_by_token.values(), default=-1) + 1


class Difference(NamedTuple):
    """Where two vocabularies differ; `wrong` has id, the target's token and the draft's.

    `renamed` are special in both: a draft of a reserved token is checked like any other, so
    they cannot change the text.
    """

    wrong: tuple[tuple[int, str | None, str | None], ...]
    renamed: tuple[int, ...]

    @property
    def shown(self) -> str:
        """The first of the wrong ones."""
        return ", ".join(f"{i}: {of!r} against {own!r}" for i, of, own in self.wrong[:3])


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> Difference:
    """Ids that stand for other tokens, or for one in one of the two only.

    Padding of an embedding beyond the tokenizer's ids is not compared.
    """
    if target.ids_by_token == draft.ids_by_token:
        return Difference((), ())
    targets = {i: token for token, i in target.ids_by_token.items()}
    drafts = {i: token for token, i in draft.ids_by_token.items()}
    ids = sorted(i for i in targets.keys() | drafts.keys() if targets.get(i) != drafts.get(i))
    special = target.special_ids & draft.special_ids
    return Difference(
        wrong=tuple((i, targets.get(i), drafts.get(i)) for i in ids if i not in special),
        renamed=tuple(i for i in ids if i in special),
    )
