import json
import re
import subprocess
import sys

import pytest

from specbench.cli.progress import ProgressWatch
from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.conftest import SMALL
from tests.report.test_json import VALIDATOR
from tests.tiny_pair import write_refusing

ESCAPE = "\x1b"


def run_folder(ran, tiny):
    (run_id,) = re.findall(r"^run (\S+)$", ran.err, re.MULTILINE)
    return tiny / "reports" / run_id


def test_the_answer_is_the_last_thing_on_stdout(finished):
    assert finished.is_complete
    *_, first, second = finished.out.splitlines()[-3:]
    assert re.match(r"prompts\.jsonl: ", finished.out.split("\n\n")[-1])
    assert re.match(r"(prompts\.jsonl: |  tiny/)", first)
    # A busy machine can make all of this short run invalid, and that is an answer.
    assert re.match(r"  tiny/(draft|ngram): (.*[\d.]+x|undecided: no valid)", second)


def test_the_reports_are_written_and_their_paths_printed(finished, tiny):
    folder = run_folder(finished, tiny)
    (named,) = re.findall(r"^report: (.*)$", finished.out, re.MULTILINE)
    first, *others = re.findall(r"[\w./-]+\.\w+", named)
    assert tiny / first == folder / "report.html"
    assert others == ["report.md", "cells.csv"]
    assert all((folder / name).stat().st_size > 100 for name in ("report.html", *others))


def test_the_tables_fit_80_columns(finished):
    tables, _, _ = finished.out.partition("report: ")
    assert len(tables.splitlines()) > 5
    assert max(map(len, tables.splitlines())) <= 80


def test_progress_in_a_log_is_one_line_per_stage_on_stderr(finished):
    lines = finished.err.splitlines()
    assert lines.index("starting") < lines.index("tiny: loading")
    assert "tiny: loading" in lines
    assert len(lines) == len(set(lines))


def test_piped_output_has_no_escape_codes(finished):
    assert ESCAPE not in finished.out + finished.err


@pytest.mark.parametrize("no_color", ["", "1"])
def test_the_no_color_variable_is_respected_on_a_terminal(finished, tiny, monkeypatch, no_color):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    ran = specbench("report", run_folder(finished, tiny), cwd=tiny)
    assert (ESCAPE in ran.out) is (no_color == "")


def test_report_prints_the_same_answer_again(finished, tiny):
    again = specbench("report", run_folder(finished, tiny).name, cwd=tiny)
    assert again.code == 0
    assert again.out == finished.out


def test_report_of_chosen_formats_writes_those_only(finished, tiny):
    folder = run_folder(finished, tiny)
    for name in ("report.html", "report.md", "cells.csv"):
        (folder / name).unlink()
    ran = specbench("report", folder.name, "--format", "md, csv", cwd=tiny)
    assert ran.code == 0
    assert sorted(path.name for path in folder.glob("*.*") if path.suffix != ".jsonl") == [
        "cells.csv",
        "report.md",
        "run.json",
    ]


@pytest.mark.slow
def test_several_runs_are_reported_together(finished, tiny):
    name = run_folder(finished, tiny).name
    ran = specbench("report", name, name, "--json", cwd=tiny)
    assert [document["run_id"] for document in json.loads(ran.out)] == [name, name]


@pytest.fixture(scope="session")
def as_json(tiny):
    """`specbench sweep-k --json` with a greedy and a sampled setting."""
    sizes = ("--num-prompts", "2", "--max-new-tokens", "8", "--threads", "1", "--device", "cpu")
    arguments = ("tiny/draft", "-w", "talk.jsonl", "-k", "0..2", "--temperature", "0,1")
    return specbench("sweep-k", *arguments, *sizes, "--json", cwd=tiny)


def test_json_is_one_document_with_progress_on_stderr(as_json):
    document = json.loads(as_json.out)
    assert as_json.is_complete
    assert "tiny: measuring\n" in as_json.err
    assert {cell["num_speculative_tokens"] for cell in document["cells"]} == {0, 1, 2}
    assert {cell["temperature"] for cell in document["cells"]} == {0, 1}
    assert {decision["workload"] for decision in document["decisions"]} == {"talk.jsonl"}


def test_json_matches_its_schema(as_json):
    VALIDATOR.validate(json.loads(as_json.out))


