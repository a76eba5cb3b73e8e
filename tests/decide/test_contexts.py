"""K by context length: the joint conclusion of decisions at several lengths."""

from dataclasses import replace

import pytest

from specbench.decide.comparisons import context_curves
from specbench.decide.recommend import by_context, choose, decide
from specbench.records import Kind
from tests.cell_keys import with_axes

GAIN, OPEN, LOSS = (1.4, 1.5, 1.6), (0.9, 1.05, 1.2), (0.5, 0.6, 0.7)


@pytest.fixture
def answers(summarized):
    """The entries for cells given as {context: {K: bounds}}."""

    def build(speedups, **axes):
        groups = [
            [
                replace(cell, key=with_axes(cell.key, context=context, **axes))
                for cell in (summarized(k, *bounds) for k, bounds in by_k.items())
            ]
            for context, by_k in speedups.items()
        ]
        choices = list(map(choose, groups))
        decisions = [
            decide(choice, choice.leader if choice.to_confirm else None) for choice in choices
        ]
        return by_context(decisions, context_curves([cell for group in groups for cell in group]))

    return build


def test_equal_decisions_by_context_are_merged_into_ranges(answers):
    (entry,) = answers(
        {
            32_768: {2: LOSS, 6: LOSS},
            512: {2: OPEN, 6: GAIN},
            4_096: {2: OPEN, 6: GAIN},
            8_192: {2: GAIN, 6: OPEN},
            16_384: {2: OPEN, 6: LOSS},
        }
    )
    assert [*entry.answer] == [
        Kind.UP_TO_LENGTH(k=6, longest=4_096),
        Kind.AT_LENGTH(k=2, context=8_192),
        Kind.AT_LENGTH(k="undecided", context=16_384),
        Kind.FROM_LENGTH(k="no speedup", shortest=32_768),
    ]
    assert entry.key.draft.k == 2
    assert 16_384 < entry.break_even.estimate < 32_768
    assert entry.break_even.low is None  # K = 2 is not shown to gain at 512
    assert [*entry.where_it_ends] == [Kind.BREAK_EVEN_ABOUT(k=2, tokens=entry.break_even)]


def test_the_break_even_interval_is_quoted_if_both_ends_are_known(answers):
    (entry,) = answers({1_000: {4: (1.6, 2.0, 2.5)}, 4_000: {4: (0.4, 0.5, 0.625)}})
    assert entry.break_even.estimate == pytest.approx(2_000)
    assert [*entry.where_it_ends] == [Kind.BREAK_EVEN(k=4, tokens=entry.break_even)]
    # log 1.6 / log (1.6 / 0.4) = 0.339 of log 4 above log 1,000; the other end is its mirror.
    assert entry.break_even.low == pytest.approx(1_600, rel=0.01)
    assert entry.break_even.high == pytest.approx(2_500, rel=0.01)


def test_the_break_even_is_undecided_without_a_loss_at_the_longest_context(answers):
    (entry,) = answers({512: {4: GAIN}, 4_096: {4: (0.7, 0.9, 1.2)}})
    assert (entry.break_even.low is None, entry.break_even.high) == (False, None)
    assert [*entry.where_it_ends] == [Kind.BREAK_EVEN_ABOUT(k=4, tokens=entry.break_even)]


def test_equal_answers_at_every_length_form_one_range(answers):
    (gains,) = answers({512: {4: GAIN}, 4_096: {4: GAIN}})
    assert [*gains.answer] == [Kind.AT_ALL_LENGTHS(k=4, shortest=512, longest=4_096)]
    assert [*gains.where_it_ends] == [Kind.NO_BREAK_EVEN(k=4, longest=4_096)]
    (loses,) = answers({512: {4: LOSS}, 4_096: {4: LOSS}})
    (only,) = loses.answer
    assert only == Kind.AT_ALL_LENGTHS(k="no speedup", shortest=512, longest=4_096)
    assert (loses.key, [*loses.where_it_ends]) == (None, [])


def test_a_k_without_a_point_at_the_longest_context_is_undecided(answers):
    (entry,) = answers({512: {6: GAIN}, 4_096: {2: LOSS}})
    assert entry.break_even is None
    assert [*entry.where_it_ends] == [Kind.BREAK_EVEN_OPEN(k=6)]


def test_a_setting_with_one_context_has_no_entry(answers):
    assert answers({512: {4: GAIN}}) == ()
    assert answers({None: {4: GAIN}, 512: {4: GAIN}}) == ()
