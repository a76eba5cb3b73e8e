"""Batch sizes, contexts, engines, adaptive K and simulated acceptance, down to stored records."""

import shutil
from pathlib import Path

import pytest

from specbench.metrics.aggregate import aggregate_cells
from specbench.records import ALL_PROMPTS
from specbench.report.document import build_document
from specbench.runs import StoredRun
from tests.bench.fake_runs import explored
from tests.bench.tiny_runs import run_on, settings_for, write_tiny

pytestmark = pytest.mark.slow  # whole runs

PROMPTS = [["Hello you", "And then?"], "Name a colour", "Count to ten", "Say nothing at all"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"), PROMPTS)


def measure(tiny: Path, root: Path, **changes) -> StoredRun:
    usual = {"command": "run", "pairings": ("tiny/draft",), "num_speculative_tokens": (3,)}
    return run_on(tiny, settings_for(tiny, **{**usual, "max_new_tokens": 10, **changes}), root)


@pytest.fixture(scope="module")
def stream(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return measure(
        tiny,
        tmp_path_factory.mktemp("stream"),
        concurrency=(3,),
        adaptive=True,
        num_prompts=9,
        num_repeats=2,
    )


def test_with_concurrency_a_block_is_one_pass_by_every_cell(stream):
    assert [block.prompt_id for block in explored(stream)] == [ALL_PROMPTS] * 2
    ids = {plan.key.id for plan in stream.run.cells}
    assert {plan.key.draft.is_adaptive for plan in stream.run.cells} == {False, True}
    for block in explored(stream):
        assert {timed_pass.cell_id for timed_pass in block.passes} == ids == set(block.order)
        # Nine prompts from a list of four: the first comes three times and has two turns.
        for cell_id in ids:
            requests = [r for r in block.requests if r.cell_id == cell_id]
            assert len(requests) == 9 + 3
            assert len({(r.prompt_id, r.turn, r.repeat) for r in requests}) == 9 + 3


def test_texts_of_concurrent_requests_equal_the_references(stream):
    references = {(r.prompt_id, r.turn): r.output_ids for r in stream.references}
    for block in stream.blocks:
        assert all(r.output_ids == references[r.prompt_id, r.turn] for r in block.requests)


def test_the_requests_and_rounds_of_a_pass_are_consistent(stream):
    for block in stream.blocks:
        for timed_pass in block.passes:
            requests = [r for r in block.requests if r.cell_id == timed_pass.cell_id]
            emitted = sum(sum(r.rounds.num_emitted) for r in requests)
            assert sum(timed_pass.rounds.num_emitted) == emitted
            assert max(timed_pass.rounds.num_live) == 3
            assert max(r.arrived_s + r.total_s for r in requests) <= timed_pass.seconds * 1.0001
            assert timed_pass.kv_bytes > 0
    document = build_document(stream)
    assert document.missing == document.failures == ()
    for cell in document.cells:
        assert cell.metrics["busy_tokens_per_s"] > 0
        assert 0 < cell.metrics["padding_efficiency"] <= 1


def test_the_winner_and_adaptive_k_are_confirmed(stream):
    again = {cell for block in stream.blocks if block.purpose == "confirm" for cell in block.order}
    assert {plan.key.id for plan in stream.run.cells if plan.key.draft.is_adaptive} <= again


def test_arrivals_at_a_rate_are_the_same_for_every_k(tiny, tmp_path):
    run = measure(tiny, tmp_path, request_rate=50.0, num_prompts=6, num_repeats=1)

    (block,) = explored(run)
    first_turns = {}
    for request in block.requests:
        if request.turn == 0:
            first_turns.setdefault(request.cell_id, []).append(request.arrived_s)
            assert request.queue_s >= 0
            assert request.ttft_s >= request.queue_s
    baseline, speculative = first_turns.values()
    assert baseline == pytest.approx(speculative)
    assert baseline == sorted(baseline)


def test_prompts_are_lengthened_and_every_context_is_a_cell(tiny, tmp_path):
    run = measure(tiny, tmp_path, contexts=(100, 150))

    cells = {plan.key.id: plan.key for plan in run.run.cells}
    assert {key.condition.context for key in cells.values()} == {100, 150}
    for block in run.blocks:
        for request in block.requests:
            context = cells[request.cell_id].condition.context
            if request.turn == 0:
                assert 0.9 * context <= request.num_prompt_tokens <= context
    lengths = {(r.prompt_id, r.turn): 0 for r in run.references}
    assert len(run.references) == 2 * len(lengths)  # each context has its own answers


@pytest.mark.slow
def test_blocks_are_shared_by_engines_with_equal_texts(tiny, tmp_path):
    run = measure(
        tiny,
        tmp_path,
        pairings=("tiny/draft", "tiny/ngram"),
        engines=("builtin", "transformers"),
    )

    for block in run.blocks:
        engines = {
            plan.key.condition.engine for plan in run.run.cells if plan.key.id in block.order
        }
        assert engines == {"builtin", "transformers"}
        texts = {}
        for request in block.requests:
            texts.setdefault((request.prompt_id, request.turn), set()).add(request.output_ids)
        assert all(len(outputs) == 1 for outputs in texts.values())
    methods = {
        plan.key.draft.method
        for plan in run.run.cells
        if plan.key.condition.engine == "transformers"
    }
    assert methods == {
        "generate",
        "generate_static",
        "assisted",
        "assisted_default",
        "prompt_lookup",
    }
    assert {record.engine for record in run.engines} == {"builtin", "transformers"}


def test_k_auto_keeps_a_time_line_in_one_row(tiny, tmp_path):
    run = measure(tiny, tmp_path, num_speculative_tokens=(), adaptive=True)

    (auto,) = (plan.key for plan in run.run.cells if plan.key.draft.is_adaptive)
    passes = [timed_pass for block in run.blocks for timed_pass in block.passes]
    assert {timed_pass.cell_id for timed_pass in passes} == {auto.id}
    assert all(max(timed_pass.rounds.num_speculative_tokens) <= 8 for timed_pass in passes)
    # Round costs are measured once, in the first pass, and that is part of its seconds.
    calibrated = [timed_pass for timed_pass in passes if timed_pass.calibration_s > 0]
    assert calibrated == passes[:1]
    assert calibrated[0].seconds > calibrated[0].calibration_s


@pytest.mark.parametrize("acceptance", [(1.0, 1.0, 0.0), {3: (1.0, 1.0, 0.0)}])
def test_simulated_acceptance_matches_the_given_rates(acceptance, tiny, tmp_path):
    run = measure(tiny, tmp_path, acceptance=acceptance, num_repeats=3)

    cells = aggregate_cells([plan.key for plan in run.run.cells], run.blocks)
    (speculative,) = (cell for cell in cells if cell.k == 3)
    rounds = speculative.rounds
    assert {
        min(d, 2) == a for d, a in zip(rounds.num_drafted, rounds.num_accepted, strict=True)
    } == {True}
    assert build_document(run).run.settings.decoder.is_synthetic


def test_dummy_weights_need_no_checkpoint(tiny, tmp_path):
    folder = tmp_path / "empty"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))

    run = measure(folder, tmp_path / "reports", dummy_weights=True, acceptance=(0.5,))

    assert run.failures == ()
    assert all(model.content_sha256.startswith("dummy:") for model in run.models)
