"""Pieces of text: joined they are the text, however tokens cut its characters."""

import random
from collections.abc import Sequence

import pytest

from specbench.bench.session import text_pieces


def of_bytes(ids: Sequence[int]) -> str:
    """A token is a byte, as in many tokenizers' fallback."""
    return bytes(ids).decode(errors="replace")


def of_words(ids: Sequence[int]) -> str:
    """The first word has no space before it, as where a tokenizer marks the start of a text."""
    return " ".join(f"w{i}" for i in ids)


@pytest.mark.parametrize("text", ["plain", "naïve café", "猫が好き🐈‍⬛!", "a\nb\tc", "🐈"])
def test_a_character_appears_with_the_byte_that_completes_it(text: str) -> None:
    pieces = text_pieces(of_bytes, text.encode())
    assert len(pieces) == len(text.encode())
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
    assert [piece for piece in pieces if piece] == list(text)


def test_a_character_that_is_never_completed_is_shown_at_the_end() -> None:
    pieces = text_pieces(of_bytes, "a猫".encode()[:-1])
    assert pieces == ("a", "", "\ufffd")


def test_text_pieces_join_to_the_text_for_any_bytes() -> None:
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.choice((65, 0xC3, 0xA9, 0xE7, 0x8C, 0xAB, 0xFF)) for _ in range(12)]
        assert "".join(text_pieces(of_bytes, ids)) == of_bytes(ids)


def test_text_pieces_keep_the_space_before_a_word() -> None:
    assert text_pieces(of_words, [1, 2, 3]) == ("w1", " w2", " w3")
    assert text_pieces(of_words, []) == ()


def test_text_pieces_decode_at_most_six_tokens_at_a_time() -> None:
    longest: list[int] = []

    def counted(ids: Sequence[int]) -> str:
        longest.append(len(ids))
        return of_bytes(ids)

    text_pieces(counted, ("猫" * 300).encode())
    assert max(longest) == 6  # the character before, and this one
