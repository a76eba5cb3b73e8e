"""A tokenizer's vocabulary and a chat template, read from their files without running any code."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from specbench.errors import ModelError
from specbench.files.headers import LARGEST_JSON, local_file, read_json

# "bytes": byte-level BPE, with one character per byte (GPT-2). "pieces": SentencePiece, with
# U+2581 for a space and <0xAB> for a byte.
Spelling = Literal["bytes", "pieces"]

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenDecoder(Protocol):
    """A decoder of the tokenizers library."""

    def __getstate__(self) -> bytes: ...


def spelling_of(decoder: TokenDecoder | None) -> Spelling | None:
    """How a tokenizer spells its tokens, judging by its decoder; None: in neither way."""
    if decoder is None:
        return None
    parts = json.loads(decoder.__getstate__())
    steps = parts.get("decoders", [parts])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return "bytes"
    replaces = any(
        step.get("type") == "Replace" and step["pattern"].get("String") == _SPACE for step in steps
    )
    return "pieces" if replaces or "Metaspace" in kinds else None


def text_of(token: str, spelling: Spelling) -> bytes:
    """The bytes that a token adds to a text."""
    if spelling == "bytes":
        # Tokens that were added by hand are plain text, which may contain a space.
        spelled = [_BYTES.get(character) for character in token]
        known = [byte for byte in spelled if byte is not None]
        return bytes(known) if len(known) == len(spelled) else token.encode()
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


def _byte_characters() -> dict[str, int]:
    """The byte of each GPT-2 character: printable Latin-1 as is, other bytes from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(0x100 + i): byte for i, byte in enumerate(unprintable)}


_BYTES = _byte_characters()


_ANOTHER = "choose a draft of the same model family, or a method without a draft model (ngram)"
NOTHING_IN_COMMON = (
    "the two tokenizers have no token in common, or one does not give the text of its tokens "
    f"(byte-level BPE and SentencePiece do); {_ANOTHER}"
)


class Vocabulary(NamedTuple):
    """A tokenizer's tokens; `special_ids` are those of control tokens. `spelling` None: the text of
    a single token is unknown."""

    ids_by_token: Mapping[str, int]
    special_ids: frozenset[int]
    spelling: Spelling | None = None

    @property
    def num_ids(self) -> int:
        """One more than the highest id."""
        return max(self.ids_by_token.values(), default=-1) + 1

    def texts(self) -> dict[int, bytes]:
        """Bytes that each ordinary token adds to a text; empty if the spelling is unknown."""
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


class VocabularyDifference(NamedTuple):
    """The differences between two vocabularies: ids, each with the target's and the draft's token.

    `renamed` are special in both, and cannot change the text: a reserved draft token is verified
    like any other. `unknown` are the target's tokens at ids that the draft model lacks.
    """

    wrong: tuple[tuple[int, str, str], ...]
    renamed: tuple[tuple[int, str, str], ...]
    unknown: tuple[str, ...]

    @property
    def unknown_words(self) -> str:
        """A sentence that names the unknown tokens and states what they mean for drafting."""
        named, more = ", ".join(map(repr, self.unknown[:3])), len(self.unknown) - 3
        return (
            f"the draft model lacks {len(self.unknown):,} of the target's tokens ({named}"
            f"{f' and {more:,} more' if more > 0 else ''}) and cannot draft them"
        )


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> VocabularyDifference:
    """Ids that stand for different tokens, and the target's tokens that the draft model lacks.
    Padding and tokens that only the draft model has are not compared."""
    if target.ids_by_token == draft.ids_by_token:
        return VocabularyDifference((), (), ())
    targets = {i: token for token, i in target.ids_by_token.items()}
    drafts = {i: token for token, i in draft.ids_by_token.items()}
    ids = sorted(targets.keys() & drafts.keys())
    differing = [(i, targets[i], drafts[i]) for i in ids if targets[i] != drafts[i]]
    special = target.special_ids & draft.special_ids
    return VocabularyDifference(
        wrong=tuple(entry for entry in differing if entry[0] not in special),
        renamed=tuple(entry for entry in differing if entry[0] in special),
        unknown=tuple(targets[i] for i in sorted(targets.keys() - drafts.keys())),
    )


class Overlap(NamedTuple):
    """The tokens that two vocabularies have in common, each with both of its ids."""

    draft_ids: Mapping[int, int]  # by the target's id
    target_size: int
    draft_size: int

    @property
    def share(self) -> float:
        """The share of the target's tokens that are in common, from 0 to 1."""
        return len(self.draft_ids) / max(self.target_size, 1)

    @property
    def in_words(self) -> str:
        """`1,232 tokens in common, 60.2% of the target's and 80.2% of the draft model's`."""
        number = len(self.draft_ids)
        of_draft = number / max(self.draft_size, 1)
        return (
            f"{number:,} tokens in common, {100 * self.share:.1f}% of the target's and "
            f"{100 * of_draft:.1f}% of the draft model's"
        )


