"""The benchmark of forecast acceptance lengths: equal counts, chance, and real errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import forecast_lengths
from benchmarks.forecast_lengths import Compared, Counts, judge


def counts(rounds: float, accepted: float) -> Counts:
    return Counts(rounds, 4 * rounds, accepted, rounds + accepted)


def lucky_texts(num: int, true_share: float = 1.0) -> list[Compared]:
    """Measured rounds whose expectation is the replayed ones times a share, with 5% of luck."""
    luck = np.random.default_rng(0).normal(true_share, 0.05, num)
    return [Compared(i, counts(50 * x, 50), counts(50, 50)) for i, x in enumerate(luck)]


def test_equal_counts_have_no_error():
    same = [Compared(i, counts(10 + i, 7), counts(10 + i, 7)) for i in range(6)]
    assert judge(same, 0.0) == (0.0, pytest.approx(0, abs=1e-12), False, False)


def test_at_temperature_0_a_single_extra_round_is_a_failure():
    texts = [Compared(i, counts(1000, 700), counts(1000, 700)) for i in range(9)]
    one_more = [*texts, Compared(9, counts(1000, 700), counts(1001, 700))]
    assert judge(one_more, 0.0).is_off
    assert not judge(one_more, 0.02).is_beyond


def test_only_a_true_bias_of_replayed_lengths_is_reported():
    fair = judge(lucky_texts(100), 0.02)
    assert abs(fair.error) < 3 * 0.005
    # AL is 1 + 50 / rounds: 5% of luck in the rounds is half as much in it, over 10 = sqrt(100).
    assert fair.standard_error == pytest.approx(0.05 / 2 / 10, rel=0.3)
    assert not fair.is_off
    # A tenth fewer rounds than replayed: AL is 2.11, and 2 was replayed.
    biased = judge(lucky_texts(100, 0.9), 0.02)
    assert biased.error == pytest.approx(2 / (1 + 1 / 0.9) - 1, abs=0.01)
    assert biased.is_off


def test_an_error_beyond_the_bound_but_within_noise_is_no_failure():
    # Measured AL 1 + 300 / 270, replayed 2; texts of 35 and 55 rounds leave that unsure by 5%.
    few = [Compared(i, counts(rounds, 50), counts(50, 50)) for i, rounds in enumerate([35, 55] * 3)]
    judgment = judge(few, 0.02)
    assert judgment.error == pytest.approx(2 / (1 + 300 / 270) - 1)
    assert judgment.standard_error == pytest.approx(0.052, abs=0.01)
    assert judgment.is_beyond
    assert not judgment.is_off


def test_texts_of_one_request_at_several_k_are_one_unit():
    """The same chance eight times over is not more certain than once."""
    once = lucky_texts(50)
    assert judge(once * 8, 0.02).standard_error == pytest.approx(judge(once, 0.02).standard_error)


def test_the_table_names_the_worst_k_and_counts_failures():
    def point(k: int, error: float, is_off: bool) -> dict[str, Any]:
        entry = {"num_speculative_tokens": k, "measured": 2.0, "error": error, "is_off": is_off}
        counted = {"num_texts": 40, "num_equal_texts": 3, "num_rounds": 100}
        return {**entry, **counted, "standard_error": 0.005, "is_beyond": abs(error) > 0.02}

    row = {
        "pairing": "demo/draft",
        "workload": "qa",
        "temperature": 1.0,
        "bound": 0.02,
        "points": [point(1, 0.01, False), point(2, -0.04, True), point(3, 0.025, False)],
        "pooled": {"error": -0.001, "standard_error": None},
    }
    _, line, last = forecast_lengths.table({"rows": [row]})
    assert "K=2 AL 2.00 -4.00% +- 0.50%  pooled -0.10%  120 texts, 9 equal, 300 rounds" in line
    assert line.endswith("OFF 2% at K=2")
    assert [word for word in last.split() if word.isdigit()][:4] == ["3", "1", "2", "1"]


@pytest.mark.long
def test_forecast_lengths_of_the_bundled_pair_match_its_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "lengths.json"
    small = ["--workloads", "qa", "--drafters", "draft", "ngram", "--prompts", "5", "--most", "2"]
    forecast_lengths.main([*small, "--out", str(out)])
    document = json.loads(out.read_text())

    rows = {(row["pairing"], row["temperature"]): row for row in document["rows"]}
    assert set(rows) == {(f"demo/{d}", t) for d in ("draft", "ngram") for t in (0.0, 1.0)}
    assert all([p["num_speculative_tokens"] for p in r["points"]] == [1, 2] for r in rows.values())
    drawn = rows.pop(("demo/draft", 1.0))
    for row in rows.values():
        assert all(p["num_equal_texts"] == p["num_texts"] > 4 for p in row["points"])
        assert all(p["error"] == 0 and p["measured"] == p["replayed"] for p in row["points"])
    for point in drawn["points"]:
        assert point["num_texts"] > rows["demo/draft", 0.0]["points"][0]["num_texts"]
        assert point["num_equal_texts"] < point["num_texts"]  # else nothing was drawn
        assert abs(point["error"]) < 4 * point["standard_error"] < 0.4

    assert "git_commit" in document["environment"]
    assert str(tmp_path) not in out.read_text()
    assert capsys.readouterr().out.splitlines() == forecast_lengths.table(document)
