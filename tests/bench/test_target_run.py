import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specbench.bench import limits, passes, target
from specbench.bench.budget import block_seconds
from specbench.bench.limits import count_launches
from specbench.bench.target import WARM_UP_TOKENS
from specbench.probes.device import HostCalls
from specbench.records import Kind, SpeedupVerdict
from specbench.report.document import build_document
from specbench.tracing.trace import trace_conversation
from tests.bench.fake_runs import (
    HALF,
    SETTINGS,
    SIX,
    TWELVE,
    cells_of,
    confirmed,
    explored,
    make_plan,
    measure,
    measured,
    with_rule,
    write_prompts,
)
from tests.bench.fakes import (
    ANSWER_TOKENS,
    Call,
    FakeClock,
    FakeEngine,
    FakeProtocolEngine,
    RecordingWatch,
)
from tests.settings.flat_settings import changed

EVERY_K = ("none 0", "good 2", "good 4", "bad 2", "bad 4")  # drafter and K


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("run"), SETTINGS, SIX)


def requests_of(run):
    return [request for block in run.blocks for request in block.requests]


def test_every_planned_block_is_stored_once_with_the_order_it_ran_in(tmp_path):
    plan = make_plan(tmp_path, SETTINGS, SIX)
    engine = FakeEngine()
    run = measure(plan, engine, tmp_path)

    assert run.is_complete
    planned = list(plan.explore_blocks())
    assert [block.block_id for block in explored(run)] == [block.id for block in planned]
    for block, stored in zip(planned, explored(run), strict=True):
        assert list(stored.order) == [cell.key.id for cell in block.order(SETTINGS.seed)]
        assert [request.cell_id for request in stored.requests] == list(stored.order)


def test_another_seed_gives_another_block_order(tmp_path):
    orders = []
    for seed in (0, 0, 1):
        root = tmp_path / str(len(orders))
        root.mkdir()
        run = measured(root, changed(SETTINGS, seed=seed), SIX)
        orders.append({block.prompt_id: block.order for block in run.blocks})
    assert orders[0] == orders[1] != orders[2]


def test_warming_up_leaves_no_record(tmp_path):
    engine = FakeEngine()
    run = measured(tmp_path, engine=engine)

    warm_up = [call for call in engine.calls if call.request.max_new_tokens == WARM_UP_TOKENS]
    # Every shape of the plan was run before it counted ...
    shapes = {(c.drafter, c.k) for c in warm_up}
    assert shapes == {("none", 0), ("good", 2), ("good", 4), ("bad", 2), ("bad", 4)}
    first_measured = next(i for i, call in enumerate(engine.calls) if call not in warm_up)
    assert engine.calls[:first_measured] == warm_up
    # ... and nothing of it is stored: one record for each other call.
    assert len(requests_of(run)) + len(run.references) == len(engine.calls) - len(warm_up)
    assert {r.num_output_tokens for r in requests_of(run)} == {ANSWER_TOKENS}


def test_greedy_cells_emit_as_many_tokens_as_the_targets_own_answer(tmp_path):
    engine = FakeEngine()
    run = measured(tmp_path, changed(SETTINGS, max_new_tokens=100), engine=engine)

    assert [len(reference.output_ids) for reference in run.references] == [ANSWER_TOKENS] * 2
    assert {r.num_output_tokens for r in requests_of(run)} == {ANSWER_TOKENS}
    assert {r.finish_reason for r in requests_of(run)} == {"eos"}
    counted = [call for call in engine.calls if call.request.max_new_tokens == ANSWER_TOKENS]
    assert not any(call.request.stop_at_eos for call in counted)


def test_max_new_tokens_limits_every_cell_equally(tmp_path):
    run = measured(tmp_path, changed(SETTINGS, max_new_tokens=20))
    assert {r.num_output_tokens for r in requests_of(run)} == {20}
    assert {r.finish_reason for r in requests_of(run)} == {"length"}


def test_the_reference_text_is_decoded_once_per_run(tmp_path):
    run = measured(tmp_path, changed(SETTINGS, temperatures=(0.0, 1.0)))
    assert len(run.references) == 2


