"""Rounds from what a target was fed and what came out, worked by hand."""

import pytest
import torch

from specbench.engines.transformers_engine import GenerationLog, timeline
from specbench.records import Result, RoundLog


def log_of(fed, put):
    """A log of a two-token prompt (1, 2): token ids fed to each forward, tokens put after it."""
    log = GenerationLog(num_prompt_tokens=2)
    log.put(torch.tensor([[1, 2]]))
    for tokens, num_put in zip(fed, put, strict=True):
        log.feed(None, (), {"input_ids": torch.tensor([tokens])})
        log.put(torch.zeros(1, num_put))
    return log


def counts(rounds):
    columns = (rounds.num_drafted, rounds.num_accepted, rounds.num_emitted)
    return list(zip(*columns, strict=True))


def test_a_rejected_first_draft_leaves_no_round_before_the_second():
    # Drafts 7 8 9; the target says 3. Then drafts 4 5 6 after 3; it says 4 5 0.
    log = log_of(fed=[[1, 2, 7, 8, 9], [3, 4, 5, 6]], put=[1, 3])
    assert counts(log.rounds((3, 4, 5, 0), k=3)) == [(3, 2, 3)]


def test_drafts_verified_in_prefill_form_a_round_of_zero_time():
    # Drafts 3 4 9: the first is prefill's token, 4 is accepted, 5 replaces 9.
    log = log_of(fed=[[1, 2, 3, 4, 9], [5, 6, 7, 8]], put=[3, 4])
    rounds = log.rounds((3, 4, 5, 6, 7, 8, 0), k=3)
    assert counts(rounds) == [(2, 1, 2), (3, 3, 4)]
    assert rounds.round_s[0] == 0.0
    assert sum(rounds.round_s) == log.last_token_s - log.first_token_s


def test_a_round_that_the_end_of_text_cuts_counts_the_drafts_in_the_text():
    # Drafts 4 0 6, all right, but 0 ends the text.
    log = log_of(fed=[[1, 2], [3, 4, 0, 6]], put=[1, 2])
    assert counts(log.rounds((3, 4, 0), k=3)) == [(3, 2, 2)]


def test_a_lookup_that_misses_drafts_nothing():
    log = log_of(fed=[[1, 2], [3]], put=[1, 1])
    assert counts(log.rounds((3, 4), k=3)) == [(0, 0, 1)]


def test_without_a_drafter_every_token_is_a_round():
    log = GenerationLog(num_prompt_tokens=2)
    log.put(torch.tensor([[1, 2]]))
    for _ in range(3):
        log.put(torch.tensor([5]))
    assert counts(log.rounds((5, 5, 5), k=0)) == [(0, 0, 1), (0, 0, 1)]


def test_rounds_that_drafted_beyond_k_are_not_reported():
    log = log_of(fed=[[1, 2], [3, 4, 5, 6]], put=[1, 2])
    assert log.rounds((3, 4, 0), k=2) is None


def result(*, arrived_s, round_s):
    ones = (1,) * len(round_s)
    return Result(
        output_ids=(1,) * (1 + len(round_s)),
        finish_reason="length",
        prefill_s=None,
        ttft_s=0.5,
        decode_s=sum(round_s),
        total_s=0.5 + sum(round_s),
        cpu_s=None,
        rounds=RoundLog(num_drafted=ones, num_accepted=ones, num_emitted=ones, round_s=round_s),
        arrived_s=arrived_s,
    )


def test_a_timeline_lays_requests_one_after_the_other():
    rounds = timeline(
        [result(arrived_s=0.0, round_s=(1.0, 2.0)), result(arrived_s=4.0, round_s=(0.25,))], k=3
    )
    assert rounds.at_s == pytest.approx((0.5, 1.5, 4.5))
    assert rounds.seconds == (1.0, 2.0, 0.25)
    assert rounds.num_speculative_tokens == (3, 3, 3)
    assert rounds.num_live == rounds.num_rows == (1, 1, 1)
