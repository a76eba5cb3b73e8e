"""What is traced again, warned of once, and how many rounds a sweep would take."""

from dataclasses import replace

import pytest

from specbench.bench.forecasting import DraftedCells, timed_cells
from tests.bench.fake_runs import make_plan, measure, write_prompts
from tests.bench.fake_traces import fake_trace
from tests.bench.fakes import FakeEngine, Interrupted, RecordingWatch
from tests.bench.test_forecasting import FORECAST, SIX
from tests.bench.test_lossy import with_rule
from tests.settings.flat_settings import changed


def test_a_lossy_drafter_has_one_warning_that_it_is_not_forecast(tmp_path):
    settings = changed(FORECAST, temperatures=(0.5, 1.0))
    watch = RecordingWatch()
    plan = with_rule(make_plan(tmp_path, settings, SIX), "bad")
    stored = measure(plan, FakeEngine(), tmp_path, watch=watch)
    assert sum("cannot be forecast" in text for text in watch.warnings) == 1
    assert {t.drafter for t in stored.traces} == {"good"}


def test_a_tree_of_which_a_kill_left_the_shallow_traces_is_traced_again(tmp_path):
    """A record a K, the deepest last."""

    def tree(engine, drafter, method, texts, ks, drafting="own"):
        ks = tuple(ks)
        deeper = (fake_trace(engine, drafter, method, texts, (k,), drafting=drafting) for k in ks)
        return tuple(replace(t, is_chain=False) for own in deeper for t in own)

    calls = []

    def shallow_then_killed(engine, drafter, method, texts, ks, drafting="own"):
        calls.append(drafter)
        if len(calls) > 1:
            raise Interrupted
        return tree(engine, drafter, method, texts, tuple(ks)[:1], drafting=drafting)

    plan = make_plan(tmp_path, FORECAST, SIX)
    with pytest.raises(Interrupted):
        measure(plan, FakeEngine(), tmp_path, trace=shallow_then_killed)
    after = measure(plan, FakeEngine(), tmp_path, trace=tree)
    cut = [
        t.num_speculative_tokens
        for t in after.traces
        if (t.drafter, t.prompt_id) == (after.traces[0].drafter, after.traces[0].prompt_id)
    ]
    assert set(cut) == {1, 2, 4}


def test_rounds_of_a_sweep_are_scaled_by_each_workloads_traced_share(tmp_path):
    """A budget may have ended tracing: three prompts of six stand for all of them."""
    files = tuple(
        write_prompts(tmp_path / f"{name}.jsonl", [f"{name} {i}" for i in range(6)])
        for name in ("whole", "half")
    )
    plan = make_plan(tmp_path, changed(FORECAST, workloads=files, num_repeats=2))
    stored = measure(plan, FakeEngine(), tmp_path)
    questions = []
    for condition, num_prompts in zip(plan.conditions, (6, 3), strict=True):
        cells = tuple(c for c in plan.cells(condition) if c.drafter == "good")
        own = [t for t in stored.traces if t.drafter == "good" and t.workload == condition.workload]
        questions.append(DraftedCells(plan.pairings[0], condition, cells, own[:num_prompts]))
    rounds = {0: 40, 1: 20, 2: 14, 4: 8}  # of an answer
    found = {c.cell.key.draft.k: c.num_rounds for c in timed_cells(plan, questions)}
    # Each workload's sweep decodes six prompts twice, however many were traced.
    assert found == {k: 2 * (6 + 6) * n for k, n in rounds.items()}


def test_a_drafter_is_traced_as_deep_as_it_can_draft(tmp_path):
    asked = []

    def noted(engine, drafter, method, texts, ks, drafting="own"):
        asked.append((drafter, tuple(ks)))
        return fake_trace(engine, drafter, method, texts, ks, drafting=drafting)

    for is_default_range in (True, False):
        asked.clear()
        settings = changed(FORECAST, is_default_range=is_default_range)
        folder = tmp_path / str(is_default_range)
        folder.mkdir()
        plan = make_plan(folder, settings, SIX, depths={"good": 2})
        measure(plan, FakeEngine(), folder, trace=noted)
        assert set(asked) == {("good", (1, 2)), ("bad", (1, 2, 4))}
