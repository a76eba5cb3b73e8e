"""What a lookup copies, worked by hand: what followed the text's last tokens earlier on."""

import pytest
import torch

from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.errors import UsageError
from specbench.records import Sampling
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import make_drafter

GARBAGE = (2, 3, 8, 9, 9)  # what refused drafts may leave behind a row's text


def rows_holding(*texts: list[int]) -> State:
    """Rows whose newest token is the last of their text."""
    state = State.allocate(len(texts), 32, [], torch.device("cpu"))
    for row, text in enumerate(texts):
        state.tokens_BC[row, : len(text) + len(GARBAGE)] = torch.tensor([*text, *GARBAGE])
        state.length_B1[row] = len(text) - 1
    return state


def lookups(*texts: list[int], k: int = 2, **parameters: int) -> list[list[int]]:
    drafter = make_drafter("ngram", CountingRunner(), **parameters)
    proposal = drafter.propose(rows_holding(*texts), k, 32, Sampler(Sampling()))
    assert proposal.tokens_BK.shape == (len(texts), k)
    assert proposal.probs is None
    rows = zip(proposal.tokens_BK.tolist(), proposal.num_drafted_B.tolist(), strict=True)
    return [tokens[:num_drafted] for tokens, num_drafted in rows]


def test_tokens_after_an_earlier_match_are_drafted() -> None:
    assert lookups([1, 2, 3, 9, 7, 1, 2, 3]) == [[9, 7]]


def test_the_longest_match_wins_over_a_more_recent_one() -> None:
    # (2, 3) ends at the second position; 3 on its own occurs more recently.
    assert lookups([2, 3, 7, 5, 3, 8, 2, 3]) == [[7, 5]]


def test_the_most_recent_of_equally_long_matches_wins() -> None:
    assert lookups([2, 3, 7, 2, 3, 8, 5, 2, 3]) == [[8, 5]]


def test_a_match_counts_no_more_than_max_ngram_tokens() -> None:
    assert lookups([2, 3, 7, 5, 3, 8, 2, 3], max_ngram=1) == [[8, 2]]


def test_a_match_shorter_than_min_ngram_does_not_count() -> None:
    assert lookups([3, 7, 9, 3]) == [[7, 9]]
    assert lookups([3, 7, 9, 3], min_ngram=2) == [[]]


def test_text_without_repetition_drafts_nothing() -> None:
    assert lookups([1, 2, 3, 4]) == [[]]


def test_a_lookup_in_a_text_of_one_token_drafts_nothing() -> None:
    assert lookups([5]) == [[]]


def test_a_lookup_ends_at_the_end_of_the_text() -> None:
    assert lookups([4, 5, 6, 5], k=4) == [[6, 5]]


def test_a_lookup_match_may_overlap_the_end_of_the_text() -> None:
    assert lookups([7, 7, 7, 7], k=4) == [[7]]


def test_a_lookup_ignores_garbage_after_the_newest_token() -> None:
    # The garbage behind the text is 2, 3, 8: it must not answer for 2 or for (2, 3).
    assert lookups([1, 3, 2]) == [[]]
    assert lookups([6, 2, 3]) == [[]]


def test_a_lookup_treats_rows_of_different_lengths_separately() -> None:
    assert lookups([1, 2, 1], [5, 6, 7, 8, 5], [1, 2, 3]) == [[2, 1], [6, 7], []]


def test_a_lookup_does_not_match_padding_before_the_first_token() -> None:
    # Padding of 0 before the text would make its first token end in (0, 5), as the last does.
    assert lookups([5, 7, 5, 8, 0, 5]) == [[8, 0]]


def test_a_lookup_may_match_at_the_first_token() -> None:
    assert lookups([2, 9, 8, 2], max_ngram=3) == [[9, 8]]


def test_a_lookup_with_k_0_drafts_nothing() -> None:
    assert lookups([1, 2, 1], k=0) == [[]]


def test_lengths_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="1 <= min <= max"):
        lookups([1], max_ngram=2, min_ngram=3)
