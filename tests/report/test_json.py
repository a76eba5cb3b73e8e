"""The machine document keeps its schema."""

import json
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from specbench.cli.schema import json_schema
from specbench.doc import docs_of
from specbench.records import CellSummary, Kind
from specbench.records.keys import AXES
from specbench.report.blocks import run_report
from specbench.report.document import Document, build_document
from specbench.report.document_json import to_json
from tests.report.stored_runs import SMALL, stored_run

SCHEMA = json_schema("run")
VALIDATOR = Draft202012Validator(SCHEMA)


@pytest.mark.parametrize(
    "name",
    ["cpu_document", "gpu_document", "interrupted_document", "baseline_document", "sessions"],
)
def test_documents_keep_the_schema(name: str, request: pytest.FixtureRequest) -> None:
    text = json.dumps(to_json(request.getfixturevalue(name)), allow_nan=False)
    VALIDATOR.validate(json.loads(text))


def test_a_document_has_the_k_of_each_setting_as_the_terminal_says_it(
    cpu_document: Document,
) -> None:
    said = "; ".join(reason["text"] for reason in to_json(cpu_document)["conclusion"])
    assert said == run_report(cpu_document).conclusion


def test_the_json_schema_is_valid_and_refuses_unknown_keys(cpu_document: Document) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    result = to_json(cpu_document)
    assert not VALIDATOR.is_valid({**result, "speedups": []})
    del result["cells"][0]["valid"]
    assert not VALIDATOR.is_valid(result)


def test_json_schema_keys_have_a_unit_bounds_and_meaning() -> None:
    cell = SCHEMA["$defs"]["Cell"]["properties"]
    assert cell["num_prompts"] == {
        "description": docs_of(CellSummary)["num_prompts"].meaning,
        "unit": "prompts",
        "type": "integer",
        "minimum": 0,
    }
    shares = SCHEMA["$defs"]["SideBySide"]["properties"]["equal_text"]["anyOf"]
    assert {"type": "number", "minimum": 0, "maximum": 1} in shares
    assert {"type": "null"} in shares


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cells", 0, "num_prompts"), -1),
        (("cells", 0, "concurrency"), 0),
        (("cells", 0, "temperature"), -0.1),
        (("cells", 0, "context"), 0),
        (("cells", 0, "request_rate"), 0),
        (("cells", 0, "num_samples"), 0),
        (("cells", 1, "speedup", "estimate"), 0),
        (("decisions", 0, "concurrency"), 0),
        (("settings", "concurrency"), [1, 0]),
        (("settings", "num_speculative_tokens"), [65]),
        (("settings", "top_p"), 1.5),
        (("settings", "seed"), -1),
        (("servers", 0, "attempt"), 0),
    ],
)
def test_a_document_outside_the_bounds_is_refused(
    sessions: Document, path: tuple[str | int, ...], value: object
) -> None:
    document = to_json(sessions)
    assert VALIDATOR.is_valid(document)
    node: Any = document
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    (error,) = VALIDATOR.iter_errors(document)
    error_path = tuple(error.absolute_path)
    assert path[: len(error_path)] == error_path[: len(path)]


def test_a_gain_may_be_negative() -> None:
    best_of = SCHEMA["$defs"]["BestOf"]["properties"]
    assert best_of["speedup"]["anyOf"][0]["properties"] == {"estimate": {"exclusiveMinimum": 0}}
    assert best_of["gain"]["$ref"] == "#/$defs/Interval"
    assert "properties" not in best_of["gain"]


def test_the_json_report_has_every_documented_key(cpu_document: Document) -> None:
    result = to_json(cpu_document)
    cell, decision = result["cells"][1], result["decisions"][0]
    assert {"schema_version", "run_id", "environment", "cells", "decisions"} <= result.keys()
    promised = (
        "pairing target drafter workload engine method num_speculative_tokens concurrency "
        "temperature dtype valid invalid_reasons metrics speedup"
    )
    assert set(promised.split()) <= cell.keys()
    axes = {*AXES} - {"drafter"}
    quoted = {"verdict", "speedup", "end_to_end"}
    assert decision.keys() == axes | quoted | {"answer", "reasons", "warnings", "text"}
    assert cell["speedup"].keys() == {"estimate", "low", "high"}
    assert cell["metrics"]["decode_speedup"] == pytest.approx(cell["speedup"]["estimate"])


def test_the_baseline_has_no_speedup_and_no_vllm_counts(cpu_document: Document) -> None:
    base, speculative, *_ = to_json(cpu_document)["cells"]
    assert (base["drafter"], base["method"], base["num_speculative_tokens"]) == ("none", "none", 0)
    assert base["speedup"] is None
    assert "vllm" not in base
    assert speculative["vllm"]["num_spec_steps"] == speculative["metrics"]["num_rounds"]
    assert speculative["vllm"]["num_spec_tokens"] == 1


def test_gpu_metrics_are_absent_in_a_cpu_run_and_not_zero(
    cpu_document: Document, gpu_document: Document
) -> None:
    gpu_only = {"joules_per_token", "peak_allocated_bytes", "device_peak_bytes"}
    for cell in to_json(cpu_document)["cells"]:
        assert not gpu_only & cell["metrics"].keys()
        assert None not in cell["metrics"].values()
    assert all(gpu_only <= cell["metrics"].keys() for cell in to_json(gpu_document)["cells"])
    assert to_json(cpu_document)["environment"]["gpu"] is None


def test_an_interval_without_bounds_is_null_below_five_prompts() -> None:
    few = build_document(stored_run(replace(SMALL, num_prompts=4)))
    result = to_json(few)
    VALIDATOR.validate(result)
    assert {cell["minimum_detectable_effect"] for cell in result["cells"]} == {None}
    assert result["cells"][1]["speedup"]["low"] is None


def test_the_document_does_not_share_state_with_its_records(cpu_document: Document) -> None:
    to_json(cpu_document)["environment"]["packages"]["torch"] = "another"
    assert cpu_document.run.environment.packages["torch"] == "2.13.0"


def test_the_json_report_has_warnings_and_failures(cpu_document: Document) -> None:
    run = replace(cpu_document.run, warnings=(Kind.NO_TEMPLATE(target="demo"),))
    result = to_json(replace(cpu_document, run=run))
    (warning,) = result["warnings"]
    assert (warning["kind"], warning["figures"]) == ("no_template", {"target": "demo"})
    assert set(warning) == {"kind", "figures", "text"}
    assert result["failures"][0]["stage"] == "load"
    assert result["complete"] is True


def test_the_json_report_has_sessions_including_failed_ones(sessions: Document) -> None:
    result = to_json(sessions)
    lost = [server for server in result["servers"] if server["problems"]]
    assert [(s["num_speculative_tokens"], s["cycle"]) for s in lost] == [(4, 3)]
    assert "cycle 4: another client" in result["failures"][0]["reason"]
    load = result["servers"][0]["client"][0]
    assert load["cell_id"] == sessions.cells[0].key.id
    assert len(result["servers"]) == 4 * 2 * (3 + 2)  # cycles, both ways, first pass and second
