"""Bare forwards measured between rounds leave the rounds as they are."""

from dataclasses import replace

import pytest
import torch

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import RoundForward, Work
from specbench.engines.model_pool import ModelPool
from specbench.inputs.pairing import DrafterSpec
from specbench.records import Request, Sampling

REQUEST = Request(
    prompt_ids=(40, 41, 42, 43), max_new_tokens=24, sampling=Sampling(), seed=0, stop_at_eos=False
)
PLAIN = Work(drafter="none", method="none", k=0)
DRAFTED = Work(drafter="draft", method="draft_model", k=3)


@pytest.fixture(scope="module")
def builtin(target) -> BuiltinEngine:
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    for drafter in target.drafters:
        engine.add_drafter(drafter)
    return engine


@pytest.mark.parametrize("work", [PLAIN, DRAFTED], ids=["plain", "drafted"])
def test_every_round_is_followed_by_each_of_its_forwards(builtin, work):
    timed = builtin.time_forwards(REQUEST, work)
    assert len(timed.round_s) == len(builtin.generate(REQUEST, work).rounds)
    assert {forward: len(seconds) for forward, seconds in timed.forward_s.items()} == {
        forward: forward.times * len(timed.round_s)
        for forward in builtin.forwards(work.drafter, work.k)
    }


@pytest.mark.parametrize("work", [PLAIN, DRAFTED], ids=["plain", "drafted"])
def test_rounds_decode_the_same_text_with_forwards_between_them(builtin, work):
    assert builtin.time_forwards(REQUEST, work).result.output_ids == (
        builtin.generate(REQUEST, work).output_ids
    )


def test_a_text_checked_at_once_does_not_hide_where_the_row_stands(target):
    drafter = DrafterSpec(
        name="said", method="previous_turn", parameters={"verify_prediction_first": True}
    )
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    engine.add_drafter(drafter)
    answer = engine.generate(REQUEST, PLAIN).output_ids
    said = replace(REQUEST, prediction_ids=answer[:12])
    work = Work(drafter="said", method="previous_turn", k=3)
    assert engine.generate(said, work).answer_check
    timed = engine.time_forwards(said, work)
    assert timed.result.output_ids == answer
    assert timed.result.answer_check is None


def test_a_pass_done_over_leaves_the_samples_of_its_last(builtin, monkeypatch):
    """As where the first one captured."""
    serve = builtin._serve

    def twice(requests, work, load, policy):
        serve(requests, work, load, policy)
        return serve(requests, work, load, policy)

    monkeypatch.setattr(builtin, "_serve", twice)
    timed = builtin.time_forwards(REQUEST, PLAIN)
    (seconds,) = timed.forward_s.values()
    assert len(seconds) == len(timed.round_s) == REQUEST.max_new_tokens - 1


def test_a_context_longer_than_the_rows_takes_their_last_slots(builtin):
    builtin.generate(REQUEST, PLAIN)
    cache = builtin._runner.cache
    assert builtin.forward_seconds("none", RoundForward(role="target", num_tokens=4, times=1), 999)
    assert builtin._runner.cache is cache  # graphs are bound to it
