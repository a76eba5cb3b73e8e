"""`specbench export`: a shell script, a file or a document, from a run or by hand; and acceptance
of a stored run as a file (`--format`) that is read back.
"""

import json
import runpy
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import yaml

from specbench.cli.export import measured_deployment
from specbench.decide.objective import one_k
from specbench.export.acceptance import (
    _over_prompts,
    _validation,
    golden_lengths,
    measured_acceptance,
)
from specbench.export.winner import Selection
from specbench.importers import acceptance_by_k, import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.inputs.config import load_pairings
from specbench.metrics.acceptance import mean_acceptance_length
from specbench.metrics.aggregate import aggregate_run
from specbench.records import Kind, SpeedupVerdict
from specbench.report.document import build_document
from specbench.runs import load_run
from specbench.settings import DecoderSettings
from specbench.words.answers import decision_sentence
from tests.cli.calls import specbench
from tests.importers.test_acceptance_files import GOLDEN, PROFILE
from tests.report.stored_runs import SMALL, keep, stored_run
from tests.served_sessions import cell_of, served_sweep

BY_HAND = ("-k", "3")


def decided_k(tiny, name):
    decisions = build_document(load_run("latest", tiny / "reports")).decisions
    return next(d for d in decisions if d.leader.pairing == name)


@pytest.mark.slow
def test_export_uses_the_newest_run(tiny, finished):
    assert finished.is_complete
    for name in ("tiny/draft", "tiny/ngram"):
        ran = specbench("export", name, "--engine", "vllm", cwd=tiny)
        decision = decided_k(tiny, name)
        if decision.verdict is SpeedupVerdict.UNDECIDED:
            assert (ran.code, ran.err) == (3, "")
            assert decision_sentence(decision) in ran.out
            assert "vllm serve" not in ran.out
            continue
        assert (ran.code, ran.err) == (0, "")
        first = ran.out.splitlines()[0]
        assert decision_sentence(decision) in first
        assert sum(line.startswith("# ") for line in ran.out.splitlines()) <= 3
        assert ("--speculative-config" in ran.out) == (decision.draft.k > 0)
        assert ("do not speculate" in ran.out) == (decision.draft.k == 0)


@pytest.mark.slow
def test_a_target_without_a_drafter_means_its_best_one(tiny, finished):
    assert finished.is_complete
    ran = specbench("export tiny --engine vllm --json", cwd=tiny)
    assert ran.code in (0, 3)
    assert json.loads(ran.out)["pairing"] in ("tiny/draft", "tiny/ngram")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "llama.cpp", "transformers"])
def test_export_prints_a_shell_script_that_ends_with_the_command(tiny, engine, tmp_path):
    ran = specbench("export tiny/draft --engine", engine, *BY_HAND, cwd=tiny)
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(
        specbench("export tiny/draft --engine", engine, *BY_HAND, "--json", cwd=tiny).out
    )
    assert ran.out.splitlines()[-1] == document["command_line"]
    # The shell runs it with a stand-in for the engine, which receives the intended words.
    program, *words = document["command"]
    stand_in = tmp_path / program
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    shell = subprocess.run(
        ["sh", "-c", ran.out],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert shell.stdout.splitlines() == words
    if document["config"]:
        assert (tmp_path / document["config"]["name"]).read_text() == document["config"]["text"]


def test_output_writes_the_config_that_the_command_names(tiny, tmp_path):
    file = tmp_path / "my file.yaml"
    ran = specbench("export tiny/draft --engine tensorrt_llm", *BY_HAND, "--output", file, cwd=tiny)
    assert ran.code == 0
    assert "decoding_type: Draft_Target" in file.read_text()
    command = ran.out.splitlines()[-2]
    assert shlex.split(command)[-2:] == ["--config", str(file)]
    assert ran.out.splitlines()[-1] == f"# written: {file}"


def test_output_writes_the_command_without_a_config(tiny, tmp_path):
    file = tmp_path / "serve.sh"
    printed = specbench("export tiny/ngram --engine vllm", *BY_HAND, cwd=tiny).out
    assert (
        specbench("export tiny/ngram --engine vllm", *BY_HAND, "--output", file, cwd=tiny).code == 0
    )
    assert file.read_text() == printed


def generated(tiny, tmp_path, pairing, k):
    """The output of the exported program for one prompt, run in this process."""
    file = tmp_path / f"generate_{k}.py"
    arguments = ("export", pairing, "--engine", "transformers", "-k", str(k), "--output", file)
    assert specbench(*arguments, cwd=tiny).code == 0
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(tiny), redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(file), "Name", "a", "colour"])
        runpy.run_path(str(file))
    return printed.getvalue()


