"""Sessions of several K on one server, where the engine takes K from each request."""

import asyncio
from dataclasses import replace

import pytest

from specbench.bench.served.host import ManagedServers
from specbench.bench.served.sessions import cycle_of, served_cells
from specbench.engines.served import vllm
from specbench.errors import UsageError
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.server_facts import DRAFT_FIELDS
from specbench.records import DraftConfig
from tests.bench.served.fake_vllm import K_FIELD
from tests.bench.served.served_runs import fake, measured, plan_of, servers_left, settings_for


@pytest.fixture(autouse=True)
def vllm_takes_k(monkeypatch):
    def fields(draft: DraftConfig) -> dict[str, int]:
        return {K_FIELD: draft.k} if draft.method == "draft_model" else {}

    monkeypatch.setattr(vllm, "PROPERTIES", replace(vllm.PROPERTIES, fields_of_draft=fields))


def run_of(folder, monkeypatch, faults=None, **changes):
    """The stored run, and how many servers it started."""
    fake(monkeypatch, folder, faults)
    asked = {"pairings": ("big/small",), "cycles": 1, **changes}
    stored = measured(folder, settings_for(folder, **asked))
    assert servers_left(folder) == []
    return stored, len((folder / "starts").read_text())


def drafted_per_round(stored):
    return {
        cell.k: {r.counts.num_drafted / r.counts.num_drafting for r in cell.finished}
        for cell in aggregate_run(stored)
        if cell.k
    }


def test_one_start_serves_every_k_and_each_is_its_own_session(tmp_path, monkeypatch):
    stored, num_starts = run_of(tmp_path, monkeypatch)
    assert num_starts == 3  # K = 0, K = 2 and 4 both ways, K = 0
    ks = [server.num_speculative_tokens for server in stored.servers]
    assert ks == [0, 2, 4, 4, 2, 0]
    assert drafted_per_round(stored) == {2: {2.0}, 4: {4.0}}
    assert [s.settings.get(DRAFT_FIELDS, "") for s in stored.servers] == [
        *("", "k 2", "k 4", "k 4", "k 2", "")
    ]
    assert [s.problems for s in stored.servers] == [()] * 6
    at_start = {s.command for s in stored.servers if s.num_speculative_tokens}
    assert ['"num_speculative_tokens": 4' in " ".join(command) for command in at_start] == [True]


def test_a_server_that_ignores_the_field_is_started_for_each_k(tmp_path, monkeypatch):
    stored, num_starts = run_of(tmp_path, monkeypatch, dict.fromkeys(range(1, 9), "stubborn"))
    assert num_starts == 7  # the one that was asked, and one for each session
    assert drafted_per_round(stored) == {2: {2.0}, 4: {4.0}}
    assert not any(DRAFT_FIELDS in server.settings for server in stored.servers)


def test_a_method_whose_k_is_of_the_start_has_a_server_for_each_session(tmp_path, monkeypatch):
    _, num_starts = run_of(tmp_path, monkeypatch, pairings=("big/lookup",))
    assert num_starts == 6


def test_a_single_k_has_a_server_for_each_session(tmp_path, monkeypatch):
    _, num_starts = run_of(tmp_path, monkeypatch, num_speculative_tokens=(0, 4))
    assert num_starts == 4


def test_a_shared_server_that_dies_is_started_again(tmp_path, monkeypatch):
    """The second one, in the session of K = 2."""
    stored, num_starts = run_of(tmp_path, monkeypatch, {2: "dies"})
    failed = [s.num_speculative_tokens for s in stored.servers if s.problems]
    assert (failed, num_starts) == ([2], 4)
    assert drafted_per_round(stored)[4] == {4.0}


def test_a_shared_server_has_room_for_the_texts_of_every_session(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, pairings=("big/small",))
    host, started = ManagedServers(plan, "vllm", tmp_path), []
    every = [*cycle_of(served_cells(plan, "vllm"), 0)]
    sessions = [replace(s, cells=()) if s.draft.k == 4 else s for s in every]

    def refuse(session, _):
        started.append(session)
        raise UsageError("not now")

    monkeypatch.setattr(host, "_start_of", refuse)
    with host.sharing(sessions), pytest.raises(UsageError), asyncio.Runner() as runner:
        runner.run(host.open(sessions[1]).__aenter__())
    shared, alone = started
    assert (shared.draft.k, alone.draft.k) == (4, 2)
    assert {*shared.cells} == {*alone.cells}
