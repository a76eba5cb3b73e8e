"""Figures calculated by hand from the files; see files/README.md."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.importers import formats, import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.metrics.registry import all_metrics
from specbench.metrics.summary import summarize_imported
from specbench.records import Kind
from tests.importers.test_wrong_files import FILES

GREEDY = ImportOverrides(temperature=0.0, num_speculative_tokens=0)


def cell(name, overrides=GREEDY, place=0):
    return import_files([FILES / name], overrides)[place]


def test_vllm_counters_are_those_of_rounds_that_drafted():
    imported = cell("vllm_spec.json")
    figures = imported.record.figures
    assert figures["mean_acceptance_length_when_drafted"] == pytest.approx(1 + 9600 / 6400)
    assert figures["acceptance_rate"] == pytest.approx(9600 / 19200)  # 50% in the file
    # Rounds that drafted nothing are unknown, so figures of all rounds are absent.
    absent = {"mean_acceptance_length", "num_rounds", "acceptance_rate_per_position"}
    assert not absent & set(figures)


def test_figures_of_acceptance_come_with_a_warning_about_their_convention():
    for name in ("vllm_spec.json", "aiperf.json"):
        record = cell(name, ImportOverrides(temperature=0.0, num_speculative_tokens=4)).record
        assert Kind.PAST_THE_END() in record.warnings
    assert not cell("vllm_base.json").record.warnings


def test_a_drafter_that_never_misses_drafts_in_every_round():
    overrides = ImportOverrides(temperature=0.0, pairing="llama/head", method="eagle3")
    figures = cell("vllm_spec.json", overrides).record.figures
    assert figures["mean_acceptance_length"] == 2.5
    assert figures["num_rounds"] == 6400
    assert figures["acceptance_rate_per_position"] == (0.7, 0.5, 0.3)
    lookup = ImportOverrides(temperature=0.0, pairing="llama/ngram", method="ngram")
    assert "mean_acceptance_length" not in cell("vllm_spec.json", lookup).record.figures


def test_imported_rates_without_counts_are_converted_to_fractions(tmp_path):
    result = json.loads((FILES / "vllm_spec.json").read_text())
    for count in ("num_drafts", "draft_tokens", "accepted_tokens"):
        del result[f"spec_decode_{count}"]
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(result))
    (imported,) = import_files([file], GREEDY)
    assert imported.record.figures["acceptance_rate"] == 0.5  # a percentage in the file
    assert imported.record.figures["mean_acceptance_length_when_drafted"] == 2.5


def test_vllm_names_model_load_and_depth():
    imported = cell("vllm_spec.json")
    key = imported.key
    assert (key.condition.target, key.condition.engine, key.draft.drafter) == (
        "Llama-3.1-8B-Instruct",
        "vllm",
        "unknown",
    )
    assert (key.draft.k, key.condition.concurrency, key.condition.request_rate) == (3, 4, None)
    assert imported.record.measured_at == "2026-11-20T10:30:00"
    assert (imported.record.num_requests, imported.record.num_failed) == (80, 0)


def test_k_that_vllms_metadata_states_is_that_of_a_result_without_counters(tmp_path):
    result = json.loads((FILES / "vllm_base.json").read_text()) | {"num_speculative_tokens": "4"}
    file = tmp_path / "stated.json"
    file.write_text(json.dumps(result))
    assert import_files([file], GREEDY)[0].key.draft.k == 4


def test_a_given_concurrency_takes_precedence_over_the_observed_peak(tmp_path):
    result = json.loads((FILES / "vllm_spec.json").read_text())
    result |= {"max_concurrency": None, "request_rate": 10.0, "max_concurrent_requests": 37}
    file = tmp_path / "open.json"
    file.write_text(json.dumps(result))
    given = [ImportOverrides(temperature=0.0, concurrency=rows) for rows in (None, 64)]
    assert [
        import_files([file], overrides)[0].key.condition.concurrency for overrides in given
    ] == [37, 64]


def test_vllm_times_are_seconds():
    figures = cell("vllm_base.json").record.figures
    assert figures["ttft_s"] == pytest.approx(0.050)  # the median, as ours is
    assert figures["tpot_s"] == pytest.approx(0.010)
    assert figures["tpot_s_p95"] == pytest.approx(0.012)
    assert figures["ttft_s_p99"] == pytest.approx(0.090)
    assert figures["inter_chunk_latency_s"] == pytest.approx(0.0095)
    assert figures["inter_chunk_latency_s_p99"] == pytest.approx(0.020)
    assert "request_latency_s" not in figures  # not among its --percentile-metrics
    assert (figures["requests_per_s"], figures["input_tokens_per_s"]) == (2.0, 8000 / 40)
    assert figures["aggregate_tokens_per_s"] == 400.0
    assert "decode_tokens_per_s" not in figures  # needs the requests' own times
    assert "acceptance_rate" not in figures


def test_detailed_files_give_the_decode_speed():
    imported = cell("vllm_detailed.json")
    # 10 tokens in 0.2 s and 20 in 0.3 s; the request that failed is in neither.
    (summary,) = summarize_imported([imported.key], [imported.record])
    assert summary.metrics["decode_tokens_per_s"] == pytest.approx(30 / 0.5)
    assert summary.metrics["user_tokens_per_s"] == pytest.approx((50 + 200 / 3) / 2)
    assert (imported.record.num_requests, imported.record.num_failed) == (3, 1)


@pytest.mark.parametrize("name", ["vllm_base.json", "sglang.jsonl"])
def test_sampled_prompts_of_equal_length_count_as_one(tmp_path, name):
    """An oversampled prompt has another text each time."""
    first, _ = json.JSONDecoder().raw_decode((FILES / name).read_text())
    result = first | {
        "input_lens": [30, 31, 32, 30, 31, 32],
        "output_lens": [11] * 6,
        "ttfts": [0.1] * 6,
        "itls": [[0.5, 0.5]] * 6,
        "generated_texts": [*"abcdef"],
    }
    file = tmp_path / "detailed.json"
    file.write_text(json.dumps(result))
    for temperature, num_prompts in ((0.0, 6), (0.7, 3)):
        given = ImportOverrides(temperature=temperature, num_speculative_tokens=0)
        (imported,) = import_files([file], given)
        prompts = [request.prompt_id for request in imported.record.requests]
        assert prompts == [f"prompt {i % num_prompts}" for i in range(6)]


def test_aiperf_results_are_converted_by_their_units():
    imported = cell(
        "aiperf.json", ImportOverrides(num_speculative_tokens=4, method="eagle3", pairing="a/b")
    )
    assert imported.record.tool_version == "0.13.0"
    assert (imported.key.condition.concurrency, imported.key.condition.temperature) == (4, 0)
    figures = dict(imported.record.figures)
    # 1,600 rounds accepted 0 to 4 tokens: 400, 200, 200, 200 and 600 of them.
    assert figures.pop("acceptance_rate_per_position") == (0.75, 0.625, 0.5, 0.375)
    assert figures == pytest.approx(
        {
            "ttft_s": 0.080,
            "ttft_s_p95": 0.120,
            "ttft_s_p99": 0.144,
            "tpot_s": 0.005,
            "tpot_s_p95": 0.007,
            "tpot_s_p99": 0.0084,
            "request_latency_s": 1.9,
            "request_latency_s_p90": 2.8,
            "request_latency_s_p95": 3.0,
            "request_latency_s_p99": 3.6,
            "requests_per_s": 0.5,
            "aggregate_tokens_per_s": 700.0,
            "user_tokens_per_s": 200.0,
            "num_output_tokens": 8000.0,
            "num_failed": 1.0,
            "num_rounds": 1600.0,
            "mean_acceptance_length": 1 + 3600 / 1600,
            "mean_acceptance_length_when_drafted": 1 + 3600 / 1600,
            "mean_acceptance_length_per_request": 3.2,
            "acceptance_rate": 3600 / 6400,
        }
    )


def test_a_lookup_has_acceptance_only_over_the_rounds_that_drafted():
    figures = cell(
        "aiperf.json", ImportOverrides(num_speculative_tokens=4, method="ngram")
    ).record.figures
    assert figures["mean_acceptance_length_when_drafted"] == 3.25
    assert not {"mean_acceptance_length", "acceptance_rate_per_position"} & set(figures)


def counter(*totals, label="engine"):
    series = [
        {"labels": {label: str(i)}, "stats": {"total": total}} for i, total in enumerate(totals)
    ]
    return {"type": "counter", "series": series}


SPECULATING = {
    "vllm:generation_tokens": counter(1000.0),
    "vllm:spec_decode_num_drafts": counter(100.0, 100.0),  # of two engines
    "vllm:spec_decode_num_draft_tokens": counter(300.0, 300.0),
    "vllm:spec_decode_num_accepted_tokens": counter(200.0, 130.0),
    "vllm:spec_decode_num_accepted_tokens_per_pos": counter(160.0, 110.0, 60.0, label="position"),
}


def aiperf_pair(folder, benchmark="abc123", metrics=SPECULATING):
    """aiperf's result without counts per request, and its server metrics."""
    result = json.loads((FILES / "aiperf.json").read_text())
    kept = {name: value for name, value in result.items() if "spec_decode" not in name}
    server = {
        "aiperf_version": "0.13.0",
        "benchmark_id": benchmark,
        "summary": {},
        "metrics": metrics,
    }
    folder.mkdir(exist_ok=True)
    for name, values in (("profile_export_aiperf", kept), ("server_metrics_export", server)):
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def test_the_servers_counters_give_k_and_acceptance(tmp_path):
    overrides = ImportOverrides(method="eagle3", pairing="a/b")
    (imported,) = import_files([aiperf_pair(tmp_path / "k3")], overrides)
    assert (imported.key.draft.k, imported.record.file) == (3, "profile_export_aiperf.json")
    figures = imported.record.figures
    assert figures["mean_acceptance_length"] == pytest.approx(1 + 330 / 200)
    assert figures["acceptance_rate"] == pytest.approx(330 / 600)
    assert figures["acceptance_rate_per_position"] == pytest.approx((0.8, 0.55, 0.3))
    assert figures["num_rounds"] == 200


