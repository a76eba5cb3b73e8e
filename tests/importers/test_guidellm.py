"""Figures that GuideLLM 0.8.1 printed about files/guidellm_k*.json, to the digits it printed."""

import json
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.importers import import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.metrics.summary import summarize_imported

FILES = Path(__file__).parent / "files"
K4 = ImportOverrides(num_speculative_tokens=4)


def changed(tmp_path, change):
    """The report at K = 4 with values changed by `change`."""
    report = json.loads((FILES / "guidellm_k4.json").read_text())
    change(report)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    return file


def test_figures_are_those_that_guidellm_prints():
    base, spec = import_files([f"{FILES / f'guidellm_k{k}.json'}#k={k}" for k in (0, 4)], K4)
    printed = {  # Mdn and p95 of completed requests; Mean of the server's throughput
        "ttft_s": (6.9e-3, 9.4e-3),
        "ttft_s_p95": (9.7e-3, 12.4e-3),
        "tpot_s": (2.3e-3, 1.1e-3),
        "tpot_s_p95": (2.4e-3, 1.1e-3),
    }
    for name, figures in printed.items():
        actual = (base.record.figures[name], spec.record.figures[name])
        assert actual == pytest.approx(figures, abs=0.051e-3), name
    rates = {
        "requests_per_s": (7.3, 14.1),
        "input_tokens_per_s": (282.7, 543.3),
        "aggregate_tokens_per_s": (407.5, 783.2),
        "num_output_tokens": (666, 666),
    }
    for name, figures in rates.items():
        actual = (base.record.figures[name], spec.record.figures[name])
        assert actual == pytest.approx(figures, abs=0.051), name
    assert (spec.record.num_requests, spec.record.num_failed) == (12, 0)
    assert spec.record.measured_at == "2026-11-25T09:24:29+00:00"


def test_requests_that_were_cut_off_count_only_by_their_tokens(tmp_path):
    def cut_off(report):
        for rate in ("requests", "prompt_tokens", "output_tokens"):
            report["benchmarks"][0]["metrics"][f"{rate}_per_second"]["total"]["mean"] = 1000.0

    (cell,) = import_files([changed(tmp_path, cut_off)], K4)
    figures = cell.record.figures
    assert figures["aggregate_tokens_per_s"] == 1000
    assert figures["requests_per_s"] == pytest.approx(14.1, abs=0.05)
    assert figures["input_tokens_per_s"] == pytest.approx(543.3, abs=0.05)


def test_load_model_and_temperature_are_in_the_file_and_k_is_not():
    (cell,) = import_files([FILES / "guidellm_k4.json"], K4)
    setting = cell.key.condition
    assert (setting.target, setting.concurrency, setting.temperature) == ("target", 1, 0)
    assert (setting.engine, setting.request_rate, cell.key.draft.k) == ("openai", None, 4)
    with pytest.raises(UsageError, match=r"guidellm_k4\.json#k=4"):
        import_files([FILES / "guidellm_k4.json"], ImportOverrides())


def test_decode_time_ends_at_the_last_token():
    (cell,) = import_files([FILES / "guidellm_k4.json"], K4)
    request = cell.record.requests[0]
    assert (request.num_output_tokens, request.num_prompt_tokens) == (64, 40)
    assert request.decode_s == pytest.approx(1.130819e-3 * 63, rel=1e-5)
    assert len({r.prompt_id for r in cell.record.requests}) == 12


def test_a_sampled_guidellm_report_has_no_request_records(tmp_path):
    file = changed(tmp_path, lambda r: r["benchmarks"][0]["requests"]["successful"].pop())
    (cell,) = import_files([file], K4)
    assert not cell.record.requests
    assert cell.record.figures["aggregate_tokens_per_s"] == pytest.approx(783.2, abs=0.05)


@pytest.mark.parametrize(
    ("strategy", "load"),
    [
        ({"type_": "synchronous"}, (1, None)),
        ({"type_": "concurrent", "streams": 8}, (8, None)),
        ({"type_": "throughput", "max_concurrency": 32}, (32, None)),
        ({"type_": "poisson", "rate": 2.5, "max_concurrency": None}, (1, 2.5)),  # the peak
    ],
    ids=lambda value: value["type_"] if isinstance(value, dict) else "",
)
def test_each_guidellm_strategy_is_a_cell(tmp_path, strategy, load):
    def add(report):
        first = report["benchmarks"][0]
        second = first | {"config": {"strategy": strategy}}
        first["config"]["strategy"]["streams"] = 64
        report["benchmarks"].append(second)

    cells = import_files([changed(tmp_path, add)], K4)
    loads = [(c.key.condition.concurrency, c.key.condition.request_rate) for c in cells]
    assert loads == [(64, None), load]


def test_guidellm_errors_name_the_missing_key(tmp_path):
    with pytest.raises(UsageError, match=r"report\.json: benchmarks: is empty"):
        import_files([changed(tmp_path, lambda r: r.update(benchmarks=[]))], K4)
    with pytest.raises(UsageError, match=r"benchmarks\[0\]\.metrics: is missing"):
        import_files([changed(tmp_path, lambda r: r["benchmarks"][0].pop("metrics"))], K4)
    with pytest.raises(UsageError, match="--temperature 0"):
        import_files([changed(tmp_path, lambda r: r["benchmarks"][0].pop("requests"))], K4)


def test_a_report_without_streaming_has_no_times_of_tokens(tmp_path):
    """GuideLLM then has distributions of nothing, whose statistics are zeros."""

    def not_streamed(report):
        (benchmark,) = report["benchmarks"]
        for name in ("time_to_first_token_ms", "inter_token_latency_ms"):
            stated = benchmark["metrics"][name]["successful"]
            percentiles = dict.fromkeys(stated["percentiles"], 0.0)
            benchmark["metrics"][name]["successful"] = {
                **dict.fromkeys(stated, 0.0),
                "count": 0,
                "percentiles": percentiles,
            }
            for request in benchmark["requests"]["successful"]:
                request[name] = None

    (cell,) = import_files([changed(tmp_path, not_streamed)], K4)
    assert not [name for name in cell.record.figures if name.startswith(("ttft", "tpot"))]
    assert cell.record.figures["request_latency_s"] > 0
    assert {(r.finish_reason, r.ttft_s, r.decode_s) for r in cell.record.requests} == {
        ("eos", None, None)
    }
    assert cell.record.requests[0].total_s == pytest.approx(0.0839226)


@pytest.mark.parametrize("is_known", [True, False])
def test_requests_are_not_paired_by_prompt_lengths_that_are_unknown(tmp_path, is_known):
    files = []
    for k in (0, 4):
        report = json.loads((FILES / f"guidellm_k{k}.json").read_text())
        for request in report["benchmarks"][0]["requests"]["successful"]:
            request["prompt_tokens"] = request["prompt_tokens"] if is_known else None
        file = tmp_path / f"k{k}.json"
        file.write_text(json.dumps(report))
        files.append(f"{file}#k={k}")
    cells = import_files(files, K4)
    _, summary = summarize_imported([c.key for c in cells], [c.record for c in cells])
    assert (summary.speedup.low is not None) == is_known
