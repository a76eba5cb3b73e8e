"""Servers that are told to simulate acceptance: the command says so, and the run is marked."""

import json
from pathlib import Path

import pytest

from specbench.bench.served.host import ManagedServers
from specbench.bench.served.sessions import cycle_of, served_cells
from specbench.errors import UsageError
from specbench.records import SIMULATED
from specbench.report.document import build_document
from tests.bench.served.served_runs import fake, measured, plan_of, settings_for
from tests.cli.calls import specbench

BY_K = {2: (0.9, 0.5), 4: (0.9, 0.5, 0.2, 0.1)}


def test_a_simulated_run_is_marked_in_its_record_and_its_answers(monkeypatch, tmp_path):
    fake(monkeypatch, tmp_path)
    stored = measured(tmp_path, settings_for(tmp_path, acceptance=BY_K, cycles=1))
    speculating = [server for server in stored.servers if server.num_speculative_tokens]
    assert {server.num_speculative_tokens for server in speculating} == {2, 4}
    for server in speculating:
        rates = list(BY_K[server.num_speculative_tokens])
        assert f'"synthetic_acceptance_rates": {rates}' in " ".join(server.command)
        assert server.acceptance_rule == SIMULATED
    document = build_document(stored)
    assert document.mark == " [synthetic]"
    assert document.decisions
    assert all(decision.sentence.endswith("[synthetic]") for decision in document.decisions)
    args = ("report", stored.run.run_id, "--runs-dir", "runs", "--json")
    assert json.loads(specbench(*args, cwd=tmp_path).out)["synthetic"] is True


def starting(folder: Path, engine: str, **changes):
    """The environment and the command of the first server that speculates."""
    plan = plan_of(folder, engines=(engine,), acceptance=BY_K, pairings=("big/small",), **changes)
    servers = ManagedServers(plan, engine, folder)
    sessions = cycle_of(served_cells(plan, engine), 0)
    return servers._start_of(next(s for s in sessions if s.draft.k == 2), folder)


def test_variables_of_an_engine_are_in_the_environment_of_its_server(tmp_path):
    start = starting(tmp_path, "sglang", launch=None)
    assert start.environment["SGLANG_SIMULATE_ACC_LEN"] == "2.4"
    with pytest.raises(UsageError, match="--engine-command may not pass on SGLANG_SIMULATE"):
        starting(tmp_path, "sglang")


def test_a_simulation_that_the_shell_sets_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3")
    plan = plan_of(tmp_path, engines=("sglang",), pairings=("big/small",), launch=None)
    session = next(iter(cycle_of(served_cells(plan, "sglang"), 0)))
    with pytest.raises(UsageError, match="SGLANG_SIMULATE_ACC_LEN is set here"):
        ManagedServers(plan, "sglang", tmp_path)._start_of(session, tmp_path)