def test_sampling_gives_every_k_the_same_three_seeds(tmp_path):
    engine = FakeEngine()
    run = measured(tmp_path, changed(SETTINGS, temperatures=(1.0,)), engine=engine)

    seeds = defaultdict(set)
    for request in requests_of(run):
        if request.repeat < 3:
            seeds[request.prompt_id, request.repeat].add(request.seed)
    assert len(seeds) == 6
    assert all(len(prompt_seeds) == 1 for prompt_seeds in seeds.values())
    assert len(set.union(*seeds.values())) == 6
    sampled = [call for call in engine.calls if call.request.sampling.temperature == 1.0]
    assert {call.request.seed for call in sampled} - {0} >= set.union(*seeds.values())


def test_sampled_outputs_stop_at_the_end_of_text(tmp_path):
    engine = FakeEngine()
    measured(tmp_path, changed(SETTINGS, temperatures=(1.0,)), engine=engine)
    sampled = [c.request for c in engine.calls if c.request.sampling.temperature == 1.0]
    counted = [r for r in sampled if r.max_new_tokens != WARM_UP_TOKENS]
    assert all(r.stop_at_eos and r.max_new_tokens == 128 for r in counted)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_later_turn_contains_the_targets_own_response(tmp_path, temperature):
    engine = FakeEngine()
    run = measured(
        tmp_path, changed(SETTINGS, temperatures=(temperature,)), [["One", "Two"]], engine
    )

    answer = FakeEngine.tokenizer.text(run.references[0].output_ids)
    assert len(answer) == ANSWER_TOKENS - 1  # without its end token
    second = f"user: One\nassistant: {answer}\nuser: Two\n"
    assert {call.text for call in engine.calls} == {"user: One\n", second}
    assert [reference.turn for reference in run.references] == [0, 1]
    for block in run.blocks:
        turns = Counter((request.cell_id, request.turn) for request in block.requests)
        assert len(turns) == 10  # 5 cells of 2 turns
        assert set(turns.values()) == {1}
    assert {r.num_prompt_tokens for r in requests_of(run) if r.turn} == {len(second)}


def test_the_winner_is_confirmed_with_k_0_on_prompts_that_did_not_choose_it(tmp_path):
    run = measured(tmp_path, HALF, TWELVE)
    assert len(explored(run)) == len(confirmed(run)) == 6
    assert {block.repeat for block in explored(run)} == {0}
    assert {block.repeat for block in confirmed(run)} == {1}
    assert len({block.prompt_id for block in run.blocks}) == 12
    for block in confirmed(run):
        names = {cell_id.split("|")[0] + cell_id.split("|")[4] for cell_id in cells_of(block)}
        assert names == {"bigk0", "big/goodk4"}
    good, _ = build_document(run).decisions
    assert Kind.OTHER_PROMPTS() in good.reasons
    assert good.speedup.estimate == pytest.approx(40 / 11.2)


def test_without_other_prompts_nothing_is_confirmed_and_the_exploration_is_cross_fitted(run):
    assert len(explored(run)) == len(run.blocks) == 6
    (confirm,) = (extension for extension in run.extensions if extension.kind == "confirm")
    assert confirm.cell_ids == ("big/good|own.jsonl|builtin|ngram|k4|c1|t0|float32",)
    good, _ = build_document(run).decisions
    assert Kind.CROSS_FITTED() in good.reasons


@pytest.mark.parametrize(("num_prompts", "num_confirmed"), [(9, 0), (8, 0), (7, 5), (6, 6), (5, 5)])
def test_a_winner_is_confirmed_on_at_least_five_other_prompts(tmp_path, num_prompts, num_confirmed):
    run = measured(tmp_path, changed(SETTINGS, num_prompts=num_prompts), TWELVE)
    assert len(confirmed(run)) == num_confirmed
    prompts = {block.prompt_id for block in explored(run)}
    assert not prompts & {block.prompt_id for block in confirmed(run)}


