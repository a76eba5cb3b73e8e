"""Files with only acceptance: profiles of Model Optimizer, golden lengths of InferenceX."""

import json

import pytest

from specbench.errors import UsageError
from specbench.importers import acceptance_by_k, import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.records import Kind
from tests.cli.calls import specbench
from tests.importers.test_wrong_files import FILES
from tests.report.test_json import VALIDATOR

GIVEN = ImportOverrides(temperature=0.0, concurrency=1)
PROFILE, GOLDEN = FILES / "speculation_profile.json", FILES / "golden.yaml"
COSTS = "k,cost,unit\n0,10,ms\n1,12,ms\n2,14,ms\n3,16,ms\n"
TWO_CURVES = """\
# dataset: coding | temperature: 1.0
_metadata:
  draft-model: org/Head
org-8b:
  thinking_on: {2: 2.4}
  thinking_off: {2: 2.2}
"""


def profile(tmp_path, **values):
    """The profile with other values; `...` omits one."""
    content = json.loads(PROFILE.read_text()) | values
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))
    return file


def golden(tmp_path, text):
    file = tmp_path / "golden.yaml"
    file.write_text(text)
    return file


def test_a_profile_has_rates_of_one_k_and_its_conditions():
    (cell,) = import_files([PROFILE], GIVEN)
    assert (cell.key.draft.k, cell.key.draft.method) == (3, "eagle3")
    assert cell.key.condition.workload == "mt_bench"
    figures = cell.record.figures
    assert figures["mean_acceptance_length"] == 2.696  # with the bonus token
    assert figures["acceptance_rate_per_position"] == (0.8, 0.56, 0.336)
    assert figures["conditional_acceptance_rate"] == (0.8, 0.7, 0.6)
    assert cell.record.warnings == (Kind.CONDITIONS(facts=("dataset mt_bench",)),)
    assert acceptance_by_k([cell]) == {3: (0.8, 0.56, 0.336)}


def test_only_a_chain_profile_gives_acceptance_at_smaller_k(tmp_path):
    cells = import_files([profile(tmp_path, accept_length_model="chain_analytic")], GIVEN)
    assert acceptance_by_k(cells) == {1: (0.8,), 2: (0.8, 0.56), 3: (0.8, 0.56, 0.336)}


def test_lengths_at_other_k_are_imported_as_separate_cells(tmp_path):
    cells = import_files([profile(tmp_path, accept_length_by_k={"3": 2.696, "5": 3.1})], GIVEN)
    assert [cell.key.draft.k for cell in cells] == [3, 5]
    assert cells[1].record.figures["mean_acceptance_length"] == 3.1
    assert acceptance_by_k(cells)[5] == (1.0, 1.0, 0.1, 0.0, 0.0)


def test_counts_are_keyed_by_length_and_one_kind_of_rates_is_enough(tmp_path):
    histogram = {"1": 20, "2": 24, "3": 22, "4": 34}
    changed = profile(tmp_path, marginal_accept_rates=..., acceptance_length_histogram=histogram)
    (cell,) = import_files([changed], GIVEN)
    assert cell.record.figures["acceptance_histogram"] == (20, 24, 22, 34)
    assert cell.record.figures["num_rounds"] == 100
    assert cell.acceptance_rates == pytest.approx((0.8, 0.56, 0.336))
    # specdec_bench takes the first token for a round; a profile by another program does not.
    assert Kind.CHUNKS() in cell.record.warnings
    named = import_files([profile(tmp_path, producer="x", method="eagle9")], GIVEN)[0]
    assert Kind.CHUNKS() not in named.record.warnings
    assert named.key.draft.method == "unknown"  # not one of our methods


def test_the_rounds_of_repeats_are_summed(tmp_path):
    files = []
    for times in (1, 2):
        (tmp_path / str(times)).mkdir()
        histogram = {"1": 20 * times, "2": 24 * times, "3": 22 * times, "4": 34 * times}
        files.append(profile(tmp_path / str(times), acceptance_length_histogram=histogram))
    (cell,) = import_files(files, GIVEN)
    assert cell.record.num_repeats == 2
    assert cell.record.figures["acceptance_histogram"] == (60, 72, 66, 102)
    assert cell.record.figures["num_rounds"] == 300
    assert cell.record.figures["acceptance_rate_per_position"] == pytest.approx((0.8, 0.56, 0.336))


def test_golden_lengths_are_imported_as_one_cell_per_k():
    cells = import_files([GOLDEN], GIVEN)
    lengths = {c.key.draft.k: c.record.figures["mean_acceptance_length"] for c in cells}
    assert lengths == {1: 1.8, 2: 2.3, 3: 2.6}
    assert {(c.key.condition.target, c.key.condition.workload) for c in cells} == {
        ("own-8b", "thinking_on")
    }
    assert acceptance_by_k(cells) == {1: (0.8,), 2: (1.0, 0.3), 3: (1.0, 0.6, 0.0)}


def test_a_result_without_acceptance_has_no_rates_for_its_k():
    cells = import_files([f"{FILES / 'guidellm_k4.json'}#k=4"], GIVEN)
    assert {cell.key.draft.k for cell in cells} == {4}
    assert acceptance_by_k(cells) == {}


