"""The bench on a real, tiny model: everything down to the decoder, and the run on disk."""

import json
import shutil
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.model_pool import ModelPool
from specbench.errors import StoreError, UsageError
from specbench.inputs.config import load_pairings
from specbench.records import Request, Sampling
from specbench.report.document import build_document
from specbench.runs import load_run
from tests.bench.fake_runs import write_prompts
from tests.bench.fakes import Interrupted, RecordingWatch, stop_after
from tests.bench.tiny_runs import run_on, settings_for
from tests.settings.flat_settings import changed

pytestmark = pytest.mark.slow  # whole runs

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tiny):
    return run_on(tiny, settings_for(tiny, temperatures=(0.0, 1.0)), tiny / "reports")


def requests_of(run, temperature: float):
    ids = {plan.key.id for plan in run.run.cells if plan.key.condition.temperature == temperature}
    requests = [r for block in run.blocks for r in block.requests if r.cell_id in ids]
    assert requests
    return requests


@pytest.mark.slow
def test_a_run_keeps_how_many_prompts_its_workloads_have(run):
    assert run.run.workload_prompts == {"tiny": {"talk.jsonl": 2}}


@pytest.mark.slow
def test_every_greedy_cell_gives_the_targets_own_text(run):
    references = {(r.prompt_id, r.turn): r.output_ids for r in run.references}
    assert len(references) == 3
    requests = requests_of(run, 0.0)
    assert {(r.cell_id, r.prompt_id, r.turn) for r in requests} == {
        (plan.key.id, *turn)
        for plan in run.run.cells
        if plan.key.condition.temperature == 0
        for turn in references
    }
    assert all(r.output_ids == references[r.prompt_id, r.turn] for r in requests)


def test_some_drafts_of_the_tiny_run_are_rejected(run):
    # Otherwise the test above would show nothing.
    accepted = [
        (r.rounds.num_accepted, r.rounds.num_drafted)
        for r in requests_of(run, 0.0)
        if "draft_model|k4" in r.cell_id
    ]
    num_accepted = sum(sum(a) for a, _ in accepted)
    assert 0 < num_accepted < sum(sum(d) for _, d in accepted)


def test_a_sampled_text_without_a_draft_distribution_does_not_depend_on_k(run):
    texts = defaultdict(set)
    for request in requests_of(run, 1.0):
        if "draft_model" not in request.cell_id:
            texts[request.prompt_id, request.turn, request.repeat].add(request.output_ids)
    assert len(texts) == 9  # three turns, three seeds
    assert all(len(outputs) == 1 for outputs in texts.values())
    assert len(set.union(*texts.values())) == 9  # every seed gives another text


def test_records_of_a_tiny_run_are_consistent(run):
    assert run.is_complete
    document = build_document(run)
    assert document.missing == ()
    assert document.failures == ()
    for request in requests_of(run, 0.0) + requests_of(run, 1.0):
        assert request.num_output_tokens == 1 + sum(request.rounds.num_emitted)
        assert sum(request.rounds.round_s) <= request.decode_s * 1.001
        assert request.ttft_s + request.decode_s == pytest.approx(request.total_s)


def test_memory_is_given_for_the_target_and_for_the_pair(run):
    memory = {record.drafter: record for record in run.memory}
    assert set(memory) == {"none", "draft", "ngram"}
    # Weights in float32: 4 bytes per parameter; ngram has none.
    alone, pair = memory["none"], memory["draft"]
    num_parameters = {model.name: model.num_parameters for model in run.models}
    assert alone.weights_bytes >= 4 * num_parameters["tiny"]
    assert pair.weights_bytes - alone.weights_bytes >= 4 * num_parameters["draft"]
    assert memory["ngram"].weights_bytes == alone.weights_bytes
    # K and V of 16 numbers and 4 bytes in each of 4 layers; the draft has one layer more.
    assert (alone.kv_bytes_per_token, pair.kv_bytes_per_token) == (4 * 2 * 16 * 4, 5 * 2 * 16 * 4)


