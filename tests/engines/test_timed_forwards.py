"""Bare forwards measured between rounds leave the rounds as they are."""

from dataclasses import replace

import pytest
import torch

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Load, RoundForward, Work
from specbench.engines.model_pool import ModelPool
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import DrafterSpec
from specbench.records import Request, Sampling
from specbench.shipped import shipped

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


def test_a_text_checked_in_one_forward_keeps_the_rows_position(target):
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


def test_a_repeated_pass_keeps_only_the_samples_of_its_last_run(builtin, monkeypatch):
    """As where the first one captured."""
    serve = builtin._serve

    def twice(requests, work, load, policy):
        serve(requests, work, load, policy)
        return serve(requests, work, load, policy)

    monkeypatch.setattr(builtin, "_serve", twice)
    timed = builtin.time_forwards(REQUEST, PLAIN)
    (seconds,) = timed.forward_s.values()
    assert len(seconds) == len(timed.round_s) == REQUEST.max_new_tokens - 1


def test_a_context_longer_than_the_rows_uses_their_last_slots(builtin):
    builtin.generate(REQUEST, PLAIN)
    cache = builtin._runner.cache
    assert builtin.forward_seconds("none", RoundForward(role="target", num_tokens=4, times=1), 999)
    assert builtin._runner.cache is cache  # graphs are bound to it


HEADS = {
    "eagle": [(5, 1, "observe"), (1, 3, "draft")],
    "eagle-tree": [(5, 1, "observe"), (4, 3, "draft")],
    "eagle3": [(5, 1, "observe"), (1, 3, "draft")],
    "medusa": [(1, 1, "4 of 4 heads")],
    "medusa-tree": [(1, 1, "4 of 4 heads")],
}
K = 4


@pytest.fixture(scope="module")
def engine() -> BuiltinEngine:
    """The embedded target with its heads, which it follows often."""
    pairings = load_pairings(shipped("pairings.yaml")).select([f"demo/{name}" for name in HEADS])
    engine = BuiltinEngine(pairings[0].target, ModelPool(torch.device("cpu")))
    for pairing in pairings:
        engine.add_drafter(pairing.drafter)
    return engine


def request(engine: BuiltinEngine) -> Request:
    ids = engine.tokenizer.ids("def add(first, second):\n    return first +")
    return Request(
        prompt_ids=tuple(ids), max_new_tokens=40, sampling=Sampling(), seed=0, stop_at_eos=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_every_part_of_a_round_is_timed_and_has_its_bytes(engine: BuiltinEngine, name: str) -> None:
    engine.generate(request(engine), Work(drafter=name, method=name, k=K))
    target, *own = engine.forwards(name, K)

    assert [(f.num_tokens, f.times, f.part) for f in own] == HEADS[name]
    for forward in (target, *own):
        assert engine.forward_seconds(name, forward, 100) > 0
        assert engine.bytes_read(name, forward, 1, 100) > 0


@pytest.mark.sampled(one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_timing_forwards_does_not_change_what_is_decoded_next(
    engine: BuiltinEngine, name: str
) -> None:
    """Neither the text of three rows nor how many drafts each of their rounds keeps."""
    work, asked = Work(drafter=name, method=name, k=K), request(engine)
    all_asked = [replace(asked, prompt_ids=asked.prompt_ids[i:]) for i in range(3)]

    def decoded() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        results = engine.serve(all_asked, work, Load(concurrency=3)).results
        return [(r.output_ids, r.rounds.num_accepted) for r in results if r.rounds]

    before = decoded()
    assert len(before) == 3
    assert all(sum(num_accepted) > 0 for _, num_accepted in before)

    for context in (1, len(asked.prompt_ids) + 10, 300):
        for forward in engine.forwards(name, K):
            engine.forward_seconds(name, forward, context)

    assert decoded() == before


@pytest.mark.sampled(one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_rounds_keep_the_same_drafts_with_timed_forwards_between_them(
    engine: BuiltinEngine, name: str
) -> None:
    work, asked = Work(drafter=name, method=name, k=K), request(engine)
    alone = engine.generate(asked, work)
    timed = engine.time_forwards(asked, work)
    assert timed is not None
    assert alone.rounds is not None
    assert timed.result.rounds is not None
    assert timed.result.output_ids == alone.output_ids
    assert timed.result.rounds.num_accepted == alone.rounds.num_accepted
