"""Writes and counts of a round: commits, ends of text and budgets, on a target that counts.

The target always emits the next number, so the text after 5 is 6, 7, 8 ... and a draft is right
exactly when it equals its position plus a constant.
"""

from collections.abc import Collection
from typing import Any

import pytest
import torch

from specbench.decode.round import run_round
from specbench.decode.sampling import Sampler
from specbench.decode.state import FURTHEST, State
from specbench.records import Request, Result, Sampling
from tests.decoding.fakes import CountingRunner, ScriptedDrafter
from tests.decoding.lossless import decode

PROMPT = (5,)  # position 0 holds 5: the text at position i is 5 + i


def counted(
    *,
    k: int,
    wrong: Collection[int] = (),
    num_tokens: int = 12,
    eos_ids: tuple[int, ...] = (),
) -> Result:
    """One row whose drafts are right except at the `wrong` positions."""
    script = {i: 99 if i in wrong else 5 + i for i in range(60)}
    request = Request(prompt_ids=PROMPT, max_new_tokens=num_tokens)
    runner, drafter = CountingRunner(), ScriptedDrafter(script)
    return decode(runner, drafter, [request], k=k, eos_ids=eos_ids)[0]


def columns(result: Result) -> list[tuple[int, int, int]]:
    """(num_drafted, num_accepted, num_emitted) round by round."""
    log = result.rounds
    return list(zip(log.num_drafted, log.num_accepted, log.num_emitted, strict=True))


@pytest.mark.parametrize(
    ("options", "num_tokens", "rounds"),
    [
        # 1 token from the prefill, then 4 + 4 + 3: the last round may keep 2 drafts.
        pytest.param({"k": 3}, 12, [(3, 3, 4), (3, 3, 4), (2, 2, 3)], id="every draft is right"),
        # Positions 2, 3, 4 are drafted first; 3 is wrong, so the round emits those at 2 and 3.
        pytest.param(
            {"k": 3, "wrong": {3}, "num_tokens": 7}, 7, [(3, 1, 2), (3, 3, 4)], id="one is wrong"
        ),
        pytest.param(
            {"k": 3, "wrong": range(60), "num_tokens": 5},
            5,
            [(3, 0, 1), (2, 0, 1), (1, 0, 1), (0, 0, 1)],
            id="every draft is wrong",
        ),
        pytest.param({"k": 0, "num_tokens": 4}, 4, [(0, 0, 1)] * 3, id="no drafts"),
        pytest.param({"k": 4, "num_tokens": 1}, 1, [], id="a budget of one token"),
        # Prefill emits 6; the round drafts 7 8 9 10, all right; 9 ends the text: 7 8 9 are
        # emitted and kept, 10 is not counted as accepted.
        pytest.param({"k": 4, "eos_ids": (9,)}, 4, [(4, 3, 3)], id="an accepted draft ends it"),
        pytest.param({"k": 3, "eos_ids": (10,)}, 5, [(3, 3, 4)], id="the bonus token ends it"),
        pytest.param(
            {"k": 3, "wrong": {3}, "eos_ids": (8,)},
            3,
            [(3, 1, 2)],
            id="the recovered token ends it",
        ),
        # The wrong draft is 99, which is also an end-of-text id.
        pytest.param(
            {"k": 3, "wrong": {3}, "num_tokens": 6, "eos_ids": (99,)},
            6,
            [(3, 1, 2), (2, 2, 3)],
            id="a rejected draft ends nothing",
        ),
        pytest.param(
            {"k": 4, "eos_ids": (50, 8, 51)}, 3, [(4, 2, 2)], id="any of several ids ends it"
        ),
        pytest.param({"k": 4, "eos_ids": (6,)}, 1, [], id="the first token ends it"),
    ],
)
def test_rounds_have_the_expected_counts(
    options: dict[str, Any], num_tokens: int, rounds: list[tuple[int, int, int]]
) -> None:
    result = counted(**options)

    assert result.output_ids == tuple(range(6, 6 + num_tokens))
    assert (result.finish_reason == "eos") == (num_tokens < options.get("num_tokens", 12))
    assert columns(result) == rounds