def test_every_cell_is_compared_with_its_model_forwards(run):
    shapes = {
        (c.cell_id.split("|")[3], c.role, c.num_tokens, c.num_per_round) for c in run.forwards
    }
    assert shapes == {
        ("none", "target", 1, 1),
        ("draft_model", "target", 2, 1),
        ("draft_model", "drafter", 2, 1),
        ("draft_model", "target", 5, 1),
        ("draft_model", "drafter", 1, 3),
        ("ngram", "target", 2, 1),
        ("ngram", "target", 5, 1),
    }
    ratios = [cell.metrics.get("overhead_ratio", 0.95) for cell in build_document(run).cells]
    assert all(ratio >= 0.95 for ratio in ratios)  # a busy machine may be too unsteady


def test_models_are_identified_by_content_and_not_by_path(run, tiny):
    by_name = {model.name: model for model in run.models}
    assert set(by_name) == {"tiny", "draft"}
    assert (by_name["tiny"].source, by_name["draft"].source) == ("target", "draft")
    assert by_name["tiny"].content_sha256 != by_name["draft"].content_sha256
    assert by_name["tiny"].tokenizer_sha256 == by_name["draft"].tokenizer_sha256
    records = (run.folder / "records.jsonl").read_text()
    assert str(tiny.parent) not in records


def test_provenance_is_on_disk_before_anything_is_measured(tiny, tmp_path):
    seen = []

    class Looking(RecordingWatch):
        def run_id(self, run_id):
            folder = tmp_path / run_id
            seen.append(json.loads((folder / "run.json").read_text()))
            seen.append((folder / "records.jsonl").read_bytes())

    run = run_on(tiny, settings_for(tiny, num_speculative_tokens=(0,)), tmp_path, Looking())
    provenance, records = seen
    assert records == b""
    assert provenance["environment"]["threads"] == 1
    assert provenance["environment"]["probe"].startswith("none (NVML ")
    assert set(provenance["workload_sha256"]) == {"talk.jsonl"}
    assert provenance["settings"]["max_new_tokens"] == 8
    assert run.blocks


def test_an_interrupted_run_of_tiny_models_resumes(tiny, tmp_path):
    settings = settings_for(tiny)
    with pytest.raises(Interrupted):
        run_on(tiny, settings, tmp_path, stop_after())
    before = load_run("latest", tmp_path)
    assert (len(before.blocks), before.is_complete) == (1, False)

    after = run_on(tiny, settings, tmp_path, resume=before.run.run_id)
    assert after.blocks[:1] == before.blocks
    assert len(after.blocks) == 2
    assert len(after.sessions) == 1
    assert after.run == before.run


def test_a_run_whose_work_has_changed_cannot_be_resumed(tiny, tmp_path, run):
    shutil.copytree(run.folder, tmp_path / run.folder.name)
    settings = settings_for(tiny, temperatures=(0.0, 1.0))
    records = (tmp_path / run.folder.name / "records.jsonl").read_bytes()
    other = write_prompts(tmp_path / "talk.jsonl", ["Something else"])
    for changes, says in (
        (changed(settings, workloads=(other,)), r"its workload talk\.jsonl has changed since"),
        (changed(settings, dtype="float64"), "the plan would differ"),
        (changed(settings, pairings=("tiny/ngram",)), "the plan would differ"),
    ):
        with pytest.raises(UsageError, match=says):
            run_on(tiny, changes, tmp_path, resume=run.folder.name)
    assert (tmp_path / run.folder.name / "records.jsonl").read_bytes() == records


def test_a_missing_run_cannot_be_resumed(tiny, tmp_path):
    with pytest.raises(StoreError, match=r"'other'.*none yet"):
        run_on(tiny, settings_for(tiny), tmp_path, resume="other")


def test_an_answer_ends_at_its_end_token_unless_eos_is_ignored(tiny):
    engine = BuiltinEngine(load_pairings(tiny / "pairings.yaml").targets[0], ModelPool(CPU))
    request = Request(
        prompt_ids=(40, 41, 42), max_new_tokens=8, sampling=Sampling(), seed=0, stop_at_eos=False
    )
    whole = engine.generate(request, engine.baseline)
    assert len(whole.output_ids) == 8

    end = whole.output_ids[3]
    engine.eos_ids = (end,)
    first = whole.output_ids.index(end)
    stopped = engine.generate(replace(request, stop_at_eos=True), engine.baseline)
    assert (stopped.output_ids, stopped.finish_reason == "eos") == (
        whole.output_ids[: first + 1],
        True,
    )
    assert engine.generate(request, engine.baseline).output_ids == whole.output_ids