def test_the_json_output_can_be_piped(as_json):
    tool = [sys.executable, "-m", "json.tool"]
    done = subprocess.run(tool, input=as_json.out, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_json_equals_what_report_prints(as_json, tiny):
    run_id = json.loads(as_json.out)["run_id"]
    assert specbench("report", run_id, "--json", cwd=tiny).out == as_json.out


def test_k_0_is_one_cell_per_target_without_drafter_and_method(as_json):
    cells = json.loads(as_json.out)["cells"]
    (base, sampled) = [cell for cell in cells if cell["num_speculative_tokens"] == 0]
    for cell in (base, sampled):
        assert (cell["drafter"], cell["method"], cell["pairing"]) == ("none", "none", "tiny")
        assert cell["speedup"] is None


@pytest.mark.parametrize("command", ["run", "sweep-k"])
def test_a_dry_run_prints_the_plan_and_measures_nothing(command, tiny, tmp_path):
    arguments = ("tiny", "-w", "prompts.jsonl,talk.jsonl", "--temperature", "0,1")
    ran = specbench(command, *arguments, "--runs-dir", tmp_path / "out", "--dry-run", cwd=tiny)
    assert (ran.code, ran.err) == (0, "")
    table, _, _ = ran.out.partition("\nall: ")
    assert max(map(len, table.splitlines())) <= 80
    # 2 workloads, 2 temperatures, 2 drafters: K = 0 once for both drafters.
    num_ks = 1 if command == "run" else 8
    assert f"{2 * 2 * (1 + 2 * num_ks)} cells. " in ran.out
    assert re.search(" MiB .*float32", ran.out.replace("\n ", ""))
    assert not (tmp_path / "out").exists()


def test_a_dry_run_under_a_budget_notes_an_earlier_end(tiny):
    ran = specbench("run -w prompts.jsonl --time-budget 3m --dry-run", cwd=tiny)
    assert re.search("cells .*; --time-budget .*--margin-of-error ", ran.out.replace("\n", " "))


def test_a_dry_run_prints_common_values_once_and_truncates_no_name(tiny):
    words = ("run", "tiny", "-w", "prompts.jsonl", "--dry-run")
    same = specbench(*words, cwd=tiny).out
    head, *rows = same.splitlines()
    assert head.split() == ["pairing", "workload", "method", "K"]
    assert rows[0].split() == ["tiny", "prompts.jsonl", "none", "0"]
    assert "\nall: temperature 0, batch 1, prompts 6, repeats 1\n" in same
    other = specbench(*words, "--concurrency", "1,2", "--repeats", "2", cwd=tiny).out
    assert other.split()[:5] == ["pairing", "workload", "method", "batch", "K"]
    assert "\nall: temperature 0, prompts 6, repeats 2\n" in other


def test_a_dry_run_in_json_lists_the_cells(tiny):
    words = ("run", "tiny", "-k", "0,3", "-w", "talk.jsonl", *SMALL, "--dry-run", "--json")
    cells = json.loads(specbench(*words, cwd=tiny).out)["cells"]
    assert [(cell["pairing"], cell["num_speculative_tokens"]) for cell in cells] == [
        ("tiny", 0),
        ("tiny/draft", 3),
        ("tiny/ngram", 3),
    ]
    assert {(cell["num_prompts"], cell["num_repeats"]) for cell in cells} == {(2, 1)}


def test_a_run_of_only_k_0_reports_that_nothing_else_was_measured(tiny, tmp_path):
    words = ("run", "tiny/ngram", "-k", "0", "-w", "talk.jsonl", *SMALL, "--runs-dir", tmp_path)
    for _ in range(3):  # a few milliseconds of decoding: a busy machine can make them invalid
        ran = specbench(*words, cwd=tiny)
        if "no valid measurement" not in ran.out:
            break
    assert ran.code == 0, ran.out
    assert ran.out.splitlines()[-1].startswith("talk.jsonl: only K=0 was run (")


@pytest.mark.slow
def test_a_pairing_that_cannot_run_is_reported_with_exit_code_4(tiny, tmp_path):
    pairings = (tiny / "pairings.yaml").read_text() + "      head: {method: eagle3, model: o/h}\n"
    (tiny / "more.yaml").write_text(pairings)
    ran = specbench(
        "run tiny/head tiny/ngram --config more.yaml -w talk.jsonl",
        *("-k", "2", *SMALL, "--runs-dir", tmp_path),
        cwd=tiny,
    )
    assert ran.code == 4
    assert "warning: tiny/head: o/h: " in ran.err
    assert "tiny/ngram" in ran.out.splitlines()[-1] or "talk.jsonl" in ran.out.splitlines()[-1]
    (run,) = [load_run(path, tmp_path) for path in tmp_path.iterdir()]
    assert [failure.pairing for failure in run.failures] == ["tiny/head"]


def test_requests_that_failed_exit_4(tiny, tmp_path):
    refusing = write_refusing(tiny / "target", tmp_path)
    pair = ("--target", refusing, "--draft", "ngram")
    arguments = ("run", *pair, "-w", "./prompts.jsonl", "-k", "1", *SMALL, "--runs-dir", tmp_path)
    ran = specbench(*arguments, cwd=tmp_path)
    assert ran.code == 4, ran.err
    assert "requests failed" in ran.out


def test_markup_in_a_warning_is_printed_literally(capsys):
    with ProgressWatch() as watch:
        watch.warn("id 3: '[/INST]' against '[b]'")
        watch.stage("a[/b].jsonl")
    err = capsys.readouterr().err
    assert "warning: id 3: '[/INST]' against '[b]'" in err
    assert "a[/b].jsonl" in err
