"""A text in another model's tokens: the same for every way of splitting it."""

import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from specbench.errors import CompatibilityError
from specbench.files.tokenizer import Vocabulary, common_tokens, text_of
from specbench.models import retokenizer
from specbench.models.retokenizer import Encoder, Retokenizer, require_common_tokens
from specbench.models.tokenizer import ChatTokenizer
from tests.other_tokenizers import SPECIALS, TEXTS, write_byte_level, write_pieces

TEXT = "Drafts jump:\n\n  over Größe, 日本🎉 and   tabs\tnaïvely.\n"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {
        "bytes": write_byte_level(folder / "bytes", 400),
        "pieces": write_pieces(folder / "pieces", 480),
    }


@pytest.mark.parametrize(
    ("token", "spelling", "text"),
    [
        ("Ġthe", "bytes", b" the"),
        ("Ċ", "bytes", b"\n"),
        ("Ã", "bytes", b"\xc3"),
        ("two words", "bytes", b"two words"),  # added by hand
        ("▁the", "pieces", b" the"),
        ("<0xC3>", "pieces", b"\xc3"),
        ("ö", "pieces", "ö".encode()),
    ],
)
def test_a_token_name_is_decoded_to_its_text(token, spelling, text):
    assert text_of(token, spelling) == text


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_token_texts_join_to_the_encoded_text(tokenizers, kind):
    tokenizer = tokenizers[kind]
    texts = tokenizer.vocabulary.texts()
    before = b" " if kind == "pieces" else b""
    assert b"".join(texts[i] for i in tokenizer.ids(TEXT)) == before + TEXT.encode()


def vocabulary(*tokens: str, special: int = 0, spelling="bytes") -> Vocabulary:
    ids = {token: i for i, token in enumerate(tokens)}
    return Vocabulary(ids, frozenset(range(special)), spelling)


def test_common_tokens_are_matched_by_text_and_not_by_spelling():
    target = vocabulary("<s>", "Ġthe", "a", "Ċ", "cat", special=1)
    draft = vocabulary("<s>", "<0x61>", "cat", "▁the", "a", "dog", special=1, spelling="pieces")

    common = common_tokens(target, draft)

    # The piece `a`, not the byte that SentencePiece falls back to.
    assert common.draft_ids == {0: 0, 1: 3, 2: 4, 4: 2}
    assert common.share == 4 / 5
    assert re.match(r"4 tokens .*80\.0% .*66\.7% ", common.in_words)


def test_a_special_token_matches_only_a_special_token():
    target, draft = vocabulary("<s>", "a", special=1), vocabulary("a", "<s>", special=1)
    assert common_tokens(target, draft).draft_ids == {}
    with pytest.raises(CompatibilityError, match="no token"):
        require_common_tokens(target, draft)


def test_empty_tokens_are_not_counted_as_common():
    assert common_tokens(vocabulary("", "a"), vocabulary("a", "")).draft_ids == {1: 0}


def test_tokens_without_a_known_text_are_not_in_common():
    spelled, unspelled = vocabulary("a", "b"), vocabulary("a", "b", spelling=None)
    assert common_tokens(spelled, unspelled).draft_ids == {}
    with pytest.raises(CompatibilityError, match="does not give the text"):
        require_common_tokens(unspelled, spelled)


@pytest.mark.parametrize(("source", "destination"), [("bytes", "pieces"), ("pieces", "bytes")])
def test_a_text_read_in_pieces_is_encoded_as_a_whole(tokenizers, source, destination):
    first, other = tokenizers[source], tokenizers[destination]
    retokenizer = Retokenizer(first, other)
    rng = random.Random(0)
    # Texts of people, and of a random model.
    texts = [first.ids(text) for text in (TEXT, *TEXTS)]
    texts += [rng.choices(range(2, len(first.ids_by_token)), k=90) for _ in range(20)]
    for ids in texts:
        whole, parts = retokenizer.read(), retokenizer.read()
        whole.extend(ids)
        done = 0
        while done < len(ids):
            step = rng.randint(1, 5)
            parts.extend(ids[done : done + step])
            assert retokenizer.encoder.text(parts.ids)  # requested in between
            done += step
        assert parts.ids == whole.ids
        assert (parts.num_read, parts.word) == (len(ids), whole.word)


