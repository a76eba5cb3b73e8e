"""A forecast picks what is measured: the fake engine's `good` drafter gains, `bad` never does.

A step takes 1 s, a round at K 1 + 0.1 K, and an answer has 40 tokens after the first.
"""

from dataclasses import replace

import pytest
import torch

from specbench.bench import forecasting, round_costs
from specbench.bench.forecasting import DraftedCells, timed_cells
from specbench.bench.round_costs import RoundCosts
from specbench.errors import ModelError, UsageError
from specbench.records import EngineCost, ForecastRecord, SpeedupVerdict, TraceRecord
from specbench.report.document import build_document
from specbench.runs import StoredRun, load_run
from specbench.runs.reader import read_records
from tests.bench.fake_runs import (
    RUN_ID,
    SETTINGS,
    fake_trace,
    make_plan,
    measure,
    with_rule,
    write_prompts,
)
from tests.bench.fakes import FakeEngine, Interrupted, RecordingWatch
from tests.settings.flat_settings import changed

FORECAST = changed(SETTINGS, forecast=True, num_speculative_tokens=(0, 1, 2, 4))
SIX = [f"prompt {i}" for i in range(6)]
ROUNDS = {0: 40, 1: 20, 2: 14, 4: 8}  # that `good` takes for an answer


def run(folder, settings=FORECAST, prompts=SIX, **options) -> StoredRun:
    plan = make_plan(folder, settings, prompts)
    return measure(plan, FakeEngine(), folder, **options)


def forecast_of(stored: StoredRun, pairing: str) -> ForecastRecord:
    (forecast,) = (f for f in stored.forecasts if f.key.pairing == pairing)
    return forecast


def cells_run(stored: StoredRun) -> set[tuple[str, int]]:
    ran = {cell_id for block in stored.blocks for cell_id in block.order}
    keys = (plan.key for plan in stored.run.cells if plan.key.id in ran)
    return {(key.draft.drafter, key.draft.k) for key in keys}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> StoredRun:
    return run(tmp_path_factory.mktemp("whole"))


def test_forecast_speedups_equal_those_of_the_fake_engine(whole):
    good = forecast_of(whole, "big/good")
    assert good.best == 4
    actual = {p.num_speculative_tokens: p.speedup.estimate for p in good.points if p.speedup}
    expected = {k: 40 / (ROUNDS[k] * (1 + 0.1 * k)) for k in (1, 2, 4)}
    assert actual == pytest.approx(expected)
    bad = forecast_of(whole, "big/bad")
    assert bad.best == 0
    assert [p.speedup.estimate for p in bad.points[1:]] == pytest.approx(
        [1 / 1.1, 1 / 1.2, 1 / 1.4]
    )


def test_only_the_best_k_of_each_drafter_is_measured_and_k_0(whole):
    assert cells_run(whole) == {("none", 0), ("good", 4), ("bad", 1)}
    assert whole.is_complete
    document = build_document(whole)
    assert document.missing == ()
    helped, hurt = document.decisions
    assert helped.draft.k == 4
    assert helped.speedup.estimate == pytest.approx(40 / (8 * 1.4))
    assert hurt.verdict is SpeedupVerdict.NO_SPEEDUP


def test_forecast_length_and_speedup_match_the_measurement_exactly(whole):
    (good, _) = build_document(whole).forecasts
    measured = good.measured[4]
    assert set(good.measured) == {4}
    assert measured.length_error == pytest.approx(0, abs=1e-9)
    assert measured.speedup_error == pytest.approx(0, abs=1e-9)


def test_forecasts_are_on_disk_before_anything_is_measured(whole):
    kinds = [type(record).__name__ for record in read_records(whole.folder).records]
    assert kinds.index("TraceRecord") < kinds.index("RoundCost") < kinds.index("ForecastRecord")
    last_forecast = len(kinds) - 1 - kinds[::-1].index("ForecastRecord")
    assert last_forecast < kinds.index("BlockRecord")


def test_round_costs_are_timed_at_every_k_alternately(whole):
    costs = {(c.num_speculative_tokens, c.cell_ids): c for c in whole.round_costs}
    assert len(costs) == 1 + 3 + 3
    for cost in costs.values():
        assert cost.seconds == pytest.approx(1 + 0.1 * cost.num_speculative_tokens)
        assert len(cost.visits_s) == 6
        assert cost.context == 15 + 12  # the prompt as the template has it, half of a repetition