def aiperf_requests(latencies_ms, phase="profiling"):
    """Lines of profile_export.jsonl, the last request first; the first token takes 100 ms."""
    values = {"input_sequence_length": (550, "tokens"), "time_to_first_token": (100.0, "ms")}
    return [
        {
            "metadata": {
                "conversation_id": f"session_{i}",
                "turn_index": 0,
                "request_start_ns": 1759813207532900363 + i * 10**6,
                "benchmark_phase": phase,
            },
            "metrics": {
                name: {"value": value, "unit": unit}
                for name, (value, unit) in {
                    **values,
                    "request_latency": (latency, "ms"),
                    "output_sequence_length": (9, "tokens"),
                }.items()
            },
            "error": None,
        }
        for i, latency in reversed([*enumerate(latencies_ms)])
    ]


def test_the_requests_of_aiperf_are_read_from_its_folder(tmp_path):
    folder, file = aiperf_pair(tmp_path / "k3"), tmp_path / "k3" / "profile_export.jsonl"
    lines = [*aiperf_requests([900.0], "warmup"), *aiperf_requests([300.0, 500.0])]
    file.write_text("\n".join(map(json.dumps, lines)))
    (imported,) = import_files([folder], ImportOverrides())
    assert [r.prompt_id for r in imported.record.requests] == ["session_0", "session_1"]
    assert [r.decode_s for r in imported.record.requests] == pytest.approx([0.2, 0.4])
    assert {(r.ttft_s, r.num_output_tokens) for r in imported.record.requests} == {(0.1, 9)}
    with pytest.raises(UsageError, match=r"profile_export_aiperf\.json .* 0 are given"):
        import_files([file], ImportOverrides())


