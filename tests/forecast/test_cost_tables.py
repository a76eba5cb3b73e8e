"""--step-times FILE: all forms of tables have the same meaning, and errors name the line."""

import json
import math
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.forecast.cost_curve import curve_from
from specbench.forecast.engine_costs import check_sources, forecast_acceptance_rule, read_file
from specbench.records import EngineCost
from specbench.stats.intervals import paired_log_ratio

YAML = """\
engine: vllm 0.32.0
unit: ms
draft: 2
overhead: 0.5
costs:
  - {tokens: 1, cost: 10}
  - {tokens: 4, cost: 12}
  - {tokens: 4, cost: 16, concurrency: 8}
"""
CSV = """\
k, cost, unit, concurrency, engine
0, 10, ms, 1, vllm 0.32.0

3, 18.5, ms, 1, vllm 0.32.0
3, 0.0225, s, 8, vllm 0.32.0
"""


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def numbers(costs: list[EngineCost]) -> list[tuple[int, int, float]]:
    return [(c.num_speculative_tokens, c.concurrency, pytest.approx(c.cost)) for c in costs]


def test_a_forward_and_its_drafts_make_a_round(tmp_path):
    """12 ms + 3 drafts of 2 ms + 0.5 ms; a step has none."""
    costs = read_file(write(tmp_path, "costs.yaml", YAML))
    assert numbers(costs) == [(0, 1, 0.010), (3, 1, 0.0185), (3, 8, 0.0225)]
    assert {(c.engine, c.source, c.is_relative) for c in costs} == {
        ("vllm 0.32.0", "costs.yaml", False)
    }


def test_step_times_from_csv_equal_those_from_yaml(tmp_path):
    from_csv = read_file(write(tmp_path, "costs.csv", CSV))
    assert numbers(from_csv) == numbers(read_file(write(tmp_path, "costs.yaml", YAML)))
    assert {c.engine for c in from_csv} == {"vllm 0.32.0"}


def test_step_times_are_read_from_json(tmp_path):
    rows = [{"k": 0, "cost": 1e-2}, {"k": 3, "cost": 0.0185}, {"k": 5, "cost": 1e-05}]
    plain = read_file(write(tmp_path, "plain.json", json.dumps(rows)))
    assert numbers(plain) == [(0, 1, 0.01), (3, 1, 0.0185), (5, 1, 1e-5)]
    assert plain[0].engine == "your engine"
    shared = {"engine": "mine", "unit": "steps", "costs": [{"k": 3, "cost": 1.85}]}
    (relative,) = read_file(write(tmp_path, "shared.json", json.dumps(shared, indent=1)))
    assert (relative.cost, relative.is_relative, relative.engine) == (1.85, True, "mine")


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        ("a.csv", "k,cost\n0,1\n3,fast\n", 3, "expected a number above 0"),
        ("a.csv", "k,cost\n0,1\n3,-2\n", 3, "expected a number above 0"),
        ("a.csv", "k,cost\n0,1\n3,nan\n", 3, "expected a number above 0"),
        ("a.csv", "k,seconds\n0,1\n", 1, "unknown column 'seconds'"),
        ("a.csv", "k,cost\n0,1,2\n", 2, "3 values for 2 columns"),
        ("a.csv", "cost\n1\n", 2, "give `k`"),
        ("a.csv", "k,tokens,cost\n1,2,3\n", 2, "give `k`"),
        ("a.csv", "k\n1\n", 2, "the key `cost` is missing"),
        ("a.csv", "k,cost\n2.5,1\n", 2, "a whole number from 0"),
        ("a.csv", "k,cost,unit\n0,1,hours\n", 2, "unknown 'hours'"),
        ("a.csv", "k,cost,unit\n0,2,steps\n", 2, "must be 1, not 2"),
        ("a.csv", "tokens,cost,draft\n2,1,-1\n", 2, "0 or more"),
        ("a.csv", "", 1, "no costs"),
        ("a.csv", "k,cost\n", 1, "no costs"),
        ("a.yaml", "costs:\n  - {k: 0, cost: 1}\n  - {k: 1, price: 2}\n", 3, "unknown key"),
        ("a.yaml", "unit: ms\n", 1, "the key `costs` is missing"),
        ("a.yaml", "costs: []\n", 1, "no costs"),
        ("a.yaml", "costs:\n  - {k: 0, cost: 1\n", 3, ""),
        ("a.yaml", "", 1, "empty"),
        ("a.json", '[\n {"k": 0, "cost": 1},\n {"k": true, "cost": 2}\n]', 3, "a whole number"),
    ],
)
def test_a_wrong_step_time_table_is_refused_with_its_line(tmp_path, name, text, line, reason):
    path = write(tmp_path, name, text)
    with pytest.raises(UsageError) as wrong:
        read_file(path)
    assert str(wrong.value).startswith(f"{path}:{line}:")
    assert reason in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "place"), [("[1, 2]", "a.json[0]: "), ("{", "line 1, column 2"), ("[]", "a.json: ")]
)
def test_json_that_is_not_of_objects_is_refused_with_its_place(tmp_path, text, place):
    with pytest.raises(UsageError) as wrong:
        read_file(write(tmp_path, "a.json", text))
    assert place in str(wrong.value)


