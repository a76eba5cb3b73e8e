"""A gate in every format: no name or reason breaks one."""

import json
import re
import xml.etree.ElementTree as ET

import jsonschema
import pytest

from specbench.cli.console import open_console
from specbench.cli.schema import json_schema
from specbench.gate.attribution import Cause
from specbench.gate.check import Gate, Tolerance, check
from specbench.gate.figures import Figure
from specbench.gate.judging import GateVerdict
from specbench.records import Kind
from specbench.report.gate import (
    answer_of,
    chance_note,
    gate_json,
    gate_junit,
    gate_report,
    headline,
    incomparable_junit,
    judgment_table,
)
from specbench.report.markdown import part_to_markdown
from specbench.report.terminal import terminal_part
from specbench.words.numbers import effect_text
from tests.gate.gate_sides import cell, figure, key, side

HOSTILE = 'a|b <i>&"[x](y)\x07\n`'
TOLERANCES = [
    Tolerance(metric="mean_acceptance_length", share=0.02),
    Tolerance(metric="decode_speedup", share=0.05),
]


@pytest.fixture
def gate() -> Gate:
    """A lost speedup, equal counts, a cell that throttled, a draft with another name."""
    figures = {"mean_acceptance_length": figure(3.0), "decode_speedup": figure(2.0)}
    other = key(workload=HOSTILE)
    before = side(cell(figures), cell(figures, of=other))
    after = side(
        cell({**figures, "decode_speedup": figure(1.5)}),
        cell(figures, of=other, problems=(HOSTILE,)),
        name="b",
        drafters={"demo/draft": "e" * 64},
        software={"package torch": "2.14.0"},
    )
    return check(before, after, TOLERANCES)


def test_the_headline_names_the_first_regression_and_how_many_there_are(gate):
    moved, count, cause = answer_of(gate)
    assert moved.kind is Kind.MOVED
    assert moved.figures == {
        "name": "demo/draft K=4 on code: decode_speedup",
        "shift": (2.0, 1.5, "x"),
        "change": pytest.approx(-0.25),
        "limit": -0.05,
    }
    assert count == Kind.NUM_WORST(worst=1, comparisons=(3, "comparison"), cells=(2, "cell"))
    assert cause.kind is Kind.FIRST_CAUSE
    document = gate_json(gate)
    assert document["verdict"] == "regression"
    assert [reason["text"] in headline(gate) for reason in document["reasons"]] == [True] * 3


def test_every_gate_format_names_the_first_cause(gate, capsys):
    cause, weights = gate.attributions[0].causes[0].value, "e" * 12
    assert [cause.value for cause in gate.attributions[0].causes] == [cause, "changed packages"]
    (failure,) = ET.fromstring(gate_junit(gate)).iter("failure")
    assert cause in failure.get("message")
    assert weights in failure.text
    markdown = part_to_markdown(gate_report(gate)).splitlines()
    (verdict,) = (line for line in markdown if line.startswith("**REGRESSION"))
    assert cause in verdict
    details = [line for line in markdown if line.startswith("- ")]
    assert cause in details[0]
    assert weights in details[0]
    document = gate_json(gate)
    assert cause in document["text"]
    assert document["attributions"][0]["causes"][0] == cause
    assert document["attributions"][0]["changes"][0]["candidate"].endswith(weights)
    open_console(width=80).print(terminal_part(gate_report(gate)))
    printed = capsys.readouterr().out
    assert printed.index(cause) < printed.index("changed since")


def test_inconclusive_verdicts_name_changed_weights_in_every_format():
    figures = {"decode_speedup": figure(2.0, error=0.1)}
    before, after = (
        side(cell(figures), name=name, drafters={"demo/draft": name * 64}) for name in "ab"
    )
    gate = check(before, after, [Tolerance(metric="decode_speedup", share=0.01)])
    assert gate.verdict is GateVerdict.INCONCLUSIVE
    (attribution,) = gate.attributions
    assert (attribution.metrics, attribution.causes) == ((), (Cause.WEIGHTS,))
    (skipped,) = ET.fromstring(gate_junit(gate)).iter("skipped")
    (verdict,) = (
        line
        for line in part_to_markdown(gate_report(gate)).splitlines()
        if "**INCONCLUSIVE" in line
    )
    for text in (skipped.get("message"), verdict, headline(gate)):
        assert Cause.WEIGHTS.value in text
    assert "b" * 12 in skipped.text
    # Another draft model's weights explain nothing.
    other = side(cell(figures), name="b", drafters={"demo/other": "b" * 64})
    assert not check(before, other, [Tolerance(metric="decode_speedup", share=0.01)]).attributions


def test_the_headline_of_a_pass_states_the_tolerance():
    same = side(cell({"decode_speedup": figure(2.0)}), hardware={"device": "cpu"})
    gate = check(same, same)
    reason, *_ = answer_of(gate)
    assert (gate.verdict, reason.kind) == (GateVerdict.PASS, Kind.NONE_WORSE)
    assert reason.figures["tolerated"] == ("decode_speedup 40%",)