def test_every_prompt_is_traced_once_for_each_drafter(whole):
    assert len(whole.traces) == 6 * 2
    assert forecast_of(whole, "big/good").trace_s == pytest.approx(6 * 0.25)


def test_all_ten_prompts_are_traced_and_six_measured(tmp_path):
    prompts = [f"prompt {i}" for i in range(12)]
    stored = run(tmp_path, prompts=prompts)
    assert len({trace.prompt_id for trace in stored.traces}) == 10
    assert len({block.prompt_id for block in stored.blocks}) == 6


def test_every_requested_prompt_is_measured(tmp_path):
    prompts = [f"prompt {i}" for i in range(9)]
    stored = run(tmp_path, changed(FORECAST, num_prompts=8), prompts)
    assert len({block.prompt_id for block in stored.blocks}) == 8


@pytest.mark.parametrize("kind", [UsageError, ModelError, torch.OutOfMemoryError])
def test_a_drafter_that_cannot_be_traced_is_measured_at_every_k(tmp_path, kind):
    def only_good(engine, drafter, method, texts, ks, drafting="own"):
        if drafter == "bad":
            raise kind("bad: cannot be forecast")
        return fake_trace(engine, drafter, method, texts, ks, drafting=drafting)

    watch = RecordingWatch()
    stored = run(tmp_path, trace=only_good, watch=watch)
    assert cells_run(stored) == {("none", 0), ("good", 4), ("bad", 1), ("bad", 2), ("bad", 4)}
    assert watch.warnings.count("bad: cannot be forecast") == 1


def test_a_winner_is_confirmed_on_prompts_that_were_not_traced_if_there_are_enough(tmp_path):
    def only_bad(engine, drafter, method, texts, ks, drafting="own"):
        if drafter == "good":
            raise UsageError("good: cannot be forecast")
        return fake_trace(engine, drafter, method, texts, ks, drafting=drafting)

    stored = run(tmp_path, prompts=[f"prompt {i}" for i in range(20)], trace=only_bad)
    again = {block.prompt_id for block in stored.blocks if block.purpose == "confirm"}
    assert len(again) == 6
    assert again.isdisjoint(trace.prompt_id for trace in stored.traces)


def test_a_refusal_at_one_temperature_does_not_affect_another(tmp_path):
    def only_greedy(engine, drafter, method, texts, ks, drafting="own"):
        if drafter == "bad" and texts[0].sampling.temperature:
            raise UsageError("bad: forecast it at temperature 0")
        return fake_trace(engine, drafter, method, texts, ks, drafting=drafting)

    for order in ((0.0, 1.0), (1.0, 0.0)):
        watch = RecordingWatch()
        settings = changed(FORECAST, temperatures=order)
        folder = tmp_path / f"{order[0]:g}"
        folder.mkdir()
        stored = run(folder, settings, trace=only_greedy, watch=watch)
        traced = [t.prompt_id for t in stored.traces if t.drafter == "bad"]
        assert len(set(traced)) == 6, order
        assert {t.temperature for t in stored.traces if t.drafter == "bad"} == {0.0}
        assert watch.warnings.count("bad: forecast it at temperature 0") == 1


@pytest.fixture(scope="module")
def exhaustive(tmp_path_factory) -> StoredRun:
    return run(tmp_path_factory.mktemp("exhaustive"), changed(FORECAST, exhaustive=True))


def test_validating_a_forecast_measures_every_k(exhaustive, whole):
    assert exhaustive.is_complete
    ks = {("none", 0)} | {(name, k) for name in ("good", "bad") for k in (1, 2, 4)}
    assert cells_run(exhaustive) == ks
    for name in ("big/good", "big/bad"):
        mine, other = forecast_of(exhaustive, name), forecast_of(whole, name)
        assert (mine.points, mine.to_measure) == (other.points, other.to_measure)
    (good, _) = build_document(exhaustive).forecasts
    assert set(good.measured) == {1, 2, 4}
    assert [point.speedup_error for point in good.measured.values()] == pytest.approx([0] * 3)


def test_with_validation_round_costs_are_measured_between_blocks(exhaustive):
    kinds = [type(record).__name__ for record in read_records(exhaustive.folder).records]
    assert kinds.index("BlockRecord") < kinds.index("RoundCost") < kinds.index("ForecastRecord")


