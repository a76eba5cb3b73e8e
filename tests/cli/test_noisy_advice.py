"""What advises a K says first that its run was noisy, in the words of the report."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.metrics.machine import noise_warning
from tests.cli.calls import specbench
from tests.cli.test_check import WISH, keep
from tests.report.stored_runs import stored_run

EARLY = noise_warning(["load average 5.2 on 2 cores"])
ADVICE = (
    ("export", "demo/draft", "--engine", "vllm", "--run"),
    ("export", "demo/draft", "--engine", "vllm", "--json", "--run"),
    ("recommend",),
    ("recommend", "--json"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noisy")
    usual = stored_run(WISH)
    keep(folder, "quiet", usual)
    keep(folder, "noisy", replace(usual, run=replace(usual.run, warnings=(EARLY,))))
    return folder


@pytest.mark.parametrize("arguments", ADVICE, ids=" ".join)
def test_the_warning_of_the_report_comes_with_advice(folder: Path, arguments) -> None:
    quiet = specbench(*arguments, "quiet", cwd=folder)
    assert quiet.code == 0
    assert EARLY not in quiet.out + quiet.err
    noisy = specbench(*arguments, "noisy", cwd=folder)
    assert noisy.code == quiet.code
    assert (noisy.out + noisy.err).count(EARLY) == 1
    assert specbench("report", "noisy", cwd=folder).code == 0
    assert EARLY in (folder / "reports" / "noisy" / "report.md").read_text(encoding="utf-8")


def test_the_noise_warning_is_a_comment_before_the_exported_command(folder: Path) -> None:
    ran = specbench("export demo/draft --engine vllm --run noisy", cwd=folder)
    *lines, command = ran.out.splitlines()
    assert f"# {EARLY}" in lines
    assert command.startswith("vllm serve")
