"""Runs are named by ids that are never cut, or by the beginning of one."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.runs import SCHEMA_VERSION, create_run
from tests.cli.calls import specbench
from tests.report.served_runs import served_run

FIRST, SECOND, OTHER = "20261121-010203-a1", "20261121-010203-b2", "20261230-000000-c3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("named")
    stored = served_run()
    for name in (FIRST, SECOND, OTHER):
        run = replace(stored.run, run_id=name, schema_version=SCHEMA_VERSION)
        with create_run(folder / "reports", run) as writer:
            for record in (*stored.memory, *stored.engines, *stored.blocks):
                writer.append(record)
            writer.finish()
    (folder / "baseline.json").write_text("{}")
    (folder / "pairings.yaml").write_text(
        "targets:\n  mine:\n    model: demo:target\n    drafters:\n      ngram: {method: ngram}\n"
    )
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "report 20261230 --format md",
        "recommend 20261230",
        "check 20261230 20261230",
        "baseline 20261230",
        "export demo/draft --engine vllm --run 20261230",
    ],
)
def test_a_unique_prefix_of_an_id_is_enough(command: str, folder: Path) -> None:
    ran = specbench(command, cwd=folder)
    assert ran.code != 2, ran.err
    ran = specbench(command.replace("20261230", "20261121"), cwd=folder)
    assert ran.code == 2
    assert f"{FIRST}, {SECOND}" in ran.err


def test_a_run_id_that_is_a_prefix_of_another_is_found(folder: Path) -> None:
    assert specbench("report", FIRST, "--format", "md", cwd=folder).code == 0
    assert "no run '9'" in specbench("report", "9", cwd=folder).err


def test_piped_lists_are_tab_separated_and_untruncated(folder: Path) -> None:
    header, *rows = specbench("list", "runs", cwd=folder).out.splitlines()
    assert header.split("\t") == ["run", "state", "blocks", "pairings", "workloads"]
    assert [row.split("\t")[0] for row in rows] == [FIRST, SECOND, OTHER]
    assert rows[0].split("\t")[-1] == "code, creative"
    header, *rows = specbench("list", "pairings", cwd=folder).out.splitlines()
    by_name = {row.split("\t")[0]: row.split("\t") for row in rows}
    assert header.split("\t")[2] == "K"
    assert [by_name[name][2] for name in ("demo/draft", "mine/ngram")] == ["5", "4"]


@pytest.mark.parametrize("columns", [24, 44, 80, 200])
def test_lists_on_a_terminal_are_wrapped_and_not_truncated(
    columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.cli.console.is_terminal", lambda **_: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    out = specbench("list", "runs", cwd=folder).out
    begins = [line.split()[0] for line in out.splitlines() if line.startswith("2026")]
    num_parts = len(begins) // 3  # of a table that is too wide
    assert begins == [FIRST, SECOND, OTHER] * num_parts
    assert (num_parts == 1) == (columns >= 80)
    if columns >= 80:  # below, words are folded
        words = set(out.replace(",", " ").split())
        assert {"workloads", "code", "creative", "complete"} <= words
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= columns


def test_a_missing_file_and_an_unknown_metric_get_a_suggestion(folder: Path) -> None:
    ran = specbench("check baseline.jsn latest", cwd=folder)
    assert ran.code == 2
    assert "did you mean 'baseline.json'?" in ran.err
    ran = specbench("check", OTHER, OTHER, "--fail-on", "decode_spedup:5%", cwd=folder)
    assert "did you mean 'decode_speedup'?" in ran.err


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "transformers"])
def test_float32_of_a_cpu_is_not_exported_to_a_gpu_engine(engine: str, folder: Path) -> None:
    export = ("export", "demo/draft", "--engine", engine)
    ran = specbench(*export, "-w", "code", "--concurrency", "4", cwd=folder)
    assert ran.code == 0, ran.err + ran.out
    why, measured, limits, *commands = ran.out.splitlines()
    assert why.startswith("# do not speculate with demo/draft: ")
    assert measured.startswith(f"# for {engine} ")
    assert "temperature 0" in measured
    assert "float32" in limits
    assert "float32" not in "\n".join(commands)
    by_hand = specbench(*export, "-k", "3", cwd=folder)
    assert by_hand.code == 0
    assert [line[:1] for line in by_hand.out.splitlines()][:2] == ["#", "#"]
    assert "run " not in by_hand.out.splitlines()[1]
