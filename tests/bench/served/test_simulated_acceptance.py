"""Servers that simulate acceptance: the command says so, and the run is marked."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.bench.served.host import ManagedServers
from specbench.bench.served.sessions import cycle_of, served_cells
from specbench.cli.checks import checked
from specbench.errors import UsageError
from specbench.records import SIMULATED
from specbench.report.document import build_document
from specbench.report.document_json import to_json
from specbench.report.provenance import provenance
from tests.bench.served.served_runs import fake, measured, plan_of, settings_for
from tests.cli.calls import specbench
from tests.importers.test_acceptance_files import PROFILE
from tests.report.stored_runs import SMALL, stored_run
from tests.settings.flat_settings import settings_of

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
    assert all(decision.is_synthetic for decision in document.decisions)
    args = ("report", stored.run.run_id, "--runs-dir", "runs", "--json")
    assert json.loads(specbench(*args, cwd=tmp_path).out)["synthetic"] is True


def test_a_run_names_the_file_of_its_acceptance_and_the_hash_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "profile.json").write_bytes(PROFILE.read_bytes())
    sha256 = hashlib.sha256(PROFILE.read_bytes()).hexdigest()
    options = {"pairings": ("a/b",), "workloads": (), "num_speculative_tokens": (0, 3)}
    for typed, name in (("rates/profile.json", "rates/profile.json"), (PROFILE, PROFILE.name)):
        settings = checked(settings_of(**options, acceptance=str(typed)))
        decoder = settings.decoder
        assert decoder.is_synthetic
        assert (decoder.acceptance_file, decoder.acceptance_sha256) == (name, sha256)
        stored = stored_run(SMALL)
        document = build_document(replace(stored, run=replace(stored.run, settings=settings)))
        facts = {fact.name: fact.value for fact in provenance(document)}
        assert facts[f"simulated acceptance of {name}"] == f"sha256 {sha256[:12]}"
        shown = to_json(document)["settings"]
        assert (shown["acceptance_file"], shown["acceptance_sha256"]) == (name, sha256)
    typed_rates = checked(settings_of(**options, acceptance=(0.5,))).decoder
    assert (typed_rates.acceptance_file, typed_rates.acceptance_sha256) == (None, None)


def starting(folder: Path, engine: str, **changes):
    """The environment and the command of the first server that speculates."""
    plan = plan_of(folder, engines=(engine,), acceptance=BY_K, pairings=("big/small",), **changes)
    servers = ManagedServers(plan, engine, folder)
    sessions = cycle_of(served_cells(plan, engine), 0)
    return servers._start_of(next(s for s in sessions if s.draft.k == 2), folder)


def test_variables_of_an_engine_are_in_the_environment_of_its_server(tmp_path):
    start = starting(tmp_path, "sglang", launch=None)
    assert start.environment["SGLANG_SIMULATE_ACC_LEN"] == "2.4"
    with pytest.raises(UsageError, match="--engine-command might not pass on SGLANG_SIMULATE"):
        starting(tmp_path, "sglang")


@pytest.mark.parametrize("is_in_command", [False, True])
def test_a_simulation_that_the_shell_or_the_command_sets_is_refused(
    tmp_path, monkeypatch, is_in_command
):
    """Its drafts would pass for verified ones."""
    launch = None
    if is_in_command:
        launch = "env SGLANG_SIMULATE_ACC_LEN=3 {args}"
    else:
        monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3")
    plan = plan_of(tmp_path, engines=("sglang",), pairings=("big/small",), launch=launch)
    session = next(iter(cycle_of(served_cells(plan, "sglang"), 0)))
    with pytest.raises(UsageError, match="SGLANG_SIMULATE_ACC_LEN is set here"):
        ManagedServers(plan, "sglang", tmp_path)._start_of(session, tmp_path)


def test_flags_that_simulate_are_refused_in_the_engine_command():
    settings = settings_of(
        pairings=("a/b",),
        workloads=(),
        num_speculative_tokens=(0, 3),
        engines=("llama_cpp",),
        launch="llama-server {args} --spec-synth-rates 0.9",
    )
    with pytest.raises(UsageError, match="--spec-synth-rates in the engine's arguments"):
        checked(settings)
