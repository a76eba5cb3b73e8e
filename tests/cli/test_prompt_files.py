"""Prompt files of other tools, from the command line to the stored run."""

import json
import shutil
from pathlib import Path

from specbench.records import Kind
from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.conftest import SMALL

NOTE = "ShareGPT.json: 1 of 3 rows skipped: conversations: expected a list of at least one item"


def share_gpt(tiny: Path, folder: Path) -> None:
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    rows = [
        {"id": id_, "conversations": [{"from": "human", "value": text} for text in texts]}
        for id_, *texts in (("a", "Hello"), ("b",), ("c", "Name a colour"))
    ]
    (folder / "ShareGPT.json").write_text(json.dumps(rows, indent=1))


def test_skipped_rows_are_reported_in_the_plan_the_run_and_its_record(tiny, tmp_path):
    share_gpt(tiny, tmp_path)
    words = (
        "run",
        "tiny/ngram",
        "-w",
        "./ShareGPT.json",
        "-k",
        "1",
        *SMALL[2:],
        "--num-prompts",
        "2",
    )
    planned = specbench(*words, "--dry-run", "--json", cwd=tmp_path)
    assert planned.code == 0, planned.err
    (warning,) = json.loads(planned.out)["warnings"]
    assert warning["text"].startswith(NOTE)
    ran = specbench(*words, cwd=tmp_path)
    assert ran.is_complete, ran.err
    assert NOTE in ran.err
    stored = load_run("latest", tmp_path / "reports").run
    assert stored.warnings == (Kind.NOTE(text=warning["text"]),)
    assert stored.workload_prompts == {"tiny": {"ShareGPT.json": 2}}


def test_a_resumed_run_keeps_its_prompt_field(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    rows = [{"story": text, "title": "t"} for text in ("Hello", "Name a colour")]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("run", "tiny/ngram", "-w", "./own.jsonl", "-k", "1", *SMALL[2:], "--num-prompts", "2")
    ran = specbench(*words, "--dry-run", cwd=tmp_path)
    assert ran.code == 2
    assert "story, title; " in ran.err
    ran = specbench(*words, "--prompt-field", "story", cwd=tmp_path)
    assert ran.is_complete, ran.err
    stored = load_run("latest", tmp_path / "reports").run
    assert stored.settings.workload.prompt_field == "story"
    again = specbench("run --resume latest --prompt-field title", cwd=tmp_path)
    assert again.code == 2
    assert "(--prompt-field)" in again.err


def test_a_workload_that_no_engine_of_the_run_can_answer_is_refused_before_it(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    for more in ((), ("--dry-run",)):
        ran = specbench("run tiny/ngram -w json -k 1", *more, cwd=tmp_path)
        assert ran.code == 2
        words = " ".join(ran.err.split())
        for part in ("json.jsonl, prompt json-001: response_format", "builtin", "vllm"):
            assert part in words
    words = ("-w", "json", "--ignore-request-settings", "--max-new-tokens", "8")
    planned = specbench("run", "tiny/ngram", *words, "--dry-run", cwd=tmp_path)
    assert planned.code == 0, planned.err
