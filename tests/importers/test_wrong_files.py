"""Errors of a file name the file, and the key if there is one."""

import json
import math
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.importers import import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.importers.result_file import MAX_BYTES

FILES = Path(__file__).parent / "files"
TOLD = ImportOverrides(temperature=0.0, num_speculative_tokens=0)


def refusal(file, overrides=TOLD):
    with pytest.raises(UsageError) as raised:
        import_files([file], overrides)
    assert str(file) in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"{", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b"[]", "expected a JSON object, not a list"),
        (b'[{"a": 1}, 2]', "[1]: expected a JSON object, not a number"),
        (b"null", "expected a JSON object, not null"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a": 1, "a": 2}', "the key 'a' is given twice"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"n": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"hello": "world"}', "not a result file of a known tool"),
        (b'{"a": 1}\n{"a": 2', "2: not JSON"),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else value,
)
def test_a_file_without_a_result_is_refused(tmp_path, content, complaint):
    file = tmp_path / "result.json"
    file.write_bytes(content)
    assert complaint in refusal(file)


def test_an_absent_file_and_an_empty_folder_are_refused(tmp_path):
    assert "No such file" in refusal(tmp_path / "absent.json")
    assert "vllm bench serve" in refusal(tmp_path)  # the tools whose files it might hold


def test_a_file_too_large_for_a_result_is_not_read(tmp_path):
    file = tmp_path / "result.json"
    with file.open("wb") as opened:
        opened.truncate(MAX_BYTES + 1)
    assert f"{MAX_BYTES >> 20} MiB" in refusal(file)


def changed(tmp_path, **values):
    """The vLLM result with other values; `...` omits one."""
    result = json.loads((FILES / "vllm_spec.json").read_text()) | values
    file = tmp_path / "changed.json"
    file.write_text(json.dumps({k: v for k, v in result.items() if v is not ...}))
    return file


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("output_throughput", "fast"),
        ("output_throughput", True),
        ("output_throughput", -1.0),
        ("median_ttft_ms", math.nan),
        ("median_ttft_ms", math.inf),
        ("median_tpot_ms", [1.0]),
        ("completed", 1.5),
        ("completed", 10**30),
        ("spec_decode_num_drafts", {}),
        ("spec_decode_per_position_acceptance_rates", "0.7"),
        ("spec_decode_per_position_acceptance_rates", [0.7, None]),
        ("model_id", 7),
        ("model_id", "a\x1b[31mb"),
        ("max_concurrency", "four"),
        ("request_rate", "often"),
    ],
)
def test_an_impossible_value_is_refused_with_its_key(tmp_path, key, value):
    assert f": {key}" in refusal(changed(tmp_path, **{key: value}))


def test_values_that_are_missing_or_null_stay_missing(tmp_path):
    for nothing in (..., None):
        file = changed(tmp_path, output_throughput=nothing, median_ttft_ms=nothing, failed=nothing)
        (imported,) = import_files([file], TOLD)
        assert not {"aggregate_tokens_per_s", "ttft_s", "num_failed"} & set(imported.record.figures)
        assert imported.record.num_failed is None


def test_the_error_names_a_missing_fact_and_its_option(tmp_path):
    assert "give --temperature" in refusal(FILES / "vllm_spec.json", ImportOverrides())
    assert "vllm_base.json#k=0" in refusal(
        FILES / "vllm_base.json", ImportOverrides(temperature=0.0)
    )
    alone = changed(tmp_path, max_concurrency=None, max_concurrent_requests=None)
    assert "give --concurrency" in refusal(alone)


def test_request_lists_of_unequal_length_are_refused(tmp_path):
    file = changed(tmp_path, output_lens=[5, 6], itls=[[0.1]], ttfts=[0.1, 0.1], input_lens=[3, 4])
    assert ": itls: 1 requests, 2 in output_lens" in refusal(file)


def test_an_unknown_unit_is_refused(tmp_path):
    result = json.loads((FILES / "aiperf.json").read_text())
    result["time_to_first_token"]["unit"] = "fortnights"
    file = tmp_path / "aiperf.json"
    file.write_text(json.dumps(result))
    message = refusal(file, ImportOverrides(num_speculative_tokens=4))
    assert {"time_to_first_token.unit:", "'fortnights'", "s,"} <= set(message.split())


@pytest.mark.parametrize(
    ("values", "difference"),
    [
        ({"completed": 79, "failed": 0}, "number of requests: 80 and 79"),
        ({"total_input_tokens": 80000}, "input tokens per request: "),
        ({"run_number": 0, "max_num_seqs": 8}, "swept parameters: none and max_num_seqs=8"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_two_results_of_one_cell_that_differ_are_refused(tmp_path, values, difference):
    with pytest.raises(
        UsageError, match=r"changed\.json: not a repeat of vllm_spec\.json"
    ) as raised:
        import_files([FILES / "vllm_spec.json", changed(tmp_path, **values)], TOLD)
    assert difference in str(raised.value)
    assert "changed.json#k=4" in str(raised.value)