def test_unreadable_step_time_files_are_refused(tmp_path):
    for name in ("no.csv", "no.json", "no.yaml"):
        with pytest.raises(UsageError, match="cannot be read"):
            check_sources([str(tmp_path / name)])
    (tmp_path / "latin.csv").write_bytes(b"k,cost\n0,\xe9\n")
    with pytest.raises(UsageError, match="UTF-8"):
        check_sources([str(tmp_path / "latin.csv")])


def cost(k: int, value: float, **changes) -> EngineCost:
    known = {"source": "t.csv", "engine": "vllm 0.32", "concurrency": 1, "is_relative": False}
    return EngineCost(num_speculative_tokens=k, cost=value, **{**known, **changes})


def test_costs_are_interpolated_between_two_k_and_not_extrapolated():
    curve = curve_from([cost(0, 1.0), cost(2, 1.4), cost(5, 2.0)], concurrency=1, ks=range(9))
    assert curve.costs == {
        k: (pytest.approx(c),) for k, c in {0: 1.0, 2: 1.4, 3: 1.6, 4: 1.8, 5: 2.0}.items()
    }
    assert curve.source == "vllm 0.32 (t.csv)"


def test_repeated_rows_are_averaged():
    curve = curve_from([cost(0, 1.0), cost(0, 3.0), cost(2, 3.0)], concurrency=1, ks=(2,))
    assert curve.round_s(0) == pytest.approx(2.0)
    assert curve.ratio(2, 0).log == pytest.approx(math.log(1.5))
    assert curve.ratio(2, 0).standard_error is None


def test_repeated_imported_step_times_give_an_error():
    """Nothing is paired: the errors of both sides add up, whatever the order of the rows."""
    spread = (0.9, 1.1, 1.0, 0.95, 1.05)
    rows = [*(cost(0, c) for c in spread), *(cost(2, 3 * c) for c in reversed(spread))]
    ratio = curve_from(rows, concurrency=1, ks=(2,)).ratio(2, 0)
    alone = paired_log_ratio(spread, 1.0).standard_error
    assert ratio.standard_error == pytest.approx(math.sqrt(2) * alone)
    assert math.exp(ratio.log) == pytest.approx(3)


def test_costs_that_both_sides_share_add_no_error():
    """Shares of K = 2: 3 / 6 on one side and 3 / 12 on the other."""
    spread = (0.9, 1.1, 1.0, 0.95, 1.05)
    rows = [*(cost(0, c) for c in spread), *(cost(2, 3 * c) for c in spread)]
    both = curve_from(rows, concurrency=1, ks=(2,))
    ratio = both.ratio_of({0: 3.0, 2: 1.0}, {0: 9.0, 2: 1.0})
    alone = paired_log_ratio(spread, 1.0).standard_error
    assert math.exp(ratio.log) == pytest.approx(6 / 12)
    assert ratio.standard_error == pytest.approx(math.sqrt(2) * 0.25 * alone)
    assert both.ratio_of({0: 3.0, 2: 1.0}, {0: 6.0, 2: 2.0}).standard_error == pytest.approx(0)


def test_relative_step_times_need_no_k_0():
    curve = curve_from([cost(3, 1.5, is_relative=True)], concurrency=1, ks=(3,))
    assert curve.costs == {0: (1.0,), 3: (1.5,)}
    assert curve.round_s(3) is None


def test_step_times_without_k_0_or_the_batch_size_are_an_error():
    with pytest.raises(UsageError, match="K=0"):
        curve_from([cost(3, 1.5)], concurrency=1, ks=(3,))
    with pytest.raises(UsageError, match=r"4.*1, 8"):
        curve_from([cost(0, 1.0), cost(0, 1.0, concurrency=8)], concurrency=4, ks=(3,))
    with pytest.raises(UsageError, match="seconds with steps"):
        curve_from([cost(0, 1.0), cost(3, 1.5, is_relative=True)], concurrency=1, ks=(3,))


def test_vllm_is_known_to_draft_greedily_above_temperature_0():
    costs = [cost(0, 1.0)]
    assert forecast_acceptance_rule(None, costs, 0.7) == "greedy_draft"
    assert forecast_acceptance_rule(None, costs, 0.0) == "exact"
    assert forecast_acceptance_rule("exact", costs, 0.7) == "exact"
    assert forecast_acceptance_rule(None, [cost(0, 1.0, engine="sglang")], 0.7) == "exact"
    assert forecast_acceptance_rule("greedy_draft", [], 0.0) == "greedy_draft"