@pytest.mark.parametrize(
    ("share", "repeats", "expected"), [(0.06, 2, [*range(1, 13)]), (0.0, 1, [6] * 6)]
)
def test_timing_repetitions_are_spread_between_blocks_within_their_share(
    tmp_path, monkeypatch, share, repeats, expected
):
    """Blocks take seconds of the fake clock, repetitions none; missing repetitions follow at the
    end.

    Costs are known after six repetitions here, but a machine's pace may change later in the sweep.
    """
    visit, num_blocks = RoundCosts.repeat, []

    def noted(self):
        num_blocks.append(len(load_run(RUN_ID, tmp_path).blocks))
        visit(self)

    monkeypatch.setattr(RoundCosts, "repeat", noted)
    monkeypatch.setattr(forecasting, "TIME_SHARE", share)
    monkeypatch.setattr(round_costs, "MOST_REPETITIONS", 8)
    run(tmp_path, changed(FORECAST, exhaustive=True, num_repeats=repeats))
    assert num_blocks == expected


class Stop(KeyboardInterrupt):
    """A kill at the place that a test names."""


@pytest.mark.parametrize("num_traces", [1, 5, 12])
def test_a_run_killed_while_tracing_resumes_at_the_next_trace(tmp_path, whole, num_traces):
    calls = []

    def until_killed(*given, **named):
        if len(calls) == num_traces - 1:
            raise Stop
        calls.append(given)
        return fake_trace(*given, **named)

    with pytest.raises(Stop):
        run(tmp_path, trace=until_killed)
    assert len(load_run(RUN_ID, tmp_path).traces) == num_traces - 1
    assert_the_same(run(tmp_path), whole)


@pytest.mark.parametrize("kind", ["RoundCost", "ForecastRecord", "BlockRecord"])
def test_a_killed_forecast_run_resumes_to_the_same_result(tmp_path, whole, kind, monkeypatch):
    from specbench.runs.store import RunStore

    append = RunStore.append

    def append_and_stop(self, record):
        append(self, record)
        if type(record).__name__ == kind:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "append", append_and_stop)
        with pytest.raises(Stop):
            run(tmp_path)
    assert_the_same(run(tmp_path), whole)


def assert_the_same(resumed: StoredRun, whole: StoredRun) -> None:
    assert resumed.is_complete
    assert [block.block_id for block in resumed.blocks] == [b.block_id for b in whole.blocks]
    assert {place(trace) for trace in resumed.traces} == {place(trace) for trace in whole.traces}
    assert len(resumed.traces) == len(whole.traces)
    points = [forecast.points for forecast in resumed.forecasts]
    assert points == [forecast.points for forecast in whole.forecasts]


def place(trace: TraceRecord) -> tuple[str, str]:
    return trace.drafter, trace.prompt_id


def test_a_budget_ends_tracing_after_enough_prompts_and_is_kept(tmp_path):
    prompts = [f"prompt {i}" for i in range(40)]
    engine = FakeEngine()

    def trace_slowly(*given, **named):
        engine.clock.now_s += 10
        return fake_trace(*given, **named)

    plan = make_plan(tmp_path, changed(FORECAST, budget_s=2_000.0), prompts)
    stored = measure(plan, engine, tmp_path, trace=trace_slowly)
    traced = {trace.prompt_id for trace in stored.traces}
    assert 5 <= len(traced) < 40
    assert stored.blocks
    assert cells_run(stored) == {("none", 0), ("good", 4), ("bad", 1)}
    assert engine.clock.now_s < 2_000 + 200  # the block under way is finished


def test_tracing_leaves_half_of_a_small_budget_for_measuring(tmp_path):
    engine = FakeEngine()

    def trace_very_slowly(*given, **named):
        engine.clock.now_s += 250
        return fake_trace(*given, **named)

    plan = make_plan(tmp_path, changed(FORECAST, budget_s=2_000.0), SIX)
    stored = measure(plan, engine, tmp_path, trace=trace_very_slowly)
    assert len({trace.prompt_id for trace in stored.traces}) == 2  # 1,000 of 1,600 s of exploring
    assert cells_run(stored) == {("none", 0), ("good", 4), ("bad", 1)}