@pytest.mark.parametrize("changes", [{"concurrency": (2,)}, {"adaptive": True}])
def test_what_cannot_be_cross_fitted_is_confirmed_on_the_same_prompts(tmp_path, changes):
    run = measured(tmp_path, changed(SETTINGS, **changes), SIX)
    again = confirmed(run)
    assert again
    assert {b.prompt_id for b in again} == {b.prompt_id for b in explored(run)}
    assert min(b.repeat for b in again) > max(b.repeat for b in explored(run))


def test_a_decision_quotes_the_cross_fit(run):
    good, bad = build_document(run).decisions
    # 40 tokens in 40 s; at K = 4 in 8 rounds of 1.4 s: 40 / 11.2.
    assert good.speedup.estimate == pytest.approx(40 / 11.2)
    assert (good.draft.k, good.speedup.estimate) == (4, pytest.approx(3.57, abs=0.005))
    # At K = 2 the bad drafter takes 40 rounds of 1.2 s, at K = 4 of 1.4 s.
    assert bad.verdict is SpeedupVerdict.NO_SPEEDUP
    assert (bad.leader.draft.k, bad.speedup.estimate) == (2, pytest.approx(0.83, abs=0.005))
    assert (bad.draft.method, bad.draft.k) == ("none", 0)


def test_a_single_k_needs_no_confirmation_run(tmp_path):
    run = measured(tmp_path, changed(SETTINGS, num_speculative_tokens=(4,)), SIX)
    assert confirmed(run) == []


def test_too_few_prompts_for_an_interval_skip_the_confirmation(tmp_path):
    run = measured(tmp_path, SETTINGS, SIX[:4])
    assert confirmed(run) == []
    assert run.is_complete


def test_memory_is_recorded_for_the_target_and_with_each_drafter(run):
    weights = {m.drafter: (m.weights_bytes, m.kv_bytes_per_token) for m in run.memory}
    assert weights == {"none": (1000, 64), "good": (1100, 72), "bad": (1100, 72)}
    assert all(m.process_peak_bytes > 0 for m in run.memory)
    assert all(m.peak_allocated_bytes is None for m in run.memory)  # no CUDA, and never 0


def test_an_engine_in_another_process_is_measured_by_its_responses(tmp_path):
    watch = RecordingWatch()
    run = measured(tmp_path, SETTINGS, SIX, FakeProtocolEngine(), watch=watch)
    assert (run.memory, run.forwards, run.limits) == ((), (), ())
    assert (run.failures, watch.warnings) == ((), [])
    good, bad = build_document(run).decisions
    assert (good.draft.k, good.speedup.estimate) == (4, pytest.approx(3.57, abs=0.005))
    assert bad.verdict is SpeedupVerdict.NO_SPEEDUP


def test_an_engine_that_offers_no_drafters_is_measured_without_a_forecast(tmp_path):
    watch, settings = RecordingWatch(), changed(SETTINGS, forecast=True)
    plan, engine = make_plan(tmp_path, settings, SIX), FakeProtocolEngine()
    run = measure(plan, engine, tmp_path, watch, trace=trace_conversation)
    assert run.traces == ()
    assert any(re.search("good: .*builtin", w) for w in watch.warnings)
    assert len(explored(run)) == 6


def test_the_target_runs_before_any_drafter_is_loaded(tmp_path):
    num_calls = {}

    class Loading(FakeEngine):
        def add_drafter(self, drafter):
            num_calls[drafter.name] = [call.drafter for call in self.calls]
            return super().add_drafter(drafter)

    measured(tmp_path, engine=Loading())
    assert set(num_calls["good"]) == {"none"}
    assert set(num_calls["bad"]) == {"none", "good"}


def test_a_round_is_compared_with_its_model_forwards(run):
    # All rounds after the first four: 12 if all drafts are kept, except at the end of an answer.
    counted = {
        (cost.cell_id.split("|")[0], cost.num_tokens - 1): cost.num_samples
        for cost in run.forwards
        if cost.role == "target"
    }
    assert counted == {
        ("big", 0): 12 - 4,
        ("big/good", 2): 12 - 4,
        ("big/good", 4): 40 // 5 - 4,
        ("big/bad", 2): 36 - 4,
        ("big/bad", 4): 40 - 4,
    }
    overheads = {
        (cell.key.draft.drafter, cell.key.draft.k): cell.metrics["overhead_ratio"]
        for cell in build_document(run).cells
    }
    # A target's forward takes 0.8 s by itself, a drafter's 0.05 s.
    assert overheads == pytest.approx(
        {
            ("none", 0): 1.0 / 0.8,
            ("good", 2): 1.2 / (0.8 + 2 * 0.05),
            ("good", 4): 1.4 / (0.8 + 4 * 0.05),
            ("bad", 2): 1.2 / (0.8 + 2 * 0.05),
            ("bad", 4): 1.4 / (0.8 + 4 * 0.05),
        }
    )