def test_a_curve_is_chosen_by_mode_or_model_and_keeps_its_comments(tmp_path):
    file = golden(tmp_path, TWO_CURVES)
    modes = [cell.key.condition.workload for cell in import_files([file], GIVEN)]
    assert modes == ["thinking_on", "thinking_off"]
    for choice in ("thinking_off", "org-8b/thinking_off"):
        (cell,) = import_files([f"{file}#{choice}"], GIVEN)
        assert cell.record.figures["mean_acceptance_length"] == 2.2
        assert cell.key.draft.drafter == "Head"
        assert "dataset: coding | temperature: 1.0" in cell.record.warnings[0].figures["facts"]
    with pytest.raises(UsageError, match=r"yaml#off: .* org-8b/thinking_on, org-8b/thinking_off"):
        import_files([f"{file}#off"], GIVEN)
    with pytest.raises(UsageError, match="thinking_on and thinking_off"):  # not repeats
        import_files([file], ImportOverrides(temperature=1.0, concurrency=1, workload="coding"))


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"schema_version": "2.0"}, "schema_version: 1.0 is read"),
        ({"measured": False}, "measured: false"),
        ({"num_speculative_tokens": None}, "num_speculative_tokens: expected a whole number"),
        ({"num_speculative_tokens": 4}, "marginal_accept_rates: 3 rates for K=4"),
        ({"marginal_accept_rates": [0.8, 0.9, 0.1]}, r"marginal_accept_rates\[1\]: 0.9 rises"),
        ({"marginal_accept_rates": [0.8, 0.8, 0.8]}, "conditional_accept_rates: contradicts"),
        ({"conditional_accept_rates": [1.5, 0.7, 0.6]}, r"conditional_accept_rates\[0\]: expected"),
        ({"mean_accept_length": 1.696}, "mean_accept_length: 1.696 contradicts"),
        ({"mean_accept_length": 0.5}, "mean_accept_length: expected a finite number from 1"),
        ({"acceptance_length_histogram": {"0": 4}}, "acceptance_length_histogram.0: expected"),
        ({"accept_length_by_k": {"two": 2.0}}, "accept_length_by_k.two: expected K from 1"),
        ({"measurement_conditions": "mt_bench"}, "measurement_conditions: expected an object"),
    ],
)
def test_errors_in_a_profile_name_file_and_key(tmp_path, values, key):
    with pytest.raises(UsageError, match=rf"profile\.json: {key}"):
        import_files([profile(tmp_path, **values)], GIVEN)


def test_without_rates_a_profile_needs_its_length(tmp_path):
    none = {"marginal_accept_rates": None, "conditional_accept_rates": None}  # block verification
    (cell,) = import_files([profile(tmp_path, **none)], GIVEN)
    assert cell.acceptance_rates == (1.0, 0.696, 0.0)
    with pytest.raises(UsageError, match=r"mean_accept_length: without rates, .* from 1 to 4"):
        import_files([profile(tmp_path, **none, mean_accept_length=5.0)], GIVEN)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("m:\n  thinking_on: {0: 1.5}\n", "m.thinking_on.0: expected K from 1"),
        ("m:\n  thinking_on: {2: 3.5}\n", "m.thinking_on.2: expected a length from 1 to 3"),
        ("m:\n  thinking_on: {2: fast}\n", "m.thinking_on.2: expected a number"),
        ("m:\n  thinking_on: [1, 2]\n", "m.thinking_on: expected an object"),
        ("m:\n  thinking_on:\n    2: 1.5\n    2: 1.6\n", "4: m.thinking_on.2: given twice"),
        ("m:\n  on: {2: 1.5}\n", "not a result file of a known tool"),
        ("m: [1\n", "expected"),
        ("m: &a {b: *a}\n", "anchor"),
    ],
)
def test_errors_in_golden_lengths_name_file_and_key(tmp_path, text, key):
    with pytest.raises(UsageError, match=r"golden\.yaml") as raised:
        import_files([golden(tmp_path, text)], GIVEN)
    assert key in str(raised.value)


def test_with_step_times_an_import_is_a_forecast_of_that_engine(tmp_path):
    (tmp_path / "costs.csv").write_text(COSTS)
    ran = specbench(
        *("import", GOLDEN, "--temperature", "0", "--concurrency", "1", "--json"),
        *("--step-times", "costs.csv"),
        cwd=tmp_path,
    )
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    VALIDATOR.validate(document)
    (forecast,) = document["forecasts"]
    points = {p["num_speculative_tokens"]: p for p in forecast["points"]}
    assert points[2]["speedup"]["estimate"] == pytest.approx(2.3 * 10 / 14)
    assert points[2]["speedup"]["low"] is None
    lengths = [points[k]["mean_acceptance_length"] for k in range(4)]
    assert lengths == pytest.approx([1, 1.8, 2.3, 2.6])
    assert (forecast["best"], forecast["num_prompts"]) == (2, 0)


@pytest.mark.parametrize(
    ("costs", "complaint"),
    [
        ("k,cost\n0,10\n9,20\n", "no K > 0 has both acceptance and costs"),
        ("k,cost,concurrency\n0,10,8\n1,12,8\n", "no data for 1 concurrent requests"),
        ("k,cost\n1,20\n", "the cost of a step without speculation"),
    ],
)
def test_step_times_that_do_not_fit_are_refused_and_store_nothing(tmp_path, costs, complaint):
    (tmp_path / "costs.csv").write_text(costs)
    at = ("--temperature", "0", "--concurrency", "1")
    ran = specbench("import", GOLDEN, *at, "--step-times", "costs.csv", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err
    assert not (tmp_path / "reports").exists()
    address = specbench("import", GOLDEN, *at, "--step-times", "http://h:1", cwd=tmp_path)
    assert (address.code, "sends no requests" in address.err) == (2, True)
