"""`specbench history` over stored runs: a table, a page, a document."""

import json
import re
import shutil

import jsonschema
import pytest

from specbench.cli.schema import json_schema
from specbench.errors import StoreError
from tests.cli.calls import specbench
from tests.importers.test_formats import FILES

SPEEDS = (640, 644, 637, 641, 639, 520, 523, 518, 521, 519)
METRIC = ("--metric", "aggregate_tokens_per_s")


@pytest.fixture(scope="module")
def nightly(tmp_path_factory):
    """Ten imported runs of one night each; from the sixth on, speed is 19% lower."""
    folder = tmp_path_factory.mktemp("nightly")
    result = json.loads((FILES / "vllm_spec.json").read_text())
    for i, speed in enumerate(SPEEDS):
        file = folder / f"night-{i}.json"
        file.write_text(
            json.dumps(result | {"output_throughput": speed, "date": f"202611{i + 1:02}-020000"})
        )
        options = ("--pairing", "llama/head", "--method", "eagle3", "--temperature", "0")
        assert specbench("import", file, *options, cwd=folder).code == 0
    return folder


def test_the_step_is_found_in_stored_runs(nightly):
    ran = specbench("history", *METRIC, cwd=nightly)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.split("\n\n")[0].splitlines())) <= 80
    last = ran.out.splitlines()[-1]
    assert "-18.7% with run" in last
    assert last.endswith(": worse")


def test_history_tables_do_not_break_names_or_repeat_cells(nightly):
    names = "mean_acceptance_length_when_drafted", "aggregate_tokens_per_s"
    ran = specbench("history", "--metric", ",".join(names), cwd=nightly)
    table = ran.out.split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    for name in names:
        assert table.count(name) == 1
    assert table.count("llama/head") == 1


def test_the_machine_document_has_every_point_and_the_step(nightly):
    ran = specbench("history", *METRIC, "--json", cwd=nightly)
    document = json.loads(ran.out)
    jsonschema.validate(document, json_schema("history"))
    (series,) = document["series"]
    assert [point["value"] for point in series["points"]] == list(SPEEDS)
    (step,) = series["steps"]
    assert step["run_index"] == 5
    assert step["run_id"] == series["points"][5]["run_id"]
    assert series["trend"] is None


def test_a_history_can_end_earlier(nightly):
    ran = specbench("history", *METRIC, "--json", cwd=nightly)
    fourth = json.loads(ran.out)["series"][0]["points"][3]["run_id"]
    ran = specbench("history", *METRIC, "--run", fourth, "--json", cwd=nightly)
    assert len(json.loads(ran.out)["series"][0]["points"]) == 4


def test_too_few_runs_are_not_reported_as_free_of_steps(nightly):
    ran = specbench("history", *METRIC, "--json", cwd=nightly)
    fourth = json.loads(ran.out)["series"][0]["points"][3]["run_id"]
    ran = specbench("history", *METRIC, "--run", fourth, cwd=nightly)
    assert re.match("no series .*8 runs, ", ran.out.splitlines()[-1])


def test_a_damaged_run_is_skipped_in_the_history_and_reported(nightly, tmp_path):
    copy = shutil.copytree(nightly / "reports", tmp_path / "reports")
    runs = sorted(path.parent for path in copy.glob("*/run.json"))
    lines = (runs[2] / "records.jsonl").read_bytes().splitlines(keepends=True)
    (runs[2] / "records.jsonl").write_bytes(b"".join([b"{}\n", *lines]))
    (runs[4] / "run.json").write_text("{")
    ran = specbench("history", *METRIC, "--json", cwd=tmp_path)
    assert ran.code == 0
    (series,) = json.loads(ran.out)["series"]
    assert len(series["points"]) == len(SPEEDS) - 2
    left_out = {line.split(" left out: ")[0] for line in ran.err.splitlines()}
    assert left_out == {runs[2].name, runs[4].name}
    assert "damaged" in ran.err


def test_a_history_without_a_readable_run_is_refused(nightly, tmp_path):
    copy = shutil.copytree(nightly / "reports", tmp_path / "reports")
    for path in copy.glob("*/run.json"):
        records = path.with_name("records.jsonl")
        records.write_bytes(b"{}\n" + records.read_bytes())
    ran = specbench("history", *METRIC, cwd=tmp_path)
    assert (ran.code, ran.out, ran.error) == (2, "", StoreError)
    assert ran.err.splitlines()[-1].startswith("error: none of the runs in reports ")


def test_an_interrupted_run_is_omitted_from_the_history_and_listed(nightly, tmp_path):
    copy = shutil.copytree(nightly / "reports", tmp_path / "reports")
    cut = sorted(path.parent for path in copy.glob("*/run.json"))[6]
    lines = (cut / "records.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "records.jsonl").write_bytes(b"".join(lines[:-1]))
    ran = specbench("history", *METRIC, "--json", cwd=tmp_path)
    document = json.loads(ran.out)
    assert len(document["series"][0]["points"]) == len(SPEEDS) - 1
    (left,) = document["left_out"]
    assert (left["run_id"], left["differences"][0]["name"]) == (cut.name, "interrupted")
    joined = specbench(
        "history", *METRIC, "--json", "--allow-different", "interrupted", cwd=tmp_path
    )
    assert len(json.loads(joined.out)["series"][0]["points"]) == len(SPEEDS)


def test_the_history_page_is_written_to_the_given_path(nightly, tmp_path):
    page = tmp_path / "history.html"
    ran = specbench("history", *METRIC, "--html", page, cwd=nightly)
    assert ran.code == 0
    assert f"report: {page}" in ran.out
    assert "<svg " in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--metric", "speed"), "did you mean 'cpu_speedup'? choose from"),
        (("--metric", "joules_per_token"), "no valid cell of 10 runs has joules_per_token"),
        (
            ("--metric", "joules_per_token,acceptance_rate_per_position"),
            "--metric acceptance_rate_per_position: a list",
        ),
        (
            ("--pairing", "nobody/x", *METRIC),
            "runs with --pairing nobody/x has aggregate_tok",
        ),
        (("--runs-dir", "elsewhere"), "no runs in elsewhere yet"),
        (("--run", "no-such-run"), "no run 'no-such-run'"),
        (("--html", "no/such/folder/h.html", *METRIC), "cannot be written"),
    ],
)
def test_history_exits_2_for_invalid_arguments(nightly, arguments, complaint):
    ran = specbench("history", *arguments, cwd=nightly)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err
