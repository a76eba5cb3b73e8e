"""Anything that cannot be measured is a stored result; everything else is still measured."""

import pytest
import torch

from specbench.errors import CompatibilityError, ModelError, UsageError
from specbench.records import FailureRecord
from specbench.report.document import build_document
from tests.bench.fake_runs import SETTINGS, measured
from tests.bench.fakes import REFUSED, FakeEngine, RecordingWatch
from tests.settings.flat_settings import changed


def failed_of(run):
    requests = [request for block in run.blocks for request in block.requests]
    return [request for request in requests if request.finish_reason == "failed"]


def names_of(run):
    """The drafters and Ks that were measured."""
    return {
        (c.key.draft.drafter, c.key.draft.k)
        for c in build_document(run).cells
        if c.metrics["num_failed"] == 0
    }


@pytest.mark.parametrize(
    "error",
    [
        CompatibilityError("7 token ids stand for different tokens"),
        ModelError("owner/small: cannot be loaded: no such file"),
        UsageError("the built-in decoder has no method 'eagle3' in this version"),
        torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_drafter_that_is_refused_is_a_stored_failure_and_the_others_run(tmp_path, error):
    watch = RecordingWatch()
    engine = FakeEngine(refuses={"bad": error})
    run = measured(tmp_path, engine=engine, watch=watch)

    reason = str(error).splitlines()[0]
    assert run.failures == (
        FailureRecord(pairing="big/bad", workload="", stage="load", reason=reason),
    )
    assert watch.warnings == [f"big/bad: {reason}"]
    assert names_of(run) == {("none", 0), ("good", 2), ("good", 4)}
    missing = {(key.draft.drafter, key.draft.k) for key in build_document(run).missing}
    assert missing == {("bad", 2), ("bad", 4)}


def test_nothing_is_measured_if_every_drafter_is_refused(tmp_path):
    refuses = {name: ModelError("no") for name in ("good", "bad")}
    run = measured(tmp_path, engine=FakeEngine(refuses=refuses))
    assert names_of(run) == set()
    assert len(run.failures) == 2


def test_a_drafter_that_never_fits_in_memory_is_a_failure(tmp_path):
    run = measured(tmp_path, engine=FakeEngine(room=0))
    assert [(f.pairing, f.stage, f.reason) for f in run.failures] == [
        ("big/good", "load", "CUDA out of memory"),
        ("big/bad", "load", "CUDA out of memory"),
    ]
    assert names_of(run) == set()


def test_a_k_that_does_not_fit_is_skipped_and_smaller_ones_run(tmp_path):
    def too_large(call):
        return torch.OutOfMemoryError("CUDA out of memory") if call.k == 4 else None

    settings = changed(SETTINGS, pairings=("big/good",), num_speculative_tokens=(1, 2, 4))
    # Loading a drafter tries the largest K, which works here.
    engine = FakeEngine()
    engine.breaks = lambda call: too_large(call) if not call.request.stop_at_eos else None
    run = measured(tmp_path, settings, engine=engine)

    assert [(f.pairing, f.stage, f.reason) for f in run.failures] == [
        ("big/good", "warm_up", "ngram K=4: CUDA out of memory")
    ]
    assert names_of(run) == {("none", 0), ("good", 1), ("good", 2)}


def test_an_error_without_text_is_named_by_its_type(tmp_path):
    engine = FakeEngine(refuses={"bad": torch.OutOfMemoryError()})
    run = measured(tmp_path, engine=engine)
    assert [failure.reason for failure in run.failures] == ["OutOfMemoryError"]


def test_a_target_without_a_working_baseline_is_a_single_failure(tmp_path):
    def no_sampling(call):
        hot = call.request.sampling.temperature > 0
        return ModelError("logits are not finite") if hot and call.k == 0 else None

    run = measured(
        tmp_path,
        changed(SETTINGS, temperatures=(1.0,)),
        engine=FakeEngine(breaks=no_sampling),
    )
    assert [(f.pairing, f.stage) for f in run.failures] == [("big", "warm_up")]
    assert run.blocks == ()
    assert run.is_failed


def test_a_turn_that_fails_fails_its_conversation_and_no_other(tmp_path):
    def second_turn_at_4(call):
        is_measured = not call.request.stop_at_eos and "Two" in call.text
        return torch.OutOfMemoryError("out of memory") if is_measured and call.k == 4 else None

    run = measured(
        tmp_path, SETTINGS, [["One", "Two", "Three"], "Bye"], FakeEngine(breaks=second_turn_at_4)
    )

    failed = failed_of(run)
    assert {(r.prompt_id, r.error) for r in failed} == {("p0", "out of memory")}
    assert [r.turn for r in failed] == [0, 1, 2] * 2  # both drafters at K = 4
    assert all(r.output_ids == () and r.decode_s is None and r.rounds is None for r in failed)
    (block,) = [block for block in run.blocks if block.prompt_id == "p0"]
    turns = {}
    for request in block.requests:
        turns.setdefault(request.cell_id, []).append(request.turn)
    assert all(seen == [0, 1, 2] for seen in turns.values())


def test_a_context_too_short_for_every_prompt_fails_the_target_once(tmp_path):
    run = measured(tmp_path, engine=FakeEngine(context=20))
    (failure,) = run.failures
    assert (failure.pairing, failure.stage) == ("big", "warm_up")
    assert "tokens of 20" in failure.reason
    assert run.blocks == ()


def test_a_second_turn_that_the_template_refuses_fails_by_name(tmp_path):
    run = measured(tmp_path, SETTINGS, [["Hello", REFUSED]])
    assert {request.error.split(":")[0] for request in failed_of(run)} == {"own.jsonl, prompt p0"}


def test_an_internal_error_in_the_engine_is_raised(tmp_path):
    engine = FakeEngine(breaks=lambda _: RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        measured(tmp_path, engine=engine)