@pytest.mark.sampled(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["tiny/draft", "tiny/ngram"])
def test_the_program_for_transformers_runs_and_is_lossless(tiny, tmp_path, pairing):
    alone = generated(tiny, tmp_path, pairing, 0)
    assert len(alone) > 20
    assert generated(tiny, tmp_path, pairing, 3) == alone


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("nobody/draft --engine vllm", "no pairing 'nobody/draft'"),
        ("tiny/draft --engine ollama", "choose from ik_llama_cpp, llama_cpp"),
        ("tiny/draft --engine vllm --engine-version 0.1", "before 0.30"),
        ("tiny --engine vllm -k 3", "-k 3: name one drafter"),
        ("tiny/draft --engine vllm -k 3 --run x", "exclude each other"),
        ("tiny/draft --engine vllm -k 3 -w poems", "-w selects among"),
        ("tiny/draft --engine vllm -k 3 --concurrency 2", "--concurrency selects"),
        ("tiny/draft --engine vllm --run no-run", "no run 'no-run'"),
        ("tiny/draft --engine vllm -w poems", "no decision for tiny/draft on poems"),
        ("tiny/draft --engine vllm --runs-dir elsewhere", "no run in elsewhere measured"),
        ("tiny/draft --engine vllm -k 3 --output no/such/dir", "cannot be written"),
    ],
)
def test_export_exits_2_for_invalid_arguments(tiny, finished, arguments, complaint):
    assert finished.is_complete
    ran = specbench(f"export {arguments}", cwd=tiny)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err


def test_a_run_with_dummy_weights_gives_no_k_to_export(tiny, finished, tmp_path):
    assert finished.is_complete
    source = load_run("latest", tiny / "reports").folder
    copy = tmp_path / "reports" / source.name
    shutil.copytree(source, copy)
    text = (copy / "run.json").read_text()
    (copy / "run.json").write_text(text.replace('"dummy_weights": false', '"dummy_weights": true'))
    ran = specbench("export tiny/draft --engine vllm --runs-dir", copy.parent, cwd=tiny)
    assert ran.code == 2
    assert "which K" in ran.err


AT = ("--temperature", "0", "--concurrency", "1")
CODE = ("-w", "code")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a run of two workloads, and a synthetic one."""
    folder, made = tmp_path_factory.mktemp("acceptance"), stored_run(SMALL)
    keep(folder / "reports", "made", made)
    settings = replace(made.run.settings, decoder=DecoderSettings(acceptance=(0.5,)))
    keep(folder / "reports", "synthetic", replace(made, run=replace(made.run, settings=settings)))
    for name, file in (("profile", PROFILE), ("golden", GOLDEN)):
        options = ("--pairing", "demo/draft", "-w", "chat", *AT, "--runs-dir", name)
        assert specbench("import", file, *options, cwd=folder).code == 0
    return folder


def exported(folder, form, *options, run="made"):
    ran = specbench("export demo/draft --format", form, "--run", run, *options, cwd=folder)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def measured(folder, k):
    """The summary of the synthetic run's cell at K on code."""
    document = build_document(load_run("made", folder / "reports"))
    (cell,) = (
        c
        for c in document.cells
        if c.key.pairing == "demo/draft"
        and (c.key.condition.workload, c.key.draft.k) == ("code", k)
    )
    return cell