def test_the_headline_of_a_pass_states_the_smallest_loss_that_every_cell_would_show():
    # Between runs 0.0949 * sqrt(2) = 0.1343: 1 - 0.6 * exp(-(2.776 + 0.941) * 0.1343) = 63.6%.
    # Over prompts 0.2: 1 - 0.6 * exp(-0.743) = 71.5%.
    figures = {"decode_speedup": figure(2.0), "mean_acceptance_length": figure(3.0)}
    faster = {**figures, "decode_speedup": figure(3.0, 0.2)}
    chat = key(workload="chat")
    sides = [
        side(cell(figures), cell(last, of=chat), name=name, hardware={"device": "cpu"})
        for name, last in (("a", figures), ("b", faster))
    ]
    gate = check(*sides)
    assert gate.verdict is GateVerdict.PASS
    _, reason = answer_of(gate)
    (below,) = reason.figures["losses"]
    assert (reason.kind, below.kind) == (Kind.MIGHT_MISS, Kind.LOSS_BELOW)
    assert below.figures == {"metric": "decode_speedup", "loss": pytest.approx(0.715, abs=1e-3)}
    assert "decode_speedup below 71%" in headline(gate)
    document = gate_json(gate)
    losses = [j["minimum_detectable_loss"] for j in document["judgments"]]
    assert losses[:2] == [pytest.approx(0.02)] * 2  # they repeat exactly
    assert losses[2:] == pytest.approx([0.636, below.figures["loss"]], abs=1e-3)


def test_a_pass_that_noise_cannot_hide_a_loss_from_states_none():
    counts = side(cell({"mean_acceptance_length": figure(3.0)}))
    assert [reason.kind for reason in answer_of(check(counts, counts))] == [Kind.NONE_WORSE]


def test_a_gate_row_shows_the_verdict_and_its_numbers(gate):
    shown = {row[0]: row for row in judgment_table(gate.judgments).rows}
    assert shown["decode_speedup"] == (
        "decode_speedup", "2.00x", "1.50x", "-25.0% +- 4.3", "-5%", "6.1%", "REGRESSION"
    )  # fmt: skip
    assert shown["mean_acceptance_length"][-1] == "pass"


def test_cells_are_named_by_what_distinguishes_them():
    assert key().label == "demo/draft K=4 on code"
    assert (key(temperature=0.7, concurrency=4, context=512)).label == (
        "demo/draft K=4 on code, 4 concurrent requests, temperature 0.7, context 512"
    )
    assert (key(num_samples=4)).label == "demo/draft K=4 on code, best of 4 samples"
    assert (key(4, request_rate=2.0)).label.endswith("up to 1 at once, 2 requests per second")


def test_the_false_alarm_note_depends_on_noisy_metrics(gate):
    assert re.match(r"1 comparison .*\(Holm\)", chance_note(gate))
    counts = side(cell({"mean_acceptance_length": figure(3.0)}))
    assert chance_note(check(counts, counts)).startswith("No false alarms ")


def test_a_metric_without_interval_is_not_reported_as_repeating_exactly():
    aggregate = cell({"mean_acceptance_length": Figure(value=3.0)}, units=())
    imported = check(side(aggregate), side(aggregate, name="b"))
    assert imported.verdict is GateVerdict.INCONCLUSIVE
    assert chance_note(imported) == ""
    measured = cell({"mean_acceptance_length": figure(3.0)})
    missing = check(side(measured), side(name="b", unmeasured=(key(),)))
    assert chance_note(missing) == ""


def test_the_junit_file_is_well_formed_with_correct_counts(gate):
    suite = ET.fromstring(gate_junit(gate)).find("testsuite")
    kinds = ("failure", "error", "skipped")
    counts = [sum(1 for _ in suite.iter(kind)) for kind in kinds]
    assert counts == [1, 1, 0]
    assert [int(suite.get(name)) for name in ("failures", "errors", "skipped")] == counts
    assert int(suite.get("tests")) == sum(1 for _ in suite.iter("testcase"))
    (failure,) = suite.iter("failure")
    assert re.match("demo/draft K=4 .*code: changed weights", failure.text)


def test_a_refusal_names_what_differs_in_the_attribute_that_ci_shows():
    parts = ("K: 4 in one, 5 in the other", "prompts: a, b", "use --allow-different K")
    reason = "\n  ".join(("different work:", *parts))
    (error,) = ET.fromstring(incomparable_junit(reason)).iter("error")
    assert error.text == reason
    assert all(part in error.get("message") for part in parts)


def test_an_effect_above_100_percent_is_shown_as_such():
    assert (effect_text(0.476), effect_text(17391.403)) == ("47.6%", ">100%")


def test_gate_markdown_has_a_row_per_judgment_and_escapes_names(gate):
    text = part_to_markdown(gate_report(gate))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * len({j.cell for j in gate.judgments}) + len(gate.judgments)
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
    assert "<i>" not in text


def test_the_gate_table_prints_brackets_literally(gate, capsys):
    open_console(width=80).print(terminal_part(gate_report(gate)))
    assert "[x](y)" in capsys.readouterr().out


def test_the_json_has_the_declared_keys(gate):
    document = json.loads(json.dumps(gate_json(gate), allow_nan=False))
    assert document["judgments"]
    assert document["attributions"]
    assert document["changes"]
    jsonschema.validate(document, json_schema("check"))
