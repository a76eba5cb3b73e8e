"""`specbench export --format`: acceptance of a stored run as a file, and read back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specbench.export.acceptance import _over_prompts, _validation, measured_acceptance
from specbench.export.winner import Selection
from specbench.importers import acceptance_by_k, import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.inputs.config import load_pairings
from specbench.metrics.acceptance import mean_acceptance_length
from specbench.metrics.aggregate import aggregate_run
from specbench.report.document import build_document
from specbench.runs import load_run
from specbench.settings import DecoderSettings
from tests.cli.calls import specbench
from tests.importers.test_acceptance_files import GOLDEN, PROFILE
from tests.report.stored_runs import SMALL, keep, stored_run
from tests.served_sessions import cell_of, served_sweep

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
    """The summary of the made-up run's cell at K on code."""
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
    cells = import_files([file], ImportOverrides())  # its conditions are all that a cell needs
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
    for k in (1, 2):  # of these only the length
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
    cells = [replace(cell, client_bound="client-bound") for cell in aggregate_run(stored)]
    for reason, most in (("client-bound", 4), ("too few rounds", 2)):
        summaries = [
            replace(c, valid=False, invalid_reasons=(reason,)) if c.key.draft.k == 4 else c
            for c in document.cells
        ]
        acceptance = measured_acceptance(pairing, document.run, summaries, cells, at)
        assert max(acceptance.cells) == most


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
    assert "dataset: code" in note
    assert note.count("95% interval") == 3


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


PROFILE_OF = ("--format", "speculation-profile", "--run", "made")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--format", "csv"), "--format 'csv'"),
        (("--format", "golden"), "--thinking on or --thinking off"),
        ((*PROFILE_OF, "--format", "golden", "--thinking", "no", *CODE), "--thinking 'no'"),
        ((*PROFILE_OF, "--thinking", "on"), "other formats do not take it"),
        ((*PROFILE_OF, "--json"), "drop --json and"),
        (PROFILE_OF, "measured on code, creative: name one of them with --workload"),
        ((*PROFILE_OF, *CODE, "-k", "3"), "-k 3: the run measured K = 1, 2, 4"),
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