def test_a_measured_profile_reads_back_with_equal_numbers(folder, tmp_path):
    file = tmp_path / "speculation_profile.json"
    file.write_text(exported(folder, "speculation-profile", *CODE))
    cells = import_files([file], ImportOverrides())  # a cell needs only its conditions
    known = {cell.key.draft.k: cell for cell in cells}
    assert set(known) == {1, 2, 4}
    summary, cell = measured(folder, 4), known[4]
    at, other = cell.key.condition, summary.key.condition
    assert (at.workload, at.engine, at.temperature) == (
        other.workload,
        other.engine,
        other.temperature,
    )
    assert cell.key.draft.method == "draft_model"
    assert len(cell.record.figures) == 6
    for name, value in cell.record.figures.items():
        assert value == pytest.approx(summary.metrics[name], abs=1e-12), name
    for k in (1, 2):  # only the length of these
        length = known[k].record.figures["mean_acceptance_length"]
        assert length == measured(folder, k).metrics["mean_acceptance_length"]
    assert set(acceptance_by_k([cell])) == {1, 2, 3, 4}  # it drafts token by token


def test_a_profile_has_conditions_and_an_interval(folder):
    profile = json.loads(exported(folder, "speculation-profile", *CODE, "-k", "2"))
    assert profile["num_speculative_tokens"] == 2
    conditions = profile["measurement_conditions"]
    assert (conditions["dataset"], conditions["run"]) == ("code", "made")
    low, high = conditions["mean_accept_length_95_interval"]
    assert 1 <= low < profile["mean_accept_length"] < high <= 3
    histogram = profile["acceptance_length_histogram"]
    assert sum(int(n) * num for n, num in histogram.items()) / sum(
        histogram.values()
    ) == pytest.approx(profile["mean_accept_length"])  # lengths have the bonus token
    assert profile["conditional_accept_rates"][0] == profile["marginal_accept_rates"][0]
    assert profile["conditional_accept_rates"][1] > profile["marginal_accept_rates"][1]
    checks = profile["validation"]
    assert checks["marginal_monotonicity"] == {"passed": True, "violations": []}
    consistency = checks["mean_consistency"]
    assert consistency["passed"] is True
    assert consistency["implied_mean_accept_length"] == pytest.approx(
        1 + sum(profile["marginal_accept_rates"])
    )


def test_the_acceptance_of_a_client_bound_cell_is_exported_but_not_of_an_invalid_one(folder):
    stored = load_run("made", folder / "reports")
    document, at = build_document(stored), Selection(workload="code")
    (pairing,) = load_pairings().select(["demo/draft"])
    bound = Kind.CLIENT_BUSY(share=0.9, most=0.5)
    cells = [replace(cell, client_bound=bound) for cell in aggregate_run(stored)]
    for reason, most in ((bound, 4), (Kind.TOO_FEW_ROUNDS(needed=30), 2)):
        summaries = [
            replace(c, valid=False, invalid_reasons=(reason,)) if c.key.draft.k == 4 else c
            for c in document.cells
        ]
        acceptance = measured_acceptance(pairing, document.run, summaries, cells, at)
        assert max(acceptance.cells) == most


def test_golden_lengths_are_those_of_the_rounds_that_drafted(folder):
    document = build_document(load_run("made", folder / "reports"))
    (pairing,) = load_pairings().select(["demo/draft"])
    figure = {"mean_acceptance_length_when_drafted": 1.75}
    cells = [replace(c, metrics={**c.metrics, **figure}) for c in document.cells]
    at = Selection(workload="code")
    acceptance = measured_acceptance(pairing, document.run, cells, [], at)
    (lengths,) = yaml.safe_load(golden_lengths(acceptance, "on"))["demo"].values()
    assert lengths == {1: 1.75, 2: 1.75, 4: 1.75}


def test_a_profile_lists_the_checks_it_violates():
    checks = _validation([0.5, 0.6], 2.5)
    assert checks["marginal_monotonicity"]["violations"] == [
        {"position": 1, "value": 0.6, "previous": 0.5}
    ]
    assert checks["mean_consistency"]["abs_delta"] == pytest.approx(0.4)
    assert not any(check["passed"] for check in checks.values())


def test_measured_golden_lengths_read_back_with_equal_numbers(folder, tmp_path):
    file = tmp_path / "golden.yaml"
    file.write_text(exported(folder, "golden", "--thinking", "off", *CODE))
    cells = import_files([file], ImportOverrides(temperature=0.0, concurrency=1))
    lengths = {c.key.draft.k: c.record.figures["mean_acceptance_length"] for c in cells}
    assert lengths == {
        k: measured(folder, k).metrics["mean_acceptance_length_when_drafted"] for k in (1, 2, 4)
    }
    assert {cell.key.condition.workload for cell in cells} == {"thinking_off"}
    (note,) = {cell.record.warnings[0] for cell in cells}
    facts = note.figures["facts"]
    assert any("dataset: code" in fact for fact in facts)
    assert sum("95% interval" in fact for fact in facts) == 3