def test_a_few_blocks_are_enough_for_the_model_forwards(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "BLOCKS", limits.BLOCKS)
    prompts = [f"prompt {i}" for i in range(10)]
    run = measured(tmp_path, SETTINGS, prompts)
    counted = Counter(cost.cell_id for cost in run.forwards if cost.role == "target")
    assert set(counted.values()) == {8}


class SlowForwards(FakeEngine):
    """An engine whose forwards take 50 s to time, more than their part of a block."""

    def time_forwards(self, request, work):
        self.clock.now_s += 50.0
        return super().time_forwards(request, work)


def test_under_a_budget_model_forwards_take_at_most_a_share_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "BLOCKS", limits.BLOCKS)
    prompts = [f"prompt {i}" for i in range(40)]
    settings = changed(SETTINGS, budget_s=12_000.0, num_repeats=1)
    clock = FakeClock()
    run = measured(tmp_path, settings, prompts, SlowForwards(clock))
    counted = Counter(cost.cell_id for cost in run.forwards if cost.role == "target")
    ids = {cell_id for block in explored(run) for cell_id in cells_of(block)}
    assert set(counted) == ids  # every cell at least once
    served_s = sum(sum(block_seconds(block).values()) for block in explored(run))
    a_pass_s = 50.0 * len(ids)
    assert 50.0 * counted.total() <= 0.15 * served_s + a_pass_s


def test_drafters_loaded_in_turn_each_have_their_own_k_0(tmp_path):
    engine = FakeEngine(room=1)
    run = measured(tmp_path, SETTINGS, SIX, engine)

    assert run.failures == ()
    assert engine.loaded == []
    assert {m.drafter for m in run.memory} == {"none", "good", "bad"}
    kinds = {
        frozenset(cell_id.split("|")[0] for cell_id in cells_of(block)) for block in explored(run)
    }
    assert kinds == {frozenset({"big", "big/good"}), frozenset({"big", "big/bad"})}
    good, bad = build_document(run).decisions
    assert (good.draft.k, good.speedup.estimate) == (4, pytest.approx(3.57, abs=0.005))
    assert bad.verdict is SpeedupVerdict.NO_SPEEDUP
    assert run.is_complete


def test_progress_is_reported_for_every_block(tmp_path):
    watch = RecordingWatch()
    measured(tmp_path, HALF, TWELVE, watch=watch)
    assert [done for done, _, _ in watch.advances] == [*range(1, 7), *range(1, 7)]
    assert {total for _, total, _ in watch.advances} == {6}
    assert watch.stages[:2] == ["big: warming up", "big: measuring own.jsonl"]
    assert watch.stages[-1].startswith("big: measuring the winners again own.jsonl")
    assert watch.warnings == []


def test_the_text_of_one_reference_per_workload_is_stored_in_pieces(run):
    references = [reference for reference in run.references if reference.pieces]
    assert [(r.workload, r.prompt_id) for r in references] == [
        (run.references[0].workload, run.references[0].prompt_id)
    ]
    (first,) = references
    assert len(first.pieces) == len(first.output_ids)
    assert "".join(first.pieces) == FakeEngine.tokenizer.text(first.output_ids)