@pytest.mark.parametrize("budget", range(1, 12))
@pytest.mark.parametrize("k", [1, 4, 8, 20])
def test_a_budget_is_met_exactly_and_nothing_is_drafted_past_it(k: int, budget: int) -> None:
    result = counted(k=k, num_tokens=budget, wrong={4, 7})

    assert result.output_ids == tuple(range(6, 6 + budget))
    left = budget - 1
    for drafted, accepted, emitted in columns(result):
        assert drafted == min(k, left - 1)
        assert emitted == accepted + 1
        left -= emitted
    assert left == 0
    assert result.finish_reason != "eos"


@pytest.mark.parametrize("prompt_length", range(52, 67))
def test_slots_suffice_for_a_text_that_ends_at_a_span_boundary(prompt_length: int) -> None:
    # The runner checks that each position is below the span, which grows in steps of 64.
    script = {i: (5 + i) % 100 for i in range(90)}
    prompt = tuple(range(5, 5 + prompt_length))

    (result,) = decode(
        CountingRunner(),
        ScriptedDrafter(script),
        [Request(prompt_ids=prompt, max_new_tokens=10)],
        k=6,
    )

    assert result.output_ids == tuple(range(5 + prompt_length, 15 + prompt_length))


def test_a_finished_row_waits_without_logging_rounds_or_changing() -> None:
    script = {i: 99 for i in range(60)}  # the first row's drafts are wrong, all of them
    requests = [
        Request(prompt_ids=(5,), max_new_tokens=3),
        Request(prompt_ids=(20,), max_new_tokens=9),
        Request(prompt_ids=(40,), max_new_tokens=9),
    ]

    short, ended, long = decode(
        CountingRunner(), ScriptedDrafter(script), requests, k=2, eos_ids=(24,)
    )

    assert short.output_ids == (6, 7, 8)
    assert ended.output_ids == (21, 22, 23, 24)
    assert long.output_ids == tuple(range(41, 50))
    assert [len(r.rounds) for r in (short, ended, long)] == [2, 3, 8]
    assert [r.finish_reason == "eos" for r in (short, ended, long)] == [False, True, False]


def test_a_round_leaves_a_finished_row_unchanged_and_reports_zeros() -> None:
    state = State.allocate(2, 32, [], torch.device("cpu"))
    state.tokens_BC[:, :3] = torch.tensor([5, 6, 7])
    state.length_B1.fill_(2)
    state.budget_B.copy_(torch.tensor([0, 9]))

    drafter = ScriptedDrafter({3: 8, 4: 9})
    report_BN = run_round(CountingRunner(), drafter, state, Sampler(Sampling()), k=2, span=32)

    assert report_BN[:, :4].tolist() == [[0, 0, 0, 0], [2, 2, 3, 6]]
    assert report_BN[1, 4:].tolist() == [8, 9, 10]
    assert state.length_B.tolist() == [2, 5]
    assert state.budget_B.tolist() == [0, 6]
    assert state.tokens_BC[0, :3].tolist() == [5, 6, 7]
    assert state.tokens_BC[1, :6].tolist() == [5, 6, 7, 8, 9, 10]


def test_times_come_from_the_clock_and_split_each_round() -> None:
    # Readings are 0, 1, 2 ...: start 0, first token 1; a round reads began, drafted, finished.
    result = counted(k=3)

    assert (result.arrived_s, result.queue_s, result.first_token_s) == (0, 0, 1)
    assert result.rounds.draft_s == (1, 1, 1)
    assert result.rounds.verify_s == (1, 1, 1)
    assert result.rounds.round_s == (2, 2, 2)
    assert result.total_s == 10


def test_the_baseline_spends_no_time_drafting() -> None:
    result = counted(k=0, num_tokens=3)

    assert result.rounds.draft_s == (0, 0)
    assert result.rounds.round_s == result.rounds.verify_s == (1, 1)


def test_positions_beyond_the_prepared_offsets_are_refused():
    state = State.allocate(2, 32, [], torch.device("cpu"))
    assert state.positions(-1, 3).tolist() == [[0, 1, 2], [0, 1, 2]]
    for first, count in ((0, FURTHEST + 2), (-FURTHEST - 1, 1)):
        with pytest.raises(ValueError, match="offsets"):
            state.positions(first, count)
