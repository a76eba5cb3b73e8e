"""One generation round by round, on rounds written by hand."""

from dataclasses import replace

from specbench.metrics.cell import CellData
from specbench.records import AnswerCheck, ReferenceRecord, RoundLog
from specbench.report.steps import DecodedRound, generation_of
from tests.cell_keys import BASE_KEY, with_axes
from tests.made_records import made_request

KEY = with_axes(
    BASE_KEY, drafter="draft", method="draft_model", num_speculative_tokens=3, temperature=0.0
)
ROUNDS = RoundLog(
    num_drafted=(3, 3, 2),
    num_accepted=(2, 0, 2),
    num_emitted=(3, 1, 2),  # the last one has no room for the target's own token
    round_s=(0.1, 0.2, 0.3),
)
REFERENCE = ReferenceRecord(
    target=KEY.condition.target,
    workload=KEY.condition.workload,
    prompt_id="p",
    turn=0,
    num_prompt_tokens=3,
    output_ids=tuple(range(7)),
    pieces=("a", "b", "c", "d", "e", "f", "g"),
)
REQUEST = made_request(KEY.id, "p", ROUNDS)


def test_every_piece_is_accepted_or_the_targets_own() -> None:
    one = generation_of(CellData(key=KEY, requests=(REQUEST,)), [REFERENCE])
    assert one is not None
    assert (one.prompt_id, one.first, one.checked) == ("p", "a", ())
    assert one.rounds == (
        DecodedRound(num_drafted=3, accepted=("b", "c"), bonus="d", seconds=0.1),
        DecodedRound(num_drafted=3, accepted=(), bonus="e", seconds=0.2),
        DecodedRound(num_drafted=2, accepted=("f", "g"), bonus=None, seconds=0.3),
    )
    assert [own.num_rejected for own in one.rounds] == [1, 3, 0]


def test_tokens_of_a_predicted_output_are_in_no_round() -> None:
    check = AnswerCheck(num_drafted=4, num_accepted=1, num_emitted=2, seconds=0.1)
    log = replace(ROUNDS, num_emitted=(2, 1, 1), num_accepted=(1, 0, 1))
    request = made_request(KEY.id, "p", log, output_ids=tuple(range(7)), answer_check=check)
    one = generation_of(CellData(key=KEY, requests=(request,)), [REFERENCE])
    assert one is not None
    assert one.checked == ("b", "c")
    assert one.rounds[0].accepted == ("d",)


def test_the_first_request_with_a_stored_text_is_shown() -> None:
    other, failed = made_request(KEY.id, "other", ROUNDS), replace(REQUEST, finish_reason="failed")
    few = replace(ROUNDS, num_drafted=(3, 1, 2), num_accepted=(2, 1, 1))
    later = made_request(KEY.id, "later", few)
    cell = CellData(key=KEY, requests=(other, failed, REQUEST, later))
    upper = replace(REFERENCE, prompt_id="a-prompt-before", pieces=tuple("ABCDEFG"))
    one = generation_of(cell, [upper, REFERENCE])
    assert one is not None
    assert one.prompt_id == "p"
    assert (one.first, one.rounds[0].accepted) == ("a", ("b", "c"))
    assert [own.num_drafted for own in one.rounds] == [3, 3, 2]


def test_no_generation_is_shown_without_the_targets_own_text() -> None:
    cell = CellData(key=KEY, requests=(REQUEST,))
    assert generation_of(cell, [replace(REFERENCE, pieces=None)]) is None
    assert generation_of(cell, [replace(REFERENCE, workload="other")]) is None
    assert generation_of(cell, [replace(REFERENCE, context=1_000)]) is None
    assert generation_of(cell, [replace(REFERENCE, output_ids=(9, *range(1, 7)))]) is None
    warm = with_axes(KEY, temperature=1.0)
    assert generation_of(CellData(key=warm, requests=(REQUEST,)), [REFERENCE]) is None
    told = replace(REQUEST, rounds=None)
    assert generation_of(CellData(key=KEY, requests=(told,)), [REFERENCE]) is None
