"""Repeats of one setting are pooled, as `vllm bench sweep` stores them."""

import json
from math import exp, sqrt
from pathlib import Path

import pytest

from specbench.importers import import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.metrics.summary import import_warnings, summarize_imported
from specbench.records import Kind
from specbench.stats.spread import student_t
from tests.importers.test_wrong_files import FILES

GIVEN = ImportOverrides(temperature=0.0, num_speculative_tokens=0)
BASE, SPEC = (FILES / f"vllm_{name}.json" for name in ("base", "spec"))


def runs(file, *rates, **values):
    """Results that differ in their throughput, numbered as a sweep numbers them."""
    result = json.loads(file.read_text())
    return [
        result | {"output_throughput": rate, "run_number": i} | values
        for i, rate in enumerate(rates)
    ]


def stored(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    return path


def imported(*files):
    notes = []
    return import_files(files, GIVEN, note=notes.append), notes


def test_figures_are_means_with_their_deviations_and_counts_are_sums(tmp_path):
    results = runs(SPEC, 600.0, 640.0, 680.0)
    (cell,), notes = imported(*(stored(tmp_path / f"{i}.json", r) for i, r in enumerate(results)))
    record = cell.record
    assert record.num_repeats == 3
    assert record.figures["aggregate_tokens_per_s"] == pytest.approx(640)
    assert record.deviations["aggregate_tokens_per_s"] == pytest.approx(40)
    assert record.deviations["ttft_s"] == 0
    assert (record.num_requests, record.figures["num_failed"]) == (240, 0)
    assert record.figures["mean_acceptance_length_when_drafted"] == 2.5
    assert record.file == "0.json, 1.json, 2.json"
    assert len(record.file_sha256) == 64
    deviation = Kind.DEVIATION(metric="aggregate_tokens_per_s", share=pytest.approx(1 / 16))
    assert record.warnings[-1].figures["repeats"] == (3, "repeat")
    assert deviation in record.warnings[-1].figures["deviations"]
    assert ["3 repeats" in note and "1.json" in note for note in notes] == [True]


def test_a_sweeps_folder_counts_each_run_once_and_no_warm_up(tmp_path):
    for name, file in (("SERVE--k0", BASE), ("SERVE--k3", SPEC)):
        results = runs(file, 300.0, 310.0, max_num_seqs=8)
        stored(tmp_path / name / "summary.json", results)
        for i, result in enumerate(results):
            stored(tmp_path / name / f"run={i}.json", result)
        (warmup,) = runs(file, 5.0)
        stored(tmp_path / name / "warmup.json", warmup | {"run_number": -1})
        stored(tmp_path / name / "run=2.failure.json", {"run_number": 2, "error": "crashed"})
    cells, notes = imported(tmp_path)
    assert [(c.key.draft.k, c.record.num_repeats) for c in cells] == [(0, 2), (3, 2)]
    assert {c.record.figures["aggregate_tokens_per_s"] for c in cells} == {305.0}
    assert sum("counted once" in note for note in notes) == 4
    assert sum("warmup.json" in note for note in notes) == 2


def test_the_speedup_of_repeats_has_an_interval_over_them(tmp_path):
    base = stored(tmp_path / "base.json", runs(BASE, 390.0, 400.0, 410.0))
    spec = stored(tmp_path / "spec.json", runs(SPEC, 630.0, 640.0, 650.0))
    cells, _ = imported(base, spec)
    records = [cell.record for cell in cells]
    _, summary = summarize_imported([cell.key for cell in cells], records)
    error = sqrt(((10 / 400) ** 2 + (10 / 640) ** 2) / 3)
    margin = exp(student_t(2, 0.975) * error)  # each side has two degrees of freedom
    assert summary.speedup.estimate == pytest.approx(1.6)
    assert (summary.speedup.low, summary.speedup.high) == pytest.approx(
        (1.6 / margin, 1.6 * margin)
    )
    assert import_warnings(records)[0].figures["units"] == ("repeats",)


def test_the_speedup_in_open_loop_is_of_seconds_per_token_because_arrivals_fix_the_throughput(
    tmp_path,
):
    files = []
    for file, median_ms in ((BASE, 10.0), (SPEC, 4.0)):
        results = runs(file, 399.0, 400.0, 401.0, request_rate=2.0, max_concurrency=4)
        for i, result in enumerate(results):
            result["median_tpot_ms"] = median_ms + i - 1
        files.append(stored(tmp_path / file.name, results))
    cells, _ = imported(*files)
    _, summary = summarize_imported([c.key for c in cells], [c.record for c in cells])
    assert summary.speedup.estimate == summary.metrics["decode_speedup"] == pytest.approx(10 / 4)
    error = sqrt(((1 / 10) ** 2 + (1 / 4) ** 2) / 3)
    assert summary.speedup.low == pytest.approx(2.5 / exp(student_t(2, 0.975) * error))
    assert "end_to_end_speedup" not in summary.metrics  # the files have no latency


@pytest.mark.parametrize("rates", [(640.0,), (640.0, 640.0)], ids=["one run", "equal runs"])
def test_one_run_or_equal_runs_give_no_deviation(tmp_path, rates):
    base = stored(tmp_path / "base.json", runs(BASE, 390.0, 400.0, 410.0))
    cells, _ = imported(base, stored(tmp_path / "spec.json", runs(SPEC, *rates)))
    _, summary = summarize_imported([c.key for c in cells], [c.record for c in cells])
    assert summary.speedup.estimate == pytest.approx(1.6)
    assert summary.speedup.low is None


def test_imported_repeats_refer_to_the_same_prompts(tmp_path):
    results = runs(FILES / "vllm_detailed.json", 100.0, 110.0)
    (cell,), _ = imported(stored(Path(tmp_path) / "summary.json", results))
    prompts = [request.prompt_id for request in cell.record.requests]
    assert prompts[:3] == prompts[3:]
    assert [request.repeat for request in cell.record.requests] == [*range(6)]
