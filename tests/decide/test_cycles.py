"""Decisions over cycles of a server's sessions: what they count, and how many more they need."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from specbench.decide.comparisons import side_by_side
from specbench.decide.recommend import choose, decide
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.summary import summarize
from specbench.records import BlockRecord, CellSummary, Kind, SpeedupVerdict
from specbench.report.document import build_document, is_cut_short
from specbench.runs import StoredRun
from specbench.stats.crossed import MOST_PLANNED
from tests.cell_keys import with_axes
from tests.decide import cells
from tests.decide.conftest import Summarized
from tests.served_sessions import Sweep, key_of, served_sweep

CYCLES_DIFFER = {"num_cycles": 4, "cycle_deviation": 0.08, "prompt_error": 0.005}
PROMPTS_DIFFER = {"num_cycles": 4, "cycle_deviation": 0.01, "prompt_error": 0.04}


def undecided(
    summarized: Summarized, metrics: Mapping[str, float], estimate: float = 1.08
) -> CellSummary:
    cell = summarized(4, estimate - 0.1, estimate, estimate + 0.1, num_prompts=20, metrics=metrics)
    return replace(cell, key=with_axes(cell.key, engine="vllm"))


@pytest.mark.parametrize(
    ("metrics", "workload_prompts", "told"),
    [
        (CYCLES_DIFFER, 200, Kind.MORE_OF(option="--restart-cycles")),
        (CYCLES_DIFFER, 20, Kind.MORE_OF(option="--restart-cycles")),
        (PROMPTS_DIFFER, 200, Kind.ALL_PROMPTS(prompts=200, width=None)),
        (PROMPTS_DIFFER, 20, Kind.ADD_PROMPTS()),
    ],
)
def test_the_advice_names_cycles_or_prompts_by_the_larger_noise(
    summarized, metrics, workload_prompts, told
):
    cell = undecided(summarized, metrics)
    decision = decide(choose([cell]), workload_prompts=workload_prompts)
    assert decision.answer == (Kind.RANGE(k=4, mean_k=None, speedup=cell.speedup), told)


def test_a_budget_that_set_the_cycles_is_what_decides(summarized):
    cell = undecided(summarized, CYCLES_DIFFER)
    _, told = decide(choose([cell]), workload_prompts=200, is_cut_short=True).answer
    assert told == Kind.MORE_OF(option="--time-budget")


def test_for_concurrent_requests_only_more_cycles_are_suggested(summarized):
    metrics = {"num_cycles": 4, "num_passes": 8, "cycle_deviation": 0.08, "prompt_error": 0.0}
    cell = undecided(summarized, metrics)
    cell = replace(cell, key=with_axes(cell.key, concurrency=4))
    _, told = decide(choose([cell]), workload_prompts=20).answer
    assert told == Kind.MORE_OF(option="--restart-cycles")


@pytest.mark.parametrize(
    ("cycles", "prompts", "missing", "num_prompts"),
    [(1, 6, (1, "cycle"), None), (4, 3, (2, "prompt"), 5), (4, 1, (4, "prompt"), 5)],
)
def test_cycles_and_prompts_missing_for_an_interval_are_reported(
    cycles, prompts, missing, num_prompts
):
    sweep = Sweep(ks=(4,), cycles=cycles, num_prompts=prompts, rows=(1,), confirmed=None)
    (decision,) = build_document(served_sweep(sweep)).decisions
    found, whole, needed = decision.answer
    assert found == Kind.TOO_FEW(k=4, mean_k=None, measured=(cycles, "cycle"))
    assert whole == Kind.ALSO_WHOLE(whole=decision.end_to_end)  # without an interval either
    assert needed == Kind.NEEDS_MORE(missing=missing, num_prompts=num_prompts)


@pytest.mark.parametrize("cycles", [1, 2, 4])
def test_a_budget_sets_the_cycles_of_a_server(cycles):
    sweep = Sweep(ks=(4,), cycles=cycles, num_prompts=6, rows=(1,), confirmed=None)
    stored = served_sweep(sweep)
    run = with_budget(stored).run
    *_, cell = build_document(replace(stored, run=run)).cells
    assert is_cut_short(run, cell)
    assert not is_cut_short(stored.run, cell)
    assert is_cut_short(run, replace(cell, num_prompts=5))
    servers = replace(run.settings.servers, cycles=cycles)
    requested = replace(run, settings=replace(run.settings, servers=servers))
    assert not is_cut_short(requested, cell)  # it had them all
    more = replace(servers, cycles=cycles + 1)
    assert is_cut_short(replace(run, settings=replace(run.settings, servers=more)), cell)
    assert is_cut_short(requested, cell, cell)  # a confirmation has more if there is time
    most = replace(cell, metrics={**cell.metrics, "num_cycles": MOST_PLANNED})
    assert not is_cut_short(requested, cell, most)


@pytest.mark.parametrize("cycles", [1, 4])
def test_a_longer_budget_is_not_advised_for_missing_prompts(cycles):
    sweep = Sweep(ks=(4,), cycles=cycles, num_prompts=3, rows=(1,), confirmed=None)
    stored = with_budget(served_sweep(sweep))
    (decision,) = build_document(stored).decisions
    missing = Kind.NEEDS_MORE(missing=(2, "prompt"), num_prompts=5)
    assert decision.answer[-1] == (Kind.LONGER_BUDGET() if cycles == 1 else missing)


@pytest.mark.parametrize(
    ("in_all", "told"), [(13, Kind.BUDGET_FOR_ALL(width=None)), (12, Kind.ADD_PROMPTS())]
)
def test_more_time_confirms_on_no_prompts_that_chose_k(in_all, told):
    """Six prompts of the workload chose K, and six others confirm it."""
    sweep = Sweep(ks=(4,), rows=(1,), differing=0.15, slower={4: 2.0})
    stored = with_budget(served_sweep(sweep))
    blocks = tuple(on_other_prompts(b) if b.purpose == "confirm" else b for b in stored.blocks)
    run = replace(stored.run, workload_prompts={"demo": {"code": in_all}})
    (decision,) = build_document(replace(stored, blocks=blocks, run=run)).decisions
    assert Kind.OTHER_PROMPTS() in decision.reasons
    assert decision.answer[-1] == told


def with_budget(stored: StoredRun) -> StoredRun:
    effort = replace(stored.run.settings.effort, budget_s=60.0)
    settings = replace(stored.run.settings, effort=effort)
    return replace(stored, run=replace(stored.run, settings=settings))


def on_other_prompts(block: BlockRecord) -> BlockRecord:
    requests = tuple(replace(r, prompt_id=f"other {r.prompt_id}") for r in block.requests)
    return replace(block, requests=requests)


def test_the_only_k_of_a_server_is_told_with_the_cycles_that_an_interval_needs(summarized):
    cell = undecided(summarized, CYCLES_DIFFER, estimate=1.5)
    decision = decide(choose([cell]), num_unmeasured=3)
    assert decision.answer[-1] == Kind.ONLY_K(needed=(2, "cycle"))


def test_a_winner_is_quoted_over_its_confirmation_cycles():
    first, many = build_document(served_sweep()).decisions
    assert (first.draft.k, first.speedup.estimate) == (4, pytest.approx(2.0, abs=0.1))
    assert Kind.CONFIRMED(speedup=first.speedup, over=(4, "cycle")) in first.reasons
    assert many.draft.k == 4


BUILTIN = (cells.BASE, cells.draft(4))


def cells_of_builtin(engine_s: float) -> list:
    """Cells of the built-in engine for the prompts of the server, 12 tokens each."""
    named_cells = []
    for key, seconds in zip(BUILTIN, (0.24, engine_s), strict=True):
        cell = cells.cell(key, [seconds] * 6)
        named = (replace(r, prompt_id=f"code-{i}") for i, r in enumerate(cell.requests))
        named_cells.append(replace(cell, requests=tuple(named)))
    return named_cells


def test_a_comparison_with_a_server_has_no_intervals():
    served = aggregate_run(served_sweep(Sweep(wobble=0.0, differing=0.0)))
    base, four = side_by_side([*cells_of_builtin(engine_s=0.06), *served])
    assert (base.peer, four.peer) == (key_of(0), key_of(4))
    # 12 tokens in 0.24 s against 24 in 0.48 s; then 12 in 0.06 s against 24 in 0.24 s.
    assert base.decode.estimate == pytest.approx(1.0)
    assert four.decode.estimate == pytest.approx(2.0)
    assert {pair.decode.low for pair in (base, four)} == {None}
    assert four.end_to_end.low is None
    assert (four.cpu, four.num_prompts) == (None, 6)


def test_only_prompts_that_both_served_are_compared():
    served = aggregate_run(served_sweep(Sweep(wobble=0.0)))
    ours = [replace(cell, requests=cell.requests[:2]) for cell in cells_of_builtin(engine_s=0.06)]
    (pair,) = [p for p in side_by_side([*ours, *served]) if p.cell.draft.k]
    theirs = next(c for c in served if c.key == key_of(4))
    both = [r.decode_s for r in theirs.requests if r.prompt_id in ("code-0", "code-1")]
    assert pair.num_prompts == 2
    assert pair.decode.estimate == pytest.approx(sum(both) / len(both) / 24 / (0.06 / 12))


def test_texts_are_not_called_different_if_one_side_has_no_tokens():
    served = aggregate_run(served_sweep())
    comparison, *_ = side_by_side([*cells_of_builtin(0.06), *served])
    assert comparison.equal_text == 0.0  # 13 tokens are not 25
    mute = [
        replace(c, requests=tuple(replace(r, output_ids=(), num_tokens=25) for r in c.requests))
        for c in served
    ]
    untold, *_ = side_by_side([*cells_of_builtin(0.06), *mute])
    assert untold.equal_text is None


def test_a_cell_without_a_complete_cycle_is_undecided():
    stored = served_sweep(Sweep(ks=(4,), cycles=1, rows=(1,), confirmed=None, lost=((4, 0, 1),)))
    (_, four) = summarize(aggregate_run(stored))
    assert four.speedup is None
    assert four.metrics["num_cycles"] == 0
    (decision,) = build_document(stored).decisions
    assert decision.verdict is SpeedupVerdict.UNDECIDED
    assert decision.answer == (Kind.NOTHING_VALID(),)
