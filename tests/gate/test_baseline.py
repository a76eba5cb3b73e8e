import json
import math
from dataclasses import replace

import numpy as np
import pytest

from specbench.errors import StoreError, UsageError
from specbench.gate.baseline import SCHEMA_VERSION, left_out, pool, read_baseline, write_baseline
from specbench.gate.check import check
from specbench.gate.figures import Figure
from specbench.gate.judging import GateVerdict, _of_cycles
from tests.gate.gate_sides import cell, figure, key, side


def run(speedup, name, **changed):
    return side(cell({"decode_speedup": figure(speedup)}, texts={"p1": "aa"}), name=name, **changed)


def imported(name, *files):
    single = run(2.0, name)
    return replace(single, origins=(replace(single.origins[0], imported_sha256=files),))


def test_several_runs_are_their_geometric_mean_and_the_deviation_of_their_logarithms():
    pooled = pool([run(2.0, "a"), run(2.0 * math.exp(0.04), "b")])
    (pooled_cell,) = pooled.cells
    speedup = pooled_cell.figures["decode_speedup"]
    assert speedup.value == pytest.approx(2.0 * math.exp(0.02))
    assert speedup.without == pytest.approx((2.0 * math.exp(0.02),) * 5)
    assert speedup.deviation == pytest.approx(0.04 / math.sqrt(2))  # n - 1
    assert pooled.num_runs == 2


def test_a_pool_of_one_run_has_no_deviation():
    pooled = pool([run(2.0, "a")])
    assert pooled.cells[0].figures["decode_speedup"].deviation is None


def test_equal_counts_are_pooled_unchanged():
    value = 2.123456789
    same = [side(cell({"mean_acceptance_length": figure(value)}), name=n) for n in "abc"]
    length = pool(same).cells[0].figures["mean_acceptance_length"]
    assert (length.value, length.deviation) == (2.123457, 0.0)


def test_text_that_did_not_repeat_is_not_compared():
    other = side(cell({"decode_speedup": figure(2.0)}, texts={"p1": "bb"}), name="b")
    assert pool([run(2.0, "a"), run(2.0, "b")]).cells[0].texts == {"p1": "aa"}
    assert pool([run(2.0, "a"), other]).cells[0].texts == {}


def test_cells_invalid_in_one_run_are_omitted_from_a_baseline():
    bad = cell({"decode_speedup": figure(2.0)}, of=key(5), problems=("throttled",))
    single = side(cell({"decode_speedup": figure(2.0)}), bad, name="a")
    pooled = pool([single])
    assert [c.key for c in pooled.cells] == [key()]
    assert [line.endswith("run a0: throttled") for line in left_out([single], pooled)] == [True]


def test_cells_of_other_prompts_are_omitted_from_a_baseline_and_listed():
    more = cell({"decode_speedup": figure(2.0)}, of=key(5))
    names = ("q1", "q2", "q3", "q4", "q5")
    runs = [
        side(cell({"decode_speedup": figure(2.0)}), more, name="a"),
        side(cell({"decode_speedup": figure(2.0)}), replace(more, units=names), name="b"),
    ]
    pooled = pool(runs)
    assert [c.key for c in pooled.cells] == [key()]
    (line,) = left_out(runs, pooled)
    assert line.startswith("demo/draft K=5 on code: ")
    assert line.endswith("with different prompts")


def of_cycles(name: str, *logs: float, prompts: tuple[str, ...] = ("p1",)):
    """A run of a server whose cycles have these logarithms of the speedup."""
    total, n = sum(logs), len(logs)
    without = tuple(math.exp((total - log) / (n - 1)) for log in logs)
    speedup = Figure(value=math.exp(total / n), without=without)
    units = [f"cycle {i}" for i in range(n)]
    return side(cell({"decode_speedup": speedup}, units=units, prompts=prompts), name=name)


def test_runs_of_a_server_with_other_numbers_of_cycles_are_pooled():
    runs = [of_cycles("a", 0.0, 0.1, 0.2), of_cycles("b", 0.0, 0.1, 0.2, 0.5, 0.7)]
    (pooled,) = pool(runs).cells
    assert pooled.units == ("cycle 0", "cycle 1", "cycle 2")
    assert len(pooled.num_tokens) == 3
    speedup = pooled.figures["decode_speedup"]
    assert speedup.value == pytest.approx(math.exp((0.1 + 0.3) / 2))
    # The first three cycles vary by 0.1 in both runs.
    spread = _of_cycles(np.log(speedup.without))
    assert spread.standard_error == pytest.approx(0.1 / math.sqrt(3), rel=1e-4)
    assert check(runs[0], pool(runs)).verdict is not GateVerdict.MISSING


