"""Tokens that a lookup copies, worked by hand: those after an earlier copy of the last tokens."""

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


@pytest.mark.parametrize(
    ("text", "parameters", "drafts"),
    [
        pytest.param([1, 2, 3, 9, 7, 1, 2, 3], {}, [9, 7], id="what followed the same tokens"),
        # (2, 3) ends at the second position; 3 on its own occurs more recently.
        pytest.param([2, 3, 7, 5, 3, 8, 2, 3], {}, [7, 5], id="a longer match over a later one"),
        pytest.param([2, 3, 7, 2, 3, 8, 5, 2, 3], {}, [8, 5], id="the later of equal matches"),
        pytest.param([2, 3, 7, 5, 3, 8, 2, 3], {"max_ngram": 1}, [8, 2], id="at most max_ngram"),
        pytest.param([3, 7, 9, 3], {}, [7, 9], id="at least one token"),
        pytest.param([3, 7, 9, 3], {"min_ngram": 2}, [], id="at least min_ngram"),
        pytest.param([1, 2, 3, 4], {}, [], id="no repetition"),
        pytest.param([5], {}, [], id="one token"),
        pytest.param([4, 5, 6, 5], {"k": 4}, [6, 5], id="a copy ends with the text"),
        pytest.param([7, 7, 7, 7], {"k": 4}, [7], id="a match overlaps the text's end"),
        # The garbage behind the text is 2, 3, 8: it must not match 2 or (2, 3).
        pytest.param([1, 3, 2], {}, [], id="one token of garbage"),
        pytest.param([6, 2, 3], {}, [], id="two tokens of garbage"),
        # Padding of 0 before the text would make its first token end in (0, 5), as the last does.
        pytest.param([5, 7, 5, 8, 0, 5], {}, [8, 0], id="nothing before the first token"),
        pytest.param([2, 9, 8, 2], {"max_ngram": 3}, [9, 8], id="the first token matches"),
        pytest.param([1, 2, 1], {"k": 0}, [], id="no drafts are asked for"),
    ],
)
def test_ngram_drafts_continue_the_longest_latest_match(
    text: list[int], parameters: dict[str, int], drafts: list[int]
) -> None:
    assert lookups(text, **parameters) == [drafts]


def test_a_lookup_treats_rows_of_different_lengths_separately() -> None:
    assert lookups([1, 2, 1], [5, 6, 7, 8, 5], [1, 2, 3]) == [[2, 1], [6, 7], []]


def test_lengths_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="1 <= min <= max"):
        lookups([1], max_ngram=2, min_ngram=3)
