"""Whole runs over started servers: order, records, faults, resuming."""

import json
import re
from collections import Counter
from math import inf

import pytest

from specbench.errors import UsageError
from specbench.metrics import aggregate
from specbench.records import Kind
from specbench.report.document import build_document
from specbench.servers import traffic
from specbench.stats.crossed import MIN_CYCLES
from tests.bench.fakes import RecordingWatch
from tests.bench.served.served_runs import fake, measured, servers_left, settings_for
from tests.settings.flat_settings import changed


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    yield
    assert servers_left(tmp_path) == []


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory):
    """A run without a fault, and its messages."""
    folder, watch = tmp_path_factory.mktemp("sound"), RecordingWatch()
    with pytest.MonkeyPatch.context() as patch:
        fake(patch, folder)
        stored = measured(folder, settings_for(folder), watch)
    assert servers_left(folder) == []
    return stored, watch


def test_every_session_of_every_cycle_is_recorded(sound_run):
    stored, watch = sound_run
    stages = [text for text in watch.stages if "cycle" in text]
    assert len(set(stages)) == len(stages) == len(stored.servers)
    assert watch.blocks == [block.block_id for block in stored.blocks]
    ks = [server.num_speculative_tokens for server in stored.servers if "explore" in server.place]
    assert ks == [0, 2, 4, 4, 2, 0] * 2
    assert stored.is_complete
    assert not any(server.problems or server.warnings for server in stored.servers)
    assert {server.version for server in stored.servers} == {"0.32.0"}
    assert all("--port" in server.command and server.start_s > 0 for server in stored.servers)
    assert all((stored.folder / server.log).is_file() for server in stored.servers)
    cells = {cell.key.draft.k: cell for cell in build_document(stored).cells}
    for k, cell in cells.items():
        assert cell.num_requests == 7 * 4  # a prompt has two turns
        assert cell.metrics["num_cycles"] == MIN_CYCLES
        assert cell.metrics["kv_capacity_tokens"] == (14_400 if k else 16_000)
    assert cells[4].metrics["kv_capacity_lost_tokens"] == 1_600
    assert cells[2].speedup.low is not None


def test_acceptance_stops_at_the_end_and_the_engines_figure_is_also_shown(sound_run):
    stored, _ = sound_run
    for cell in build_document(stored).cells:
        k = cell.key.draft.k
        requests = [r for b in stored.blocks for r in b.requests if r.cell_id == cell.key.id]
        if k == 0:
            assert all(r.counts is None for r in requests)
            continue
        rounds = sum(r.counts.num_rounds for r in requests)
        # vLLM's tokens and drafts, counted independently: one token of an answer is prefill's.
        later = sum(r.num_output_tokens - 1 for r in requests)
        assert cell.metrics["mean_acceptance_length"] == pytest.approx(later / rounds)
        overshot = cell.metrics["num_overshot"]
        assert overshot > 0
        assert cell.metrics["mean_acceptance_length_of_engine"] == pytest.approx(
            (later + overshot) / rounds
        )


def test_the_second_turn_follows_the_answer_without_speculation(sound_run):
    stored, _ = sound_run
    texts = {(r.turn, r.text) for b in stored.blocks for r in b.requests if r.prompt_id == "p5"}
    assert Counter(turn for turn, _ in texts) == {0: 1, 1: 1}  # the same at every K


