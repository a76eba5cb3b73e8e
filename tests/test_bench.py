"""The CPU benchmarks: interleaving, ratios, and documents in which every figure was measured."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import auto, bench, forecast
from benchmarks.turns import Sample, median_ratio, take_turns


def test_every_candidate_runs_in_every_round_in_changing_order() -> None:
    order: list[str] = []

    def measure(name: str) -> Sample:
        order.append(name)
        return Sample(1.0, 2.0)

    samples = take_turns({name: lambda n=name: measure(n) for name in "abc"}, 3)

    assert "".join(order) == "abcbcacab"
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3, "c": 3}


def test_turns_end_with_a_whole_round_when_time_is_up() -> None:
    answers = iter([True, False])
    measure = {name: lambda: Sample(1.0, 1.0) for name in "ab"}
    samples = take_turns(measure, 9, may_go_on=lambda: next(answers))
    assert [len(times) for times in samples.values()] == [2, 2]


def test_the_median_ratio_interval_uses_order_statistics() -> None:
    # Ten ratios 1 .. 10: with a fair coin fewer than 2 of 10 heads come in 1.1% of throws, so
    # the second from either end bounds the median.
    interval = median_ratio([10.0 * i for i in range(1, 11)], [10.0] * 10)
    assert (interval.estimate, interval.low, interval.high) == (5.5, 2.0, 9.0)
    # A machine twice as slow in some rounds changes nothing: it is in both.
    drift = [1, 2, 1, 2, 1, 2, 1, 2, 1, 2]
    same = median_ratio([3.0 * d for d in drift], [1.5 * d for d in drift])
    assert (same.estimate, same.low, same.high) == (2.0, 2.0, 2.0)


def test_five_timing_samples_give_no_interval() -> None:
    interval = median_ratio([2.0] * 5, [1.0] * 5)
    assert (interval.estimate, interval.low, interval.high) == (2.0, None, None)


@pytest.mark.long
@pytest.mark.slow
def test_bench_compares_equal_work_and_records_its_provenance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    arguments = ["--prompts", "1", "--samples", "6"]
    bench.main([*arguments, "--out", str(out), "--runs", str(tmp_path / "runs")])
    document = json.loads(out.read_text())

    assert {(pair["cell"], pair["peer"]) for pair in document["side_by_side"]} == {
        ("builtin K=0", "generate"),
        ("builtin K=0", "generate_static"),
        ("builtin K=4", "assisted K=4"),
        ("builtin K=4", "assisted_default K=20"),
        ("builtin K=8", "assisted K=8"),
        ("builtin K=8", "assisted_default K=20"),
        ("builtin K=20", "assisted K=20"),
        ("builtin K=20", "assisted_default K=20"),
    }
    assert all(pair["equal_text"] == 1 and pair["cpu"] for pair in document["side_by_side"])
    assert [pair["cell"] for pair in document["side_by_side"] if pair["is_better_assisted"]] == [
        "builtin K=4",
        "builtin K=8",
        "builtin K=20",
    ]
    cells = {cell["name"]: cell for cell in document["cells"] if "builtin" in cell["name"]}
    # A busy machine may be too unsteady for a verdict.
    assert all(cell.get("overhead_ratio", 0.95) >= 0.95 for cell in cells.values())
    assert cells["builtin K=0"]["num_forward_samples"] == 8  # of one block
    assert [forward["num_tokens"] for forward in document["forwards"]] == [1, 5, 9]
    assert document["settings"]["threads"] == 1
    assert {"cpu", "git_commit", "packages"} <= document["environment"].keys()
    assert (tmp_path / "runs" / document["run_id"]).is_dir()
    assert capsys.readouterr().out.splitlines() == bench.table(document)


@pytest.mark.slow
@pytest.mark.long
def test_auto_is_compared_with_the_best_fixed_k_of_every_workload(tmp_path: Path) -> None:
    out = tmp_path / "auto.json"
    arguments = ["--prompts", "1", "--repeats", "1", "--concurrency", "1"]
    auto.main([*arguments, "--out", str(out), "--runs", str(tmp_path / "runs")])
    document = json.loads(out.read_text())

    actual = {(row["workload"], row["concurrency"]) for row in document["comparisons"]}
    assert actual == {(f"demo {name}", 1) for name in auto.WORKLOADS}
    assert document["settings"]["num_speculative_tokens"] == [0, 1, 2, 3, 4, 6, 8]
    again = [row for row in document["comparisons"] if row["is_confirmed"] and row["valid"]]
    assert document["num_pooled"] == len(again)


def test_the_auto_table_states_what_a_wide_interval_could_detect() -> None:
    sure: dict[str, Any] = {
        "workload": "chat",
        "concurrency": 4,
        "best_fixed": "builtin K=2",
        "decode": {"estimate": 0.98, "low": 0.9, "high": 1.067},
        "minimum_detectable_effect": 0.1234,
        "is_confirmed": True,
        "valid": True,
    }
    few = {
        "decode": {"estimate": 1.2, "low": None, "high": None},
        "minimum_detectable_effect": None,
        "is_confirmed": False,
        "valid": False,
    }
    document = {"comparisons": [sure, sure | few], "pooled": 0.98, "num_pooled": 1}
    values = (
        r"0\.980 \[0\.900, 1\.067\] .*12\.3% .*chat, 4 .*K=2",
        r"1\.200 .*chat, 4 .*K=2, not measured again, invalid",
        r"0\.980 .*1 of 2 .*",
    )
    for value, line in zip(values, auto.table(document)[1:], strict=True):
        assert re.fullmatch(value, line)
    nothing = auto.table(document | {"pooled": None, "num_pooled": 0})
    assert re.match("- .*0 of 2 ", nothing[-1])


def test_a_table_shows_the_documents_figures_and_no_others() -> None:
    interval = {"estimate": 2.5, "low": 2.25, "high": 2.75}
    pair: dict[str, Any] = {
        "cell": "builtin K=4",
        "peer": "assisted K=4",
        "decode": interval,
        "cpu": None,
        "equal_text": 0.5,
        "is_better_assisted": True,
    }
    cell = {"name": "generate", "num_rounds": 9}
    lines = bench.table({"side_by_side": [pair], "cells": [cell], "forwards": []})
    assert len(lines) == 2
    assert lines[1].split()[:5] == ["2.50x", "[2.25,", "2.75]", "-", "50%"]
    assert re.search("builtin K=4 .*assisted K=4", lines[1])


def test_the_table_of_forecasts_names_the_worst_k_the_choice_and_the_time() -> None:
    row: dict[str, Any] = {
        "pairing": "demo/draft",
        "workload": "chat",
        "temperature": 0.0,
        "choice": 4,
        "fastest": 5,
        "choice_ratio": 0.99,
        "decided": 5,
        "decided_ratio": 1.0,
        "worst_length_error": 0.0,
        "worst_speedup_error": -0.043,
    }
    other = {**row, "choice_ratio": 1.0, "worst_length_error": None}
    lines = forecast.table(
        {
            "forecasts": [row, other],
            "num_speedups": 16,
            "num_within": {"0.05": 9, "0.07": 15},
            "share_to_choose": 0.12,
            "share_of_time": 0.295,
        }
    )
    assert "AL +0.0%  speedup -4.3%" in lines[1]
    assert re.search(r"K=4 .*K=5: 0\.990, .*K=5: 1\.000", lines[1])
    assert "AL     -" in lines[2]
    assert re.fullmatch(r"choices: worst 0\.990, .*0\.995", lines[3])
    assert re.fullmatch("speedups: .*16, 9 .*5%, 15 .*7%", lines[4])
    assert re.search(r"12\.0% .*29\.5%$", lines[5])