def test_each_concurrency_is_forecast_by_its_own_costs(tmp_path):
    settings = changed(FORECAST, concurrency=(1, 2), num_repeats=1, num_prompts=6)
    stored = run(tmp_path, settings)
    assert {cost.num_rows for cost in stored.round_costs} == {1, 2}
    assert len(stored.traces) == 6 * 2  # one text for both
    assert {f.key.condition.concurrency for f in stored.forecasts} == {1, 2}


def test_a_lossy_drafter_has_one_warning_that_it_is_not_forecast(tmp_path):
    settings = changed(FORECAST, temperatures=(0.5, 1.0))
    watch = RecordingWatch()
    plan = with_rule(make_plan(tmp_path, settings, SIX), "bad")
    stored = measure(plan, FakeEngine(), tmp_path, watch=watch)
    assert sum("cannot be forecast" in text for text in watch.warnings) == 1
    assert {t.drafter for t in stored.traces} == {"good"}


def test_a_tree_of_which_a_kill_left_the_shallow_traces_is_traced_again(tmp_path):
    """A record per K, the deepest last."""

    def tree(engine, drafter, method, texts, ks, drafting="own"):
        ks = tuple(ks)
        deeper = (fake_trace(engine, drafter, method, texts, (k,), drafting=drafting) for k in ks)
        return tuple(replace(t, is_chain=False) for traces in deeper for t in traces)

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
    """A budget may have ended tracing: three prompts of six represent all of them."""
    files = tuple(
        write_prompts(tmp_path / f"{name}.jsonl", [f"{name} {i}" for i in range(6)])
        for name in ("whole", "half")
    )
    plan = make_plan(tmp_path, changed(FORECAST, workloads=files, num_repeats=2))
    stored = measure(plan, FakeEngine(), tmp_path)
    questions = []
    for condition, num_prompts in zip(plan.conditions, (6, 3), strict=True):
        cells = tuple(c for c in plan.cells(condition) if c.drafter == "good")
        traces = [
            t for t in stored.traces if t.drafter == "good" and t.workload == condition.workload
        ]
        questions.append(DraftedCells(plan.pairings[0], condition, cells, traces[:num_prompts]))
    actual = {c.cell.key.draft.k: c.num_rounds for c in timed_cells(plan, questions)}
    # Each workload's sweep decodes six prompts twice, however many were traced.
    assert actual == {k: 2 * (6 + 6) * n for k, n in ROUNDS.items()}


def test_a_drafter_is_traced_as_deep_as_it_can_draft(tmp_path):
    calls = []

    def noted(engine, drafter, method, texts, ks, drafting="own"):
        calls.append((drafter, tuple(ks)))
        return fake_trace(engine, drafter, method, texts, ks, drafting=drafting)

    for is_default_range in (True, False):
        calls.clear()
        settings = changed(FORECAST, is_default_range=is_default_range)
        folder = tmp_path / str(is_default_range)
        folder.mkdir()
        plan = make_plan(folder, settings, SIX, depths={"good": 2})
        measure(plan, FakeEngine(), folder, trace=noted)
        assert set(calls) == {("good", (1, 2)), ("bad", (1, 2, 4))}


def cost(k: int, seconds: float, engine: str = "vllm 0.32") -> EngineCost:
    return EngineCost(
        source="costs.csv",
        engine=engine,
        num_speculative_tokens=k,
        concurrency=1,
        cost=seconds,
        is_relative=False,
    )


def test_imported_step_times_give_a_forecast_without_measuring(tmp_path):
    """A round at K = 4 is expensive there: K = 2 is best, 40 tokens in 14 rounds of 1.1 steps."""
    theirs = [cost(0, 1.0), cost(2, 1.1), cost(4, 4.0)]
    settings = changed(FORECAST, costs=("costs.csv",), temperatures=(1.0,), num_repeats=1)
    stored = run(tmp_path, settings, costs=theirs)
    assert stored.blocks == ()
    assert stored.round_costs == ()
    good = forecast_of(stored, "big/good")
    assert [p.num_speculative_tokens for p in good.points] == [0, 2, 4]
    assert (good.best, good.costs_of) == (2, "vllm 0.32 (costs.csv)")
    assert good.acceptance_rule == "greedy_draft"
    assert {trace.drafting for trace in stored.traces} == {"greedy"}
    assert good.points[1].speedup.estimate == pytest.approx(40 / (14 * 1.1))
    document = build_document(stored)
    assert document.missing == ()
    assert document.decisions == ()