def test_a_method_that_the_engine_lacks_is_skipped_with_a_warning(tmp_path, monkeypatch):
    fake(monkeypatch, tmp_path)
    watch = RecordingWatch()
    named = {"pairings": ("big/lookup", "big/turn"), "num_speculative_tokens": (0, 2)}
    named |= {"num_prompts": 1, "cycles": 1}
    settings = settings_for(tmp_path, **named)
    stored = measured(tmp_path, settings, watch)
    assert {key.draft.method for key in stored.run.keys} == {"none", "ngram"}
    assert any(re.search("vllm .*previous_turn", text) for text in watch.warnings)
    with pytest.raises(UsageError, match=r"vllm.*previous_turn"):
        measured(tmp_path, settings_for(tmp_path, pairings=("big/turn",)))


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param("memory", "memory", marks=pytest.mark.long),  # it does not start, as `deaf`
        ("dies", "ended"),
        pytest.param("restarts", "the server restarted", marks=pytest.mark.long),  # see `foreign`
        ("foreign", "another client was served meanwhile"),
        pytest.param("prefill", "prompt tokens", marks=pytest.mark.long),  # see `foreign`
        ("deaf", "was not healthy"),
    ],
)
def test_a_failed_session_is_recorded_the_rest_continues_and_resuming_completes(
    tmp_path, monkeypatch, fault, message
):
    fake(monkeypatch, tmp_path, {3: fault})
    patience_s = 2.0 if fault == "deaf" else 60.0
    settings = settings_for(tmp_path, num_speculative_tokens=(0, 4), start_timeout_s=patience_s)
    stored = measured(tmp_path, settings)
    (lost,) = [server for server in stored.servers if server.problems]
    assert message in " ".join(lost.problems)
    assert (lost.num_speculative_tokens, lost.cycle) == (4, 0)
    came_up = fault not in ("memory", "deaf")
    assert (bool(lost.version), bool(lost.command)) == (came_up,) * 2
    assert lost.log  # why it did not start
    document = build_document(stored)
    (failure,) = document.failures
    assert re.search("vllm, K=4, cycle 1", failure.reason)
    cells = {cell.key.draft.k: cell for cell in document.cells}
    assert [cells[k].metrics["num_cycles"] for k in (0, 4)] == [2, 1]
    fake(monkeypatch, tmp_path)
    again = measured(tmp_path, settings, resume=stored.run.run_id)
    assert build_document(again).failures == ()
    assert len(again.servers) == len(stored.servers) + 4  # the whole cycle, with its baseline
    cells = {cell.key.draft.k: cell for cell in build_document(again).cells}
    assert cells[4].metrics["num_cycles"] == 2


def test_counts_that_differ_from_the_servers_are_a_warning(tmp_path, monkeypatch):
    fake(monkeypatch, tmp_path, {2: "hides"})
    small = {"num_speculative_tokens": (0, 2), "num_prompts": 2, "cycles": 1}
    stored = measured(tmp_path, settings_for(tmp_path, **small))
    (server,) = [server for server in stored.servers if server.warnings]
    assert server.warnings[0].kind is Kind.ACCEPTED_COUNTS_DIFFER


def test_concurrent_requests_are_served_by_the_same_start(tmp_path, monkeypatch):
    fake(monkeypatch, tmp_path, slowdown=30.0)  # or a busy machine never serves three at once
    monkeypatch.setattr(traffic, "PAUSE_S", inf)  # a busy machine's leave requests out
    monkeypatch.setattr(aggregate, "MAX_CLIENT_LAG", inf)  # and make cells client-bound
    monkeypatch.setattr(aggregate, "MAX_CLIENT_SHARE", inf)  # as does a server that takes no time
    settings = settings_for(tmp_path, concurrency=(1, 3), num_speculative_tokens=(0, 2))
    stored = measured(tmp_path, settings)
    explored = [server for server in stored.servers if "explore" in server.place]
    assert len(explored) == 8
    cells = [c for c in build_document(stored).cells if c.key.condition.concurrency == 3]
    assert [cell.key.draft.k for cell in cells] == [0, 2]
    assert all(cell.metrics["aggregate_tokens_per_s"] > 0 for cell in cells)
    assert cells[1].speedup.low is not None


def test_a_workload_with_a_response_format_is_measured_and_named(tmp_path, monkeypatch):
    fake(monkeypatch, tmp_path)
    form = {"response_format": {"type": "json_object"}, "stop": "x"}
    rows = ({"id": f"p{i}", "prompt": f"Number {i}", **form} for i in range(5))
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = settings_for(tmp_path, num_speculative_tokens=(0, 2), cycles=1)
    both = (*settings.workload.workloads, str(path))
    stored = measured(tmp_path, changed(settings, workloads=both))
    assert list(stored.run.settings_sha256) == ["own.jsonl"]
    document = build_document(stored)
    labels = {cell.key.condition.workload_label for cell in document.cells}
    assert labels == {"talk.jsonl", "own.jsonl (response_format, stop)"}
    drafted = [cell for cell in document.cells if cell.key.draft.k]
    assert len([cell for cell in drafted if cell.metrics["mean_acceptance_length"]]) == 2