def test_the_turns_of_an_aiperf_conversation_belong_to_one_prompt(tmp_path):
    folder, lines = aiperf_pair(tmp_path / "k3"), aiperf_requests([300.0] * 20)
    for i, line in enumerate(reversed(lines)):
        line["metadata"] |= {"conversation_id": f"session_{i // 10}", "turn_index": i % 10}
    (folder / "profile_export.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (imported,) = import_files([folder], ImportOverrides())
    assert [(r.prompt_id, r.turn) for r in imported.record.requests] == [
        (f"session_{conversation}", turn) for conversation in range(2) for turn in range(10)
    ]
    (summary,) = summarize_imported([imported.key], [imported.record])
    assert summary.num_prompts == 2


def test_a_server_without_counters_of_speculation_is_k_0(tmp_path):
    folder = aiperf_pair(tmp_path / "k0", metrics={"vllm:generation_tokens": counter(1000.0)})
    (imported,) = import_files([folder], ImportOverrides())
    assert imported.key.is_baseline
    other = aiperf_pair(tmp_path / "unknown", metrics={"sglang:num_requests": counter(1.0)})
    with pytest.raises(UsageError, match="#k="):
        import_files([other], ImportOverrides())


def test_server_metrics_of_another_benchmark_are_refused(tmp_path):
    folder = aiperf_pair(tmp_path / "k3", benchmark="another")
    with pytest.raises(UsageError, match=r"server_metrics_export\.json.*profile_export_aiperf"):
        import_files([folder], ImportOverrides())


def test_a_histogram_beyond_k_names_its_entry():
    with pytest.raises(UsageError, match=r"pooled_spec_decode_acceptance_histogram\.4: .* 3$"):
        import_files([f"{FILES / 'aiperf.json'}#k=3"], ImportOverrides(method="eagle3"))


def test_each_file_has_its_own_k():
    files = [f"{FILES / name}#k={k}" for name, k in (("vllm_base.json", 0), ("aiperf.json", 4))]
    overrides = ImportOverrides(pairing="a/b", temperature=0.0)
    assert [imported.key.draft.k for imported in import_files(files, overrides)] == [0, 4]


def test_a_given_k_that_contradicts_the_file_is_refused():
    with pytest.raises(UsageError, match=r"vllm_spec\.json: #k=4 .* K=3"):
        import_files([f"{FILES / 'vllm_spec.json'}#k=4"], GREEDY)


@pytest.mark.parametrize("fact", ["k=", "k=-1", "k=65", "k=4.0", "K=4", "4", "concurrency=4", ""])
def test_only_k_may_follow_the_name_of_an_import_file(fact):
    with pytest.raises(UsageError, match=r"vllm_base\.json#k=4"):
        import_files([f"{FILES / 'vllm_base.json'}#{fact}"], GREEDY)


def test_an_import_file_name_may_contain_a_k_fragment(tmp_path):
    file = tmp_path / "run#k=4"
    file.write_bytes((FILES / "vllm_base.json").read_bytes())
    (imported,) = import_files([file], GREEDY)
    assert imported.key.draft.k == 0
    (imported,) = import_files([f"{file}#k=2"], GREEDY)
    assert imported.key.draft.k == 2


def test_importing_a_folder_reads_its_results_and_reports_other_files(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("vllm_base.json", "inner/vllm_spec.json"):
        (tmp_path / name).write_bytes((FILES / Path(name).name).read_bytes())
    (tmp_path / "notes.txt").write_text("not JSON")
    (tmp_path / "inputs.json").write_text('{"data": []}')
    (tmp_path / "cut.json").write_text('{"date": ')
    notes = []
    cells = import_files([tmp_path], GREEDY, note=notes.append)
    assert sorted(imported.key.draft.k for imported in cells) == [0, 3]
    assert [note.partition(".json")[0].rpartition("/")[2] for note in notes] == ["cut", "inputs"]


def test_a_folder_without_results_is_refused(tmp_path):
    (tmp_path / "inputs.json").write_text('{"data": []}')
    with pytest.raises(
        UsageError, match="aiperf, golden acceptance lengths, guidellm, sglang bench_serving, "
    ):
        import_files([tmp_path], GREEDY)


def test_files_of_different_models_are_refused_unless_their_name_is_given(tmp_path):
    result = json.loads((FILES / "vllm_base.json").read_text()) | {"model_id": "other/Qwen3-8B"}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(result))
    files = [FILES / "vllm_spec.json", other]
    with pytest.raises(UsageError, match=r"Llama-3\.1-8B-Instruct in .*Qwen3-8B in .*--pairing"):
        import_files(files, GREEDY)
    notes = []
    overrides = ImportOverrides(temperature=0.0, num_speculative_tokens=0, pairing="llama/head")
    assert len(import_files(files, overrides, note=notes.append)) == 2
    assert "Qwen3-8B" in notes[0]
    other.write_text(json.dumps(result | {"model_id": "/models/Llama-3.1-8B-Instruct/"}))
    assert len(import_files(files, GREEDY)) == 2


@pytest.mark.parametrize(
    "extra",
    [
        "--extra-inputs temperature:0.7 --extra-inputs top_p:0.9",
        "--extra-inputs top_p:0.9 temperature:0.7 --concurrency 4",
        "--extra-inputs=top_p:0.9,temperature:0.7 --extra-inputs=seed:1",
        "--extra-inputs temperature:0 --extra-inputs temperature:0.7",
    ],
)
def test_a_temperature_is_found_among_all_extra_inputs(tmp_path, extra):
    result = json.loads((FILES / "aiperf.json").read_text())
    command = f"aiperf profile --model m --concurrency 4 {extra} --streaming"
    for holder in ("run_info", "input_config"):
        result[holder] = result.get(holder, {}) | {"cli_command": command}
    file = tmp_path / "aiperf.json"
    file.write_text(json.dumps(result))
    (imported,) = import_files([file], ImportOverrides(num_speculative_tokens=4))
    assert imported.key.condition.temperature == 0.7


def test_a_line_of_sglang_is_a_cell_and_its_accept_length_is_marked():
    base, spec = import_files([FILES / "sglang.jsonl"], ImportOverrides(temperature=0.0))
    assert (base.key.draft.k, base.key.draft.method) == (0, "none")
    assert (spec.key.draft.k, spec.key.condition.workload) == (4, "sharegpt")
    assert spec.key.condition.target == base.key.condition.target == "Qwen3-8B"
    assert spec.record.figures["mean_acceptance_length"] == 2.8
    assert spec.record.figures["request_latency_s"] == pytest.approx(1.9)
    assert spec.record.figures["inter_chunk_latency_s_p95"] == pytest.approx(0.030)
    assert spec.record.figures["input_tokens_per_s"] == 666.0
    assert Kind.SINCE_START() in spec.record.warnings
    assert "mean_acceptance_length" not in base.record.figures
    assert base.record.num_failed is None  # the line has no list of errors


def test_k_of_an_sglang_server_without_steps_follows_from_its_draft_tokens(tmp_path):
    _, line = (FILES / "sglang.jsonl").read_text().splitlines()
    result = json.loads(line)
    steps = {"speculative_num_steps": None, "speculative_num_draft_tokens": 9}
    result["server_info"] |= {"speculative_algorithm": "NGRAM", **steps}
    file = tmp_path / "ngram.jsonl"
    file.write_text(json.dumps(result))
    (spec,) = import_files([file], ImportOverrides(temperature=0.0))
    assert spec.key.draft.k == 8


def test_imported_metrics_have_registered_names():
    overrides = ImportOverrides(
        temperature=0.0, num_speculative_tokens=4, method="eagle3", concurrency=4
    )
    files = [path for path in FILES.iterdir() if path.suffix in (".json", ".jsonl")]
    files.append(FILES / "golden.yaml")
    assert len(files) == 10
    for file in files:
        for imported in import_files([file], overrides):
            assert set(imported.record.figures) <= set(all_metrics())
            assert len(imported.record.file_sha256) == 64
            assert imported.record.file == file.name


def test_each_format_recognizes_only_its_results():
    assert [known.TOOL for known in formats()] == [
        "aiperf",
        "golden acceptance lengths",
        "guidellm",
        "sglang bench_serving",
        "specbench report --row",
        "specdec_bench",
        "speculation_profile.json",
        "trtllm-bench",
        "vllm bench serve",
    ]
    for name, tool in (
        ("aiperf.json", "aiperf"),
        ("golden.yaml", "golden acceptance lengths"),
        ("guidellm_k4.json", "guidellm"),
        ("sglang.jsonl", "sglang bench_serving"),
        ("vllm_base.json", "vllm bench serve"),
    ):
        overrides = ImportOverrides(temperature=0, num_speculative_tokens=4, concurrency=1)
        assert cell(name, overrides).record.tool == tool


GIVEN = ImportOverrides(temperature=0.0, concurrency=8)


def imported(tmp_path, given=GIVEN, **stats):
    """The report with other decoding statistics, or without any if `mode` is None."""
    report = json.loads((FILES / "trtllm.json").read_text())
    report["decoding_stats"] = report["decoding_stats"] | stats if stats.get("mode", 1) else None
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    (cell,) = import_files([file], given)
    return cell


def test_k_and_acceptance_follow_from_the_means_over_requests(tmp_path):
    cell = imported(tmp_path)
    assert (cell.key.draft.k, cell.key.condition.target) == (3, "Target-8B")
    figures = cell.record.figures
    assert figures["mean_acceptance_length"] == pytest.approx(40 / 18)
    assert figures["mean_acceptance_length_per_request"] == 2.25  # as printed: [AL] AVERAGE
    assert figures["acceptance_rate"] == pytest.approx(22 / 54)
    assert (figures["request_latency_s"], figures["tpot_s"]) == pytest.approx((0.950, 0.045))
    assert (figures["ttft_s"], figures["ttft_s_p95"]) == pytest.approx((0.080, 0.120))
    assert (figures["requests_per_s"], figures["aggregate_tokens_per_s"]) == (2.0, 40.0)


def test_errors_name_the_missing_option_and_the_broken_key(tmp_path):
    with pytest.raises(UsageError, match=r"report\.json#k=0 for a server without speculation"):
        imported(tmp_path, mode=None)
    assert imported(tmp_path, replace(GIVEN, num_speculative_tokens=0), mode=None).key.is_baseline
    with pytest.raises(UsageError, match="--concurrency 8"):
        imported(tmp_path, ImportOverrides(temperature=0.0))
    with pytest.raises(UsageError, match=r"acceptance_length_percentiles\.average: expected"):
        imported(tmp_path, acceptance_length_percentiles={"average": "long"})
