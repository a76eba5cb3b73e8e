"""Counts that end with the answer."""

import pytest

from specbench.engines.served_engine import DraftedRound, counts_of_rounds, counts_of_sums
from specbench.errors import ServerError
from specbench.servers.client import StreamedResponse

K4 = 4


def stream(num_tokens: int) -> StreamedResponse:
    return StreamedResponse(num_tokens=num_tokens)


def test_rounds_and_accepted_drafts_are_the_tokens_after_the_first():
    counts = counts_of_rounds(
        stream(1 + 5 + 1 + 3), [DraftedRound(4, 4), DraftedRound(4, 0), DraftedRound(4, 2)], K4
    )
    assert (counts.num_rounds, counts.num_accepted, counts.num_drafted) == (3, 6, 12)
    assert counts.num_by_accepted == (1, 0, 1, 0, 1)
    assert (counts.num_drafting, counts.num_rejecting, counts.num_overshot) == (3, 2, 0)


def test_drafts_accepted_past_the_end_of_the_text_are_not_counted():
    counts = counts_of_rounds(stream(1 + 5 + 2), [DraftedRound(4, 4), DraftedRound(4, 3)], K4)
    assert (counts.num_rounds, counts.num_accepted, counts.num_overshot) == (2, 5, 2)
    assert counts.num_by_accepted == (0, 1, 0, 0, 1)
    assert counts.num_rejecting == 0  # the text ended inside the drafts of the second


def test_a_draft_accepted_at_the_end_of_the_text_is_counted():
    """Like counts of our decoder, which drafts all but the last token of a known answer."""
    ended = StreamedResponse(num_tokens=1 + 5 + 2, finish_reason="stop")
    assert (
        counts_of_rounds(ended, [DraftedRound(4, 4), DraftedRound(4, 2)], K4).num_accepted == 4 + 1
    )


def test_tokens_of_no_drafting_round_are_counted_as_rounds_without_drafts():
    counts = counts_of_rounds(stream(1 + 10), [DraftedRound(2, 2), DraftedRound(4, 0)], K4)
    assert (counts.num_rounds, counts.num_drafting, counts.num_accepted) == (8, 2, 2)
    assert counts.num_by_accepted == (7, 0, 1, 0, 0)


def test_an_engine_can_report_acceptance_past_the_end_and_undrafted_rounds():
    """3 rounds without drafts, then one that accepts 4, the last of which ends the text."""
    rounds = [DraftedRound(4, 4)]
    assert counts_of_rounds(stream(1 + 3 + 4), rounds, K4).num_overshot == 0
    counts = counts_of_rounds(stream(1 + 3 + 4), rounds, K4, num_overshot=1)
    assert (counts.num_rounds, counts.num_accepted, counts.num_overshot) == (4, 3, 1)


def test_sums_exclude_overshot_drafts_and_have_no_positions():
    counts = counts_of_sums(stream(1 + 5 + 2), num_accepted=7, num_drafted=8, num_drafting=2)
    assert (counts.num_rounds, counts.num_accepted, counts.num_overshot) == (2, 5, 2)
    assert counts.num_by_accepted is counts.num_rejecting is None


def test_a_single_token_has_no_rounds():
    assert counts_of_rounds(stream(1), [], K4).num_rounds == 0


@pytest.mark.parametrize(
    ("num_tokens", "rounds"),
    [
        (3, [DraftedRound(4, 0)] * 3),
        (3, [DraftedRound(4, 4), DraftedRound(4, 0)]),
        (1, [DraftedRound(4, 4)]),
    ],
    ids=["more rounds than tokens", "an end before the last round", "a round of no token"],
)
def test_counts_that_do_not_fit_the_response_are_refused(num_tokens, rounds):
    with pytest.raises(ServerError, match="cannot be"):
        counts_of_rounds(stream(num_tokens), rounds, K4)


def test_rounds_with_more_tokens_than_the_engine_reports_are_refused():
    with pytest.raises(ServerError, match="cannot be"):
        counts_of_rounds(stream(3), [DraftedRound(4, 1), DraftedRound(4, 1)], K4, num_overshot=0)


def test_sums_of_another_answer_are_refused():
    with pytest.raises(ServerError, match="3 rounds"):
        counts_of_sums(stream(3), num_accepted=0, num_drafted=12, num_drafting=3)


@pytest.mark.parametrize(
    "rounds", [[DraftedRound(4, -1)], [DraftedRound(4, 5)], [DraftedRound(10**9, 10**8)]]
)
def test_contradictory_rounds_are_refused(rounds):
    with pytest.raises(ServerError, match="contradict each other"):
        counts_of_rounds(stream(10**9), rounds, K4)
