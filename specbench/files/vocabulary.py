"""Which tokens the ids of a model stand for, and where a draft's stand for others."""

from collections.abc import Mapping
from typing import NamedTuple

from specbench.files.spelling import Spelling, text_of

_ANOTHER = "choose a draft of the same model family, or a method without a draft model (ngram)"
NOTHING_IN_COMMON = (
    "the two tokenizers have no token in common, or one does not tell the text of its tokens "
    f"(byte-level BPE and SentencePiece do); {_ANOTHER}"
)


class Vocabulary(NamedTuple):
    """A tokenizer's tokens, `special_ids` those of control tokens; `spelling` None: not token by
    token."""

    ids_by_token: Mapping[str, int]
    special_ids: frozenset[int]
    spelling: Spelling | None = None

    @property
    def num_ids(self) -> int:
        """One more than the highest id."""
        return max(self.ids_by_token.values(), default=-1) + 1

    def texts(self) -> dict[int, bytes]:
        """What each ordinary token adds to a text; empty where the spelling is not known."""
        if self.spelling is None:
            return {}
        return {
            i: text_of(token, self.spelling)
            for token, i in self.ids_by_token.items()
            if i not in self.special_ids
        }

    def specials(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        return {token: i for token, i in self.ids_by_token.items() if i in self.special_ids}


class Difference(NamedTuple):
    """Where two vocabularies differ: by id, the target's token and the draft's.

    `renamed` are special in both: a draft of a reserved token is checked like any other, so
    they cannot change the text. `unknown` are the target's at ids that the draft has no token for.
    """

    wrong: tuple[tuple[int, str, str], ...]
    renamed: tuple[tuple[int, str, str], ...]
    unknown: tuple[str, ...]

    @property
    def unknown_words(self) -> str:
        """The unknown tokens by name, and what becomes of them."""
        named, more = ", ".join(map(repr, self.unknown[:3])), len(self.unknown) - 3
        return (
            f"the draft does not know {len(self.unknown):,} of the target's tokens ({named}"
            f"{f' and {more:,} more' if more > 0 else ''}) and is not expected to draft them"
        )

    @property
    def shown(self) -> str:
        """The first of the wrong ones."""
        return ", ".join(f"{i}: {of!r} against {own!r}" for i, of, own in self.wrong[:3])


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> Difference:
    """Ids that stand for other tokens, and the target's tokens that the draft does not know;
    padding and what only the draft has are not compared."""
    if target.ids_by_token == draft.ids_by_token:
        return Difference((), (), ())
    targets = {i: token for token, i in target.ids_by_token.items()}
    drafts = {i: token for token, i in draft.ids_by_token.items()}
    ids = sorted(targets.keys() & drafts.keys())
    differing = [(i, targets[i], drafts[i]) for i in ids if targets[i] != drafts[i]]
    special = target.special_ids & draft.special_ids
    return Difference(
        wrong=tuple(one for one in differing if one[0] not in special),
        renamed=tuple(one for one in differing if one[0] in special),
        unknown=tuple(targets[i] for i in sorted(targets.keys() - drafts.keys())),
    )


class Overlap(NamedTuple):
    """The tokens that two vocabularies have in common, each by both of its ids."""

    draft_ids: Mapping[int, int]  # by the target's id
    target_size: int
    draft_size: int

    @property
    def share(self) -> float:
        """The part of the target's tokens that they are, 0 to 1."""
        return len(self.draft_ids) / max(self.target_size, 1)

    @property
    def in_words(self) -> str:
        """`1,232 tokens in common, 60.2 % of the target's and 80.2 % of the draft's`."""
        number = len(self.draft_ids)
        of_draft = number / max(self.draft_size, 1)
        return (
            f"{number:,} tokens in common, {100 * self.share:.1f} % of the target's and "
            f"{100 * of_draft:.1f} % of the draft's"
        )


def common_tokens(target: Vocabulary, draft: Vocabulary) -> Overlap:
    """Ordinary tokens of the same text, each text once, and special ones of the same name; none if
    a spelling is unknown."""
    sizes = len(target.ids_by_token), len(draft.ids_by_token)
    if target.spelling is None or draft.spelling is None:
        return Overlap({}, *sizes)
    names = draft.specials()
    pairs = {i: names[name] for name, i in target.specials().items() if name in names}
    own = _by_text(draft)
    pairs |= {i: own[text] for text, i in _by_text(target).items() if text in own}
    return Overlap(pairs, *sizes)


def mismatch_words(target: Vocabulary, draft: Vocabulary, difference: Difference) -> str:
    """Which ids of a draft model mean something else, and what can be done with it."""
    wrong = f"{len(difference.wrong):,} ids mean something else ({difference.shown})"
    found = common_tokens(target, draft)
    if not found.draft_ids:
        return f"{wrong}; {_ANOTHER}"
    return (
        f"{wrong}; {found.in_words}: method token_intersection drafts these, string_match whole "
        f"texts, both lossless (METHOD=DRAFT on the command line); or {_ANOTHER}"
    )


def _by_text(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The last id of each text: SentencePiece has a piece after the byte that it falls back to."""
    return {text: i for i, text in sorted(vocabulary.texts().items()) if text}
