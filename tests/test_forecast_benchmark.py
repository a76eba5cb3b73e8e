"""The benchmark of forecasts: a small run of it, and a target that exceeds every cache."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import forecast
from benchmarks.widened import write_wide_pair
from specbench.inputs.config import load_pairings
from specbench.shipped import PACKAGE

NUM_BYTES = 20_000_000


@pytest.mark.long
@pytest.mark.slow
def test_the_forecast_benchmark_reports_its_errors(tmp_path: Path):
    out = tmp_path / "forecast.json"
    few = ("--prompts", "2", "--repeats", "1", "--most", "2", "--workloads", "chat")
    where = ("--out", str(out), "--runs", str(tmp_path / "runs"))
    forecast.main(["--pairings", "demo/ngram", *few, *where])
    document = json.loads(out.read_text())
    (row,) = document["forecasts"]
    assert [p["num_speculative_tokens"] for p in row["points"]] == [1, 2]
    assert row["worst_length_error"] == 0
    assert document["num_speedups"] == 2 >= document["num_within"]["0.07"]
    for point in row["points"]:
        error = point["measured"]["speedup_error"]
        assert error > -1
        assert abs(error) <= abs(row["worst_speedup_error"])
    assert row["choice_ratio"] <= row["decided_ratio"] <= 1 or row["choice"] == 0
    assert 0 < document["share_to_choose"] < document["share_of_time"]
    assert str(tmp_path) not in out.read_text()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    write_wide_pair(folder, NUM_BYTES)
    return folder


def test_the_wide_target_is_larger_with_equal_outputs(wide: Path):
    plain = AutoModelForCausalLM.from_pretrained(
        PACKAGE / "demo" / "models" / "target", dtype=torch.float32
    )
    larger = AutoModelForCausalLM.from_pretrained(wide / "target")
    ids = AutoTokenizer.from_pretrained(wide / "target")("def add(a, b):", return_tensors="pt")
    with torch.inference_mode():
        torch.testing.assert_close(
            larger(ids.input_ids).logits, plain(ids.input_ids).logits, atol=1e-4, rtol=1e-4
        )
    per_weight = {p.element_size() for p in larger.parameters()}
    assert per_weight == {4}
    assert NUM_BYTES <= 4 * sum(p.numel() for p in larger.parameters()) < 1.01 * NUM_BYTES


def test_the_wide_target_has_the_bundled_drafters_and_prompts(wide: Path):
    pairings = load_pairings(wide / "pairings.yaml")
    assert {p.name.partition("/")[2] for p in pairings.all} == {
        name.partition("/")[2] for name in forecast.PAIRINGS
    }
    assert pairings.target("wide").workloads == PACKAGE / "demo" / "workloads"