def test_cycles_of_other_prompts_are_not_pooled():
    runs = [of_cycles("a", 0.0, 0.1), of_cycles("b", 0.0, 0.1, prompts=("p1", "p2"))]
    with pytest.raises(UsageError, match="no cell is valid"):
        pool(runs)


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([run(2.0, "a"), run(2.0, "b"), run(2.0, "a")], "a0 was named twice"),
        (
            [imported("a", "x", "y"), imported("b", "z", "y")],
            ("a0 and b0 were imported from the same"),
        ),
        ([run(2.0, "a", is_complete=False)], "interrupted"),
        ([run(2.0, "a"), run(2.0, "b", torch="1", models={"demo": "f"})], "model: demo aaaa"),
        ([run(2.0, "a"), run(2.0, "b", hardware={"device": "cpu"})], "hardware: device cuda"),
        (
            [run(2.0, name, software={"builtin of demo": name}) for name in "ab"],
            "not repeats of each other: builtin of demo: a and b; .*--allow-different software",
        ),
        ([side(cell({}, problems=("x",)))], "no cell is valid"),
    ],
    ids=["twice", "file", "interrupted", "model", "hardware", "forward", "invalid"],
)
def test_runs_that_cannot_form_a_baseline_are_refused(runs, says):
    with pytest.raises(UsageError, match=says):
        pool(runs)


def test_runs_that_share_only_k_0_are_refused_as_a_baseline():
    """Runs that differ in K, if a drafter may differ."""
    speed = {"decode_tokens_per_s": figure(100.0)}
    base = cell(speed, of=key(0, drafter="none", method="none", pairing="demo"))
    runs = [side(base, cell(speed, of=key(k)), name=f"r{k}") for k in (4, 5)]
    with pytest.raises(UsageError, match=r"K=0.*demo/draft K=4 on code"):
        pool(runs)
    assert len(pool([side(base, name="a"), side(base, name="b")]).cells) == 1


def test_pooled_runs_of_two_machines_list_both():
    mixed = pool(
        [run(2.0, "a"), run(2.0, "b", hardware={"device": "cuda", "GPU": "two"})], {"hardware"}
    )
    assert mixed.fingerprint.hardware["GPU"] == "one | two"


def test_a_file_reads_back_as_it_was_written(tmp_path):
    pooled = pool([run(2.0, "a"), run(2.1, "b")])
    write_baseline(pooled, tmp_path / "baseline.json")
    assert read_baseline(tmp_path / "baseline.json") == pooled


def test_a_baseline_file_omits_empty_fields_of_its_keys(tmp_path):
    write_baseline(pool([run(2.0, "a")]), tmp_path / "baseline.json")
    (stored,) = json.loads((tmp_path / "baseline.json").read_text())["baseline"]["cells"]
    assert stored["key"] == {name: v for name, v in key().flat.items() if v is not None}


def test_a_baseline_metric_is_stored_on_one_line(tmp_path):
    write_baseline(run(2.0, "a"), tmp_path / "baseline.json")
    lines = (tmp_path / "baseline.json").read_text().splitlines()
    assert sum('"without": [' in line and line.count("2.0") == 5 for line in lines) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "damaged"),
        ("[" * 100_000, "damaged: nested too deeply"),
        ("[]", "not a baseline"),
        (
            '{"kind": "specbench baseline", "schema_version": 99}',
            "schema version 99, not 2; update specbench",
        ),
        ('{"kind": "specbench baseline", "schema_version": 2}', "damaged: baseline"),
        (None, "No such file"),
    ],
)
def test_other_files_are_refused_by_name(text, says, tmp_path):
    path = tmp_path / "baseline.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StoreError, match=says) as error:
        read_baseline(path)
    assert str(path) in str(error.value)


def test_the_schema_version_is_in_the_file(tmp_path):
    path = tmp_path / "baseline.json"
    write_baseline(replace(run(2.0, "a")), path)
    assert json.loads(path.read_text())["schema_version"] == SCHEMA_VERSION


def test_a_cell_that_was_throttled_once_is_missing_in_a_pooled_candidate():
    fine, chat = cell({"decode_speedup": figure(2.0)}), key(4, "chat")
    whole = side(fine, cell({"decode_speedup": figure(2.0)}, of=chat), name="a")
    broken = replace(whole.cells[1], problems=("throttled",))
    pooled = pool([whole, side(fine, broken, name="b")])
    assert pooled.unmeasured == (chat,)
    assert check(whole, pooled).verdict is GateVerdict.MISSING


def test_a_pairing_in_only_one_run_does_not_prevent_pooling():
    of_one = {"demo/draft": "d" * 64}
    of_both = {**of_one, "demo/eagle": "e" * 64}
    runs = [run(2.0, n, drafters=d, entries=d) for n, d in (("a", of_both), ("b", of_one))]
    assert pool(runs).num_runs == 2