def test_imported_acceptance_is_exported_unchanged(folder, tmp_path):
    options = ("--runs-dir", "golden", "--thinking", "on")
    (curves,) = yaml.safe_load(GOLDEN.read_text()).values()
    assert yaml.safe_load(exported(folder, "golden", *options, run="latest"))["demo"] == curves
    out = tmp_path / "out.json"
    options = ("--runs-dir", "profile", "-o", str(out))
    assert exported(folder, "speculation-profile", *options, run="latest").endswith(f"{out}\n")
    written, read = json.loads(out.read_text()), json.loads(PROFILE.read_text())
    for key in ("num_speculative_tokens", "mean_accept_length", "marginal_accept_rates"):
        assert written[key] == read[key]
    assert written["conditional_accept_rates"] == pytest.approx(read["conditional_accept_rates"])
    assert written["acceptance_length_histogram"] is None
    assert written["measurement_conditions"]["mean_accept_length_95_interval"] is None


def test_an_export_states_the_losses_of_the_report(folder):
    document = build_document(load_run("made", folder / "reports"))
    (shared,) = (s for s in document.shared_k if s.key.pairing == "demo/draft")
    assert shared.regret_bounds
    chosen = load_pairings().select(["demo/draft"])
    made, _ = measured_deployment(chosen, Selection(), "made", folder / "reports")
    assert made.basis[-1] == one_k(shared)


PROFILE_OF = ("--format", "speculation-profile", "--run", "made")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--format", "csv"), "--format 'csv'"),
        (("--format", "golden"), "--thinking on or --thinking off"),
        ((*PROFILE_OF, "--format", "golden", "--thinking", "no", *CODE), "--thinking 'no'"),
        ((*PROFILE_OF, "--thinking", "on"), "other formats do not take it"),
        ((*PROFILE_OF, "--json"), "drop --json"),
        ((*PROFILE_OF, *CODE, "--simulate-acceptance", "0.5"), "--simulate-acceptance"),
        (("--format", "golden", "--thinking", "on", *CODE, "-k", "2"), "drop -k"),
        (PROFILE_OF, "measured on code, creative: name one of them with --workload"),
        ((*PROFILE_OF, *CODE, "-k", "3"), "-k 3: the run measured K=1, 2, 4"),
        ((*PROFILE_OF, "-w", "talk"), "no valid acceptance of demo/draft"),
        ((*PROFILE_OF, *CODE, "--engine", "vllm"), "no valid acceptance of demo/draft"),
        (("--format", "speculation-profile", "--run", "synthetic"), "simulated acceptance"),
        ((), "--engine is missing"),
    ],
)
def test_wrong_options_are_refused(folder, options, complaint):
    ran = specbench("export", "demo/draft", *options, cwd=folder)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err


def test_an_acceptance_export_needs_a_single_drafter(folder):
    ran = specbench("export", "demo", *PROFILE_OF, *CODE, cwd=folder)
    assert (ran.code, "name one drafter: demo/draft" in ran.err) == (2, True)


def test_acceptance_over_prompts_follows_from_the_counts_of_a_server():
    cell = cell_of(served_sweep(), 4)
    length = _over_prompts(cell, when_drafted=False)
    assert length is not None
    assert length.estimate == pytest.approx(mean_acceptance_length(cell))
    counts = [replace(r.counts, num_rounds=16, num_drafting=8) for r in cell.finished if r.counts]
    half = replace(
        cell,
        requests=tuple(
            replace(r, counts=count) for r, count in zip(cell.finished, counts, strict=True)
        ),
    )
    accepted = length.estimate - 1  # of 8 rounds per request
    for when_drafted, expected in ((False, 1 + accepted / 2), (True, 1 + accepted)):
        changed = _over_prompts(half, when_drafted=when_drafted)
        assert changed is not None
        assert changed.estimate == pytest.approx(expected)
    bare = replace(cell, requests=tuple(replace(r, counts=None) for r in cell.finished))
    assert _over_prompts(bare, when_drafted=False) is None