@dataclass
class SlowedEngine(FakeEngine):
    """A profiler that has run once makes everything after it twice as slow.

    A round starts 3 kernels and waits once, a prefill starts 50.
    """

    profiled: list[str] = field(default_factory=list)  # drafter and K
    breaks_profile: Callable[[Call], BaseException | None] = lambda _: None
    num_rounds: int = 0

    def generate(self, request, work):
        result = super().generate(request, work)
        self.num_rounds = len(result.rounds)
        return result

    def count(self, work):
        work()
        self.profiled.append(f"{self.calls[-1].drafter} {self.calls[-1].k}")
        if error := self.breaks_profile(self.calls[-1]):
            raise error
        return HostCalls(50 + 3 * self.num_rounds, graph_launches=0, syncs=self.num_rounds)

    def _slowness(self, call):
        return super()._slowness(call) * (2 if self.profiled else 1)


@pytest.fixture
def on_gpu(tmp_path, monkeypatch):
    """Measures two workloads in a run that names a GPU, or the rest of them."""
    monkeypatch.setattr(passes, "copy_bandwidth", lambda *_: 1e12)
    names = tuple(write_prompts(tmp_path / f"{name}.jsonl", TWELVE) for name in ("code", "chat"))

    def run(engine, device="cuda:0"):
        counting = partial(count_launches, count=engine.count)
        monkeypatch.setattr(target, "count_launches", counting)
        return measured(tmp_path, changed(HALF, workloads=names), engine=engine, device=device)

    return run


def launches(run):
    """Figures by drafter and K, over all workloads."""
    counts = defaultdict(list)
    for cell in build_document(run).cells:
        draft = cell.key.draft
        counts[f"{draft.drafter} {draft.k}"].append(cell.metrics.get("launches_per_round"))
    return {draft: tuple(counts) for draft, counts in counts.items()}


def test_a_profiler_does_not_slow_measured_requests(on_gpu):
    engine = SlowedEngine()
    run = on_gpu(engine)

    assert confirmed(run)
    for request in requests_of(run):
        k = max(request.rounds.num_drafted)
        assert max(request.rounds.round_s) == pytest.approx(1 + 0.1 * k)
    # Two profiles, a short and a longer one, whatever the number of workloads.
    assert Counter(engine.profiled) == dict.fromkeys(EVERY_K, 2)
    assert launches(run) == dict.fromkeys(EVERY_K, (3.0, 3.0))


def test_a_run_on_a_cpu_is_not_profiled(on_gpu):
    engine = SlowedEngine()
    run = on_gpu(engine, device="cpu")
    assert run.is_complete
    assert engine.profiled == []
    assert launches(run) == dict.fromkeys(EVERY_K, (None, None))


def test_unloaded_drafters_are_profiled_after_all_measurements(on_gpu):
    engine = SlowedEngine(room=1)
    run = on_gpu(engine)

    assert all(max(r.rounds.round_s) < 1.5 for r in requests_of(run))
    assert launches(run) == dict.fromkeys(EVERY_K, (3.0, 3.0))
    assert engine.loaded == []


def test_a_run_stopped_while_it_profiles_keeps_what_is_stored_and_profiles_the_rest(on_gpu):
    def stop(call):
        return KeyboardInterrupt() if (call.drafter, call.k) == ("bad", 2) else None

    first, second, third = (SlowedEngine() for _ in range(3))
    first.breaks_profile = stop
    with pytest.raises(KeyboardInterrupt):
        on_gpu(first)
    run = on_gpu(second)

    assert run.is_complete
    assert max(max(r.rounds.round_s) for r in requests_of(run)) < 1.5  # none came after a profile
    assert not set(first.profiled[:-1]) & set(second.profiled)
    assert launches(run) == dict.fromkeys(EVERY_K, (3.0, 3.0))
    whole = on_gpu(third)  # nothing is left to measure or to profile
    assert (whole.blocks, whole.limits, third.profiled) == (run.blocks, run.limits, [])


def test_a_failing_profiler_loses_only_the_launch_counts(on_gpu):
    engine = SlowedEngine(breaks_profile=lambda _: AssertionError("CUPTI"))
    run = on_gpu(engine)
    assert run.is_complete
    assert run.failures == ()
    assert launches(run) == dict.fromkeys(EVERY_K, (None, None))


