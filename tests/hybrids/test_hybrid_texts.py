"""Greedy texts of hybrid models are those of transformers' `generate`, whatever drafts for them."""

import pytest

from tests.hybrids.checks import (
    check_adaptive_k,
    check_as_draft,
    check_rows_that_come_and_go,
    check_second_turn,
    check_side_by_side,
    subject,
)
from tests.hybrids.models import HYBRIDS

pytestmark = pytest.mark.slow


def of_every_family(sample: str) -> pytest.MarkDecorator:
    """One of them in make test, the others in make test-long."""
    marks = {name: [] if name == sample else [pytest.mark.long] for name in HYBRIDS}
    return pytest.mark.parametrize(
        "family", [pytest.param(name, marks=marks[name]) for name in HYBRIDS]
    )


@of_every_family("Qwen3.5")
def test_ragged_rows_with_good_and_bad_drafts_have_the_models_own_texts(family: str) -> None:
    check_side_by_side(subject(family), (0, 1, 4))


@of_every_family("Qwen3.5")
def test_hybrid_texts_are_unchanged_by_row_moves_and_changing_k(family: str) -> None:
    check_rows_that_come_and_go(subject(family))


@of_every_family("LFM2")
def test_a_controller_may_pick_k(family: str) -> None:
    check_adaptive_k(subject(family))


@of_every_family("LFM2")
def test_a_second_turn_continues_from_the_state_of_the_first(family: str) -> None:
    of = subject(family)
    check_second_turn(of, of.near)
    check_second_turn(of, of.own, ks=(4, 0, 0))


@of_every_family("LFM2")
def test_a_prompt_in_chunks_has_the_text_of_one_that_is_whole(family: str) -> None:
    check_side_by_side(subject(family), (1,), prefill_chunk=8)


@of_every_family("LFM2")
def test_a_hybrid_drafts_for_an_attention_only_target(family: str) -> None:
    check_as_draft(subject(family))
