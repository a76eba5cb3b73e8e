"""`specbench import`: other tools' results become a run that report reads."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from specbench.runs import load_run
from specbench.stats.intervals import interval, speedup_ratio
from specbench.stats.machine_noise import PARTS, MachineKind, assumed_noise
from tests.cli.calls import specbench
from tests.report.test_json import VALIDATOR

FILES = Path(__file__).parents[1] / "importers" / "files"
PAGE = Path(__file__).parents[2] / "docs" / "import.md"
VLLM = (FILES / "vllm_base.json", FILES / "vllm_spec.json")
TOLD = ("--pairing", "llama/head", "--method", "eagle3", "-w", "mtbench", "--temperature", "0")


def document(tmp_path, *files, options=(*TOLD, "-k", "0")):
    ran = specbench("import", *files, *options, "--json", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def test_an_import_is_a_complete_run_with_its_files_hashes(tmp_path):
    document(tmp_path, *VLLM)
    stored = load_run("latest", tmp_path / "reports")
    assert stored.is_complete
    assert stored.run.settings.command == "import"
    assert [record.file for record in stored.imported] == ["vllm_base.json", "vllm_spec.json"]
    assert {record.tool for record in stored.imported} == {"vllm bench serve"}
    assert stored.run.environment.created_at == "2026-11-20T10:15:00"  # when it was measured
    assert stored.run.environment.threads is None


def test_the_machine_document_matches_its_schema(tmp_path):
    VALIDATOR.validate(document(tmp_path, *VLLM))


def test_a_speedup_of_aggregates_has_no_interval(tmp_path):
    base, spec = document(tmp_path, *VLLM)["cells"]
    assert spec["metrics"]["end_to_end_speedup"] == pytest.approx(640 / 400)
    assert "decode_speedup" not in spec["metrics"]  # decode times are not in these files
    assert spec["speedup"] == {"estimate": pytest.approx(1.6), "low": None, "high": None}
    assert (base["num_speculative_tokens"], spec["num_speculative_tokens"]) == (0, 3)
    assert spec["valid"]


def detailed(tmp_path, k, decode_s, num_at_once=1):
    """A result of `vllm bench serve --save-detailed`; two requests have the same prompt."""
    num = len(decode_s)
    values = json.loads(VLLM[0].read_text()) | {
        "max_concurrency": num_at_once,
        "completed": num,
        "output_throughput": 100 * (k + 1),
        "input_lens": [30, 31, 32, 30, *range(40, 36 + num)],
        "output_lens": [11] * num,
        "ttfts": [0.1] * num,
        "itls": [[seconds / 2, seconds / 2] for seconds in decode_s],
        "generated_texts": ["a", "b", "c", "a", *map(str, range(4, num))],
    }
    file = tmp_path / f"k{k}.json"
    file.write_text(json.dumps(values))
    return f"{file}#k={k}"


def test_requests_one_at_a_time_give_an_interval_over_their_prompts(tmp_path):
    base_s, spec_s = [1.0, 1.2, 0.9, 1.1, 1.0, 1.3], [0.5, 0.7, 0.4, 0.6, 0.45, 0.6]
    files = detailed(tmp_path, 0, base_s), detailed(tmp_path, 4, spec_s)
    imported = document(tmp_path, *files, options=TOLD)
    pairs = [2.1, 1.2, 0.9, 1.0, 1.3], [1.1, 0.7, 0.4, 0.45, 0.6]  # 0 and 3 are one
    # The machine is a server, and each part of the run has two requests.
    logs = np.log(np.array(base_s) / np.array(spec_s)).reshape(PARTS, 2)
    error = logs.var(axis=1, ddof=1).mean() / 2
    machine = assumed_noise(MachineKind.SERVER).of_parts(logs.mean(axis=1), error)
    wanted = interval(speedup_ratio(*pairs).on(machine))
    assert imported["cells"][1]["speedup"] == pytest.approx(asdict(wanted))
    assert imported["decisions"][0]["num_speculative_tokens"] == 4
    assert "requests" not in imported["imported"][0]
    recommended = specbench("recommend", "--json", cwd=tmp_path)
    assert recommended.code == 0
    best = json.loads(recommended.out)["picks"][0]["best"]
    assert best["num_speculative_tokens"] == 4


def test_concurrent_requests_or_other_prompts_give_no_interval(tmp_path):
    seconds = [1.0, 1.2, 0.9, 1.1, 1.0]
    files = [detailed(tmp_path, k, seconds, num_at_once=4) for k in (0, 4)]
    at_once = document(tmp_path, *files, options=TOLD)["cells"][1]
    assert at_once["speedup"] == {"estimate": pytest.approx(5.0), "low": None, "high": None}
    files = detailed(tmp_path, 0, [*seconds, 1.0]), detailed(tmp_path, 4, seconds)
    other_cell = document(tmp_path, *files, options=TOLD)["cells"][1]
    assert other_cell["speedup"]["low"] is None


def test_a_ratio_of_aggregates_is_shown_but_undecided(tmp_path):
    imported = document(tmp_path, *VLLM)
    (decision,) = imported["decisions"]
    assert (decision["num_speculative_tokens"], decision["speedup"]["low"]) == (0, None)
    ran = specbench("recommend", cwd=tmp_path)
    assert ran.code == 3
    (line,) = (line for line in ran.out.splitlines() if line.startswith("mtbench: "))
    assert {"undecided", "1.60x over K=0 at K=3", "without an interval"} <= {
        *re.split(": |, ", line)
    }
    ran = specbench("report", cwd=tmp_path)
    assert ran.code == 0
    assert "undecided: 1.60x over K=0" in ran.out.splitlines()[-1]
    assert "2.50" in ran.out
    assert "640.0" in ran.out
    assert "1.60x" in ran.out


def test_every_report_format_takes_an_import(tmp_path):
    document(tmp_path, *VLLM)
    assert specbench("report --format html,md,csv", cwd=tmp_path).code == 0
    folder = load_run("latest", tmp_path / "reports").folder
    page = (folder / "report.html").read_text()
    assert "vllm_spec.json" in page
    assert "None" not in page
    assert "2.5" in (folder / "cells.csv").read_text()
    assert "nan" not in (folder / "report.md").read_text().lower().split()


def test_a_slower_imported_server_fails_with_the_documented_options(tmp_path):
    usual = [document(tmp_path, *VLLM)["run_id"]]
    again = [tmp_path / file.name for file in VLLM]
    for file, copy in zip(VLLM, again, strict=True):
        copy.write_text(json.dumps(json.loads(file.read_text()) | {"date": "20261120-113000"}))
    usual.append(document(tmp_path, *again)["run_id"])
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(json.loads(VLLM[1].read_text()) | {"output_throughput": 448}))
    candidate = document(tmp_path, VLLM[0], slow)["run_id"]
    assert specbench("baseline", *usual, cwd=tmp_path).code == 0
    twin = document(tmp_path, *VLLM)["run_id"]
    refused = specbench("baseline", usual[0], twin, "--output", "twins.json", cwd=tmp_path)
    assert refused.code == 2
    assert "same file" in refused.err

    compare = ("check", "baseline.json", candidate, "--json")
    by_default = specbench(*compare, cwd=tmp_path)
    assert by_default.code == 0
    assert list(json.loads(by_default.out)["tolerances"]) == ["mean_acceptance_length"]
    (fail_on,) = re.findall(r"--fail-on (\S+)", PAGE.read_text())
    named = specbench(*compare, "--fail-on", fail_on, cwd=tmp_path)
    assert named.code == 1
    assert "end_to_end_speedup 1.60 -> 1.12x" in json.loads(named.out)["text"]


@pytest.mark.parametrize(
    ("fields", "kind", "figures"),
    [
        ({"spec_decode_accepted_tokens": 24_000}, "length_outside", {"length": 4.75}),
        ({"spec_decode_accepted_tokens": 24_000}, "rate_outside", {"rate": 1.25}),
        ({"failed": 80, "completed": 0}, "nothing_finished", {}),
    ],
)
def test_figures_that_cannot_be_make_a_cell_invalid(tmp_path, fields, kind, figures):
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(json.loads(VLLM[1].read_text()) | fields))
    (cell,) = document(tmp_path, file)["cells"]
    assert not cell["valid"]
    reason = next(reason for reason in cell["invalid_reasons"] if reason["kind"] == kind)
    assert {name: reason["figures"][name] for name in figures} == pytest.approx(figures)


def test_broken_identities_make_a_cell_invalid(tmp_path):
    result = json.loads(VLLM[1].read_text())
    result |= {"spec_decode_per_position_acceptance_rates": [0.3, 0.5, 0.7], "failed": 8}
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(result))
    (cell,) = document(tmp_path, file)["cells"]
    assert not cell["valid"]
    failed, broken = cell["invalid_reasons"]
    assert failed["figures"] == {"failed": 8, "requests": 88, "error": None}
    assert broken["kind"] == "acceptance_rises"


def test_random_prompts_and_a_servers_running_average_are_warned_of(tmp_path):
    line = json.loads((FILES / "sglang.jsonl").read_text().splitlines()[1])
    file = tmp_path / "random.jsonl"
    file.write_text(json.dumps(line | {"dataset_name": "random"}))
    (cell,) = document(tmp_path, file, options=("--temperature", "0"))["cells"]
    kinds = [warning["kind"] for warning in cell["warnings"]]
    assert kinds == ["since_start", "random_prompts"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("absent.json",), "absent.json: cannot be read"),
        ((VLLM[1],), "the file does not say the temperature; give --temperature 0"),
        ((VLLM[1], "--pairing", "llama"), "expected target/drafter"),
        ((VLLM[1], "--pairing", "/head"), "expected target/drafter"),
        ((VLLM[1], "--method", "magic"), "unknown method 'magic'"),
        ((__file__, *TOLD), "test_import.py: not JSON"),
        ((FILES / "README.md", *TOLD), "README.md: the page has no table"),
    ],
)
def test_import_exits_2_for_invalid_arguments_and_stores_nothing(tmp_path, arguments, complaint):
    ran = specbench("import", *arguments, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err
    assert not (tmp_path / "reports").exists()