@dataclass
class NearTies(FakeEngine):
    """Some rounds of K = 4 emit "Z" in the fourth place; after any text, "Z" is second by 0.25."""

    looked_at: list[str] = field(default_factory=list)
    num_decoded: set[int] = field(default_factory=set)  # before a look
    changes: Callable[[Call], bool] = lambda call: call.k == 4
    runner = SimpleNamespace(dtype=torch.bfloat16)

    def drafting(self, _):
        raise AssertionError

    def generate(self, request, work):
        result, call = super().generate(request, work), Call(request, work.drafter, work.k)
        if self.changes(call):
            ids = result.output_ids
            result = replace(result, output_ids=(*ids[:3], ord("Z"), *ids[4:]))
        return result

    def next_logits(self, runner, tokens):
        assert runner is self.runner
        self.looked_at.append(bytes(tokens).decode())
        self.num_decoded.add(len(self.calls))
        logits_V = torch.zeros(256)
        logits_V[[ord("d"), ord("Z")]] = torch.tensor([40.0, 39.75])
        return logits_V


@pytest.fixture
def examined(tmp_path, monkeypatch):
    """Measures one workload in bfloat16 or another dtype, or the rest of it."""

    def run(engine, dtype="bfloat16"):
        monkeypatch.setattr(target, "next_logits", engine.next_logits)
        return measure(make_plan(tmp_path, HALF, TWELVE, dtype=dtype), engine, tmp_path)

    return run


def test_logits_are_compared_at_the_first_half_precision_difference(examined):
    engine = NearTies()
    run = examined(engine)

    actual = {(d.cell_id.split("|")[0], d.position, d.gap, d.spacing) for d in run.differences}
    assert actual == {("big/good", 3, 0.25, 0.25), ("big/bad", 3, 0.25, 0.25)}
    # Of six prompts that differ, three per drafter and K; the text is the prompt and what agrees.
    assert sorted(Counter(engine.looked_at).values()) == [2, 2, 2]
    assert all(text.endswith("\nabc") for text in engine.looked_at)
    cells = [cell for cell in build_document(run).cells if cell.key.draft.k == 4]
    warnings = [w for cell in cells for w in cell.warnings if w.kind is Kind.NEAR_TIES]
    worst = Kind.FIRST_DIFFERENCES(outputs=3, gap=0.25, steps=1.0, dtype="bfloat16")
    assert [warning.figures["worst"] for warning in warnings] == [(worst,)] * 2


def test_logits_are_compared_once_after_everything_is_measured(examined):
    engine, resumed = NearTies(), NearTies()
    run = examined(engine)
    assert confirmed(run)
    assert engine.num_decoded == {len(engine.calls)}
    whole = examined(resumed)
    assert (whole.blocks, whole.differences, resumed.looked_at) == (run.blocks, run.differences, [])


@pytest.mark.parametrize(
    ("dtype", "changes"), [("float32", lambda call: call.k == 4), ("bfloat16", lambda _: False)]
)
def test_logits_are_not_compared_in_float32_or_if_outputs_are_equal(examined, dtype, changes):
    engine = NearTies(changes=changes)
    run = examined(engine, dtype)
    assert (run.differences, engine.looked_at) == ((), [])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), AssertionError()])
def test_a_target_that_refuses_the_comparison_keeps_what_is_measured(examined, error):
    class Refusing(NearTies):
        def next_logits(self, *_):
            raise error

    run = examined(Refusing())
    assert run.is_complete
    assert (run.differences, run.failures) == ((), ())
    assert {cell.key.draft.k for cell in build_document(run).cells} == {0, 2, 4}


def test_lossy_cells_stop_at_their_own_end_of_text(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    settings = changed(SETTINGS, num_speculative_tokens=(2,), max_new_tokens=99)
    run = measure(with_rule(make_plan(tmp_path, settings), "bad"), engine, tmp_path)

    assert not run.failures
    calls = {
        (call.drafter, call.request.max_new_tokens, call.request.stop_at_eos)
        for call in engine.calls
    }
    assert ("good", ANSWER_TOKENS, False) in calls
    assert ("none", ANSWER_TOKENS, False) in calls
    assert ("bad", 99, True) in calls
    assert ("bad", ANSWER_TOKENS, False) not in calls
    assert {key.draft.drafter for key in run.run.keys if key.draft.lossy == "typical"} == {"bad"}