def common_tokens(target: Vocabulary, draft: Vocabulary) -> Overlap:
    """Ordinary tokens with the same text, each text once, and special tokens with the same name;
    empty if a spelling is unknown."""
    sizes = len(target.ids_by_token), len(draft.ids_by_token)
    if target.spelling is None or draft.spelling is None:
        return Overlap({}, *sizes)
    names = draft.specials()
    pairs = {i: names[name] for name, i in target.specials().items() if name in names}
    draft_ids = _by_text(draft)
    pairs |= {i: draft_ids[text] for text, i in _by_text(target).items() if text in draft_ids}
    return Overlap(pairs, *sizes)


def mismatch_words(target: Vocabulary, draft: Vocabulary, difference: VocabularyDifference) -> str:
    """A message with the ids that stand for different tokens, and the methods that still work."""
    first = ", ".join(f"{i}: {of!r} against {other!r}" for i, of, other in difference.wrong[:3])
    wrong = f"{len(difference.wrong):,} token ids stand for different tokens ({first})"
    common = common_tokens(target, draft)
    if not common.draft_ids:
        return f"{wrong}; {_ANOTHER}"
    return (
        f"{wrong}; {common.in_words}: method token_intersection drafts these, string_match whole "
        f"texts, both lossless (METHOD=DRAFT on the command line); or {_ANOTHER}"
    )


def _by_text(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The last id of each text: in SentencePiece, a piece comes after the byte with its text."""
    return {text: i for i, text in sorted(vocabulary.texts().items()) if text}


_SPECIAL_TOKENS = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
NO_TOKENIZER = "tokenizer.json is missing; copy the tokenizer files of the model it was made from"
# Without tokenizer.json, the vocabulary is in one of these: equal files mean equal vocabularies.
OTHER_VOCABULARIES = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
# The time at which chat templates are rendered, so that prompts are the same every day. It is the
# default date of Llama 3's own template.
TEMPLATE_CLOCK = datetime(2024, 7, 26, tzinfo=UTC)


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The tokens of tokenizer.json and tokenizer_config.json; None if the former is missing.
    ModelError."""
    inner = read_tokenizer(folder)
    if inner is None:
        return None
    ids_by_token: dict[str, int] = inner.get_vocab(with_added_tokens=True)
    special = {i for i, token in inner.get_added_tokens_decoder().items() if token.special}
    config = _config(folder)
    for name in _SPECIAL_TOKENS:
        token = config.get(name)
        is_added = isinstance(token, dict) and token.get("__type") == "AddedToken"
        if not is_added and not isinstance(token, str | None):
            raise ModelError(
                f"{folder / 'tokenizer_config.json'}: {name} is {str(token)[:80]}; expected a "
                "string; correct it, or download the file again"
            )
    for i, content, is_special in _added(config):
        ids_by_token.setdefault(content, i)
        if is_special:
            special.add(i)
    return Vocabulary(ids_by_token, frozenset(special), spelling_of(inner.decoder))


def read_tokenizer(folder: Path) -> Any:
    """The `Tokenizer` in tokenizer.json; None if the file is missing. ModelError."""
    file = local_file(folder, "tokenizer.json")
    if file is None:
        return None
    from tokenizers import Tokenizer  # noqa: PLC0415 - not needed for --help

    if file.stat().st_size > LARGEST_JSON:
        raise ModelError(f"{file} has more than {LARGEST_JSON} bytes; that is not a tokenizer")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        # The tokenizers library raises a plain Exception for a damaged file.
        if type(error) is not Exception:
            raise
        raise ModelError(f"{file} cannot be read: {error}") from error


def read_chat_template(folder: Path) -> str | None:
    """The template that prompts are rendered with; None if there is none. ModelError."""
    file = local_file(folder, "chat_template.jinja")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error
    json_file = local_file(folder, "chat_template.json")
    given = _config(folder).get("chat_template")
    if given is None and json_file is not None:
        given = read_json(json_file).get("chat_template")
    if isinstance(given, list):  # several named templates; `default` is used
        named = {item.get("name"): item.get("template") for item in given if isinstance(item, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else None


def prints_clock(template: str) -> bool:
    """Whether a chat template prints the current time."""
    return "strftime_now" in template


def _config(folder: Path) -> Mapping[str, Any]:
    file = local_file(folder, "tokenizer_config.json")
    return {} if file is None else read_json(file)


def _added(config: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """The tokens in tokenizer_config.json: each one's id, its text, and whether it is special."""
    entries = config.get("added_tokens_decoder")
    if not isinstance(entries, dict):
        return []
    return [
        (int(i), str(entry["content"]), bool(entry.get("special")))
        for i, entry in entries.items()
        if str(i).isdecimal() and isinstance(entry, dict) and "content" in entry
    ]