def test_further_text_changes_only_tokens_of_the_open_word(tokenizers):
    retokenizer = Retokenizer(tokenizers["bytes"], tokenizers["pieces"])
    reading, before = retokenizer.read(), []
    for token in tokenizers["bytes"].ids(TEXT):
        reading.extend([token])
        closed = reading.ids[: len(reading.ids) - len(retokenizer.encoder.encode(reading.word))]
        assert closed[: len(before)] == before
        before = closed


def test_the_text_stays_the_same_in_byte_level_tokens(tokenizers):
    retokenizer = Retokenizer(tokenizers["pieces"], tokenizers["bytes"])
    for text in (TEXT, *TEXTS):
        reading = retokenizer.read()
        reading.extend(tokenizers["pieces"].ids(text))
        assert retokenizer.encoder.text(reading.ids) == b" " + text.encode()


def test_half_a_character_is_encoded_by_its_bytes(tokenizers):
    for kind in ("bytes", "pieces"):
        encoder = Retokenizer(tokenizers["bytes"], tokenizers[kind]).encoder
        assert encoder.text(encoder.encode(b" a\xe6\x97")) == b" a\xe6\x97"


class Prepending(NamedTuple):
    """A tokenizer like older SentencePiece ones: a space is put before every text."""

    vocabulary: Vocabulary
    prefix_ids: tuple[int, ...] = ()

    def ids(self, text: str) -> tuple[int, ...]:
        spelt = "\u2581" + text.replace(" ", "\u2581")
        return tuple(self.vocabulary.ids_by_token[letter] for letter in spelt)


def test_an_existing_leading_space_is_not_doubled() -> None:
    encoder = Encoder(Prepending(vocabulary("\u2581", "a", "b", spelling="pieces")))
    assert encoder.encode(b"a b") == [0, 1, 0, 2]


def test_the_cache_of_retokenized_words_is_bounded(tokenizers, monkeypatch):
    monkeypatch.setattr(retokenizer, "MOST_WORDS", 3)
    encoder = Retokenizer(tokenizers["bytes"], tokenizers["pieces"]).encoder
    words = [f" {word}".encode() for word in ("the", "quick", "brown", "fox", "jumps")]
    assert b"".join(encoder.text(encoder.encode(word)) for word in words) == b"".join(words)
    assert 0 < len(encoder._words) <= 3


def test_special_tokens_become_those_of_the_same_name_or_nothing(tokenizers):
    target, draft = tokenizers["bytes"], tokenizers["pieces"]
    end, turn = (target.ids_by_token[name] for name in SPECIALS)
    retokenizer = Retokenizer(target, draft)
    del retokenizer.specials[turn]  # as if the draft had no such token

    reading = retokenizer.read()
    reading.extend([turn, *target.ids(" the fox"), end, *target.ids(" dog")])

    expected = (*draft.ids(" the fox"), draft.ids_by_token[SPECIALS[0]], *draft.ids(" dog"))
    assert tuple(reading.ids) == expected


def test_the_draft_models_start_token_is_prepended_once(tokenizers):
    target, draft = tokenizers["bytes"], tokenizers["pieces"]
    retokenizer = Retokenizer(target, draft)
    start = draft.ids_by_token[SPECIALS[0]]
    retokenizer.prefix = (start,)
    for before in ((), (target.ids_by_token[SPECIALS[0]],)):
        reading = retokenizer.read()
        reading.extend([*before, *target.ids(" the fox")])
        assert tuple(reading.ids) == (start, *draft.ids(" the fox"))


def test_a_tokenizer_reports_the_prefix_its_model_expects(tokenizers, tmp_path: Path):
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    assert tokenizers["bytes"].prefix_ids == ()
    inner = AutoTokenizer.from_pretrained(tokenizers["bytes"].location)
    start = [("<|turn|>", inner.convert_tokens_to_ids("<|turn|>"))]
    template = TemplateProcessing(single="<|turn|> $A", special_tokens=start)
    inner.backend_tokenizer.post_processor = template
    inner.save_pretrained(tmp_path)
    made = ChatTokenizer(str(tmp_path), revision=None, trust_remote_code=False)
    assert made.prefix_ids == (made.ids_by_token["<|turn|>"],)
