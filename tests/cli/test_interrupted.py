import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.bench import benchmark
from specbench.cli import listing as specbench_listing
from specbench.runs import load_run
from tests.cli.calls import CommandResult, specbench
from tests.cli.conftest import SMALL
from tests.cli.sessions import session

MAX_RECORDS = 50  # of some 110: two blocks and a part, even if the test gets little CPU time
PATIENCE_S = 300.0  # a busy machine is slow; a quiet one needs a second


def wait_for_blocks(root, num_blocks, process):
    """The folder of the only run under `root`, once it contains this many blocks."""
    patience_ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < patience_ends_s:
        assert process.is_alive()
        for records in root.glob("*/records.jsonl"):
            if records.read_bytes().count(b'{"type":"block"') >= num_blocks:
                return records.parent
        time.sleep(0.01)
    raise AssertionError("no block in time")


@pytest.mark.sampled(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_keep_blocks_and_print_the_resume_command(tiny, tmp_path, number, code):
    out = tmp_path / "my runs"
    many = ("--repeats", "2")
    arguments = (
        "run",
        "tiny",
        "-w",
        "prompts.jsonl",
        "-k",
        "1,2",
        *many,
        *SMALL,
        "--runs-dir",
        str(out),
    )
    with session(*arguments, cwd=tiny, max_records=MAX_RECORDS) as running:
        folder = wait_for_blocks(out, 2, running.process)
        os.kill(running.process.pid, number)
        running.process.join(PATIENCE_S)
        assert running.process.exitcode == code
    err = running.err.read_text()
    assert "Traceback" not in err
    assert running.out.read_text() == ""

    before = load_run(folder, out)
    assert len(before.blocks) >= 2
    assert not before.is_complete
    (command,) = re.findall(r"Resume with: specbench (.*)$", err, re.MULTILINE)
    resumed = specbench(*shlex.split(command), cwd=tiny)
    assert resumed.is_complete
    after = load_run(folder, out)
    assert after.is_complete
    assert after.blocks[: len(before.blocks)] == before.blocks
    planned = {block.prompt_id for block in after.blocks if block.purpose == "explore"}
    assert planned == {f"p{i}" for i in range(6)}


@pytest.mark.parametrize("command", ["run tiny/draft", "pair ./target --draft ngram"])
def test_the_resume_command_has_the_options_that_a_run_does_not_store(
    command, tiny, tmp_path, monkeypatch
):
    def interrupted(_plan, _root, watch, **_):
        watch.run_id("made")
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "run_benchmark", interrupted)
    words = ("-w", "prompts.jsonl", "--skip-memory-check", *SMALL, "--runs-dir", tmp_path)
    err = specbench(command, *words, cwd=tiny).err
    (again,) = re.findall(r"Resume with: specbench (.*)$", err, re.MULTILINE)
    assert "--skip-memory-check" in again


@pytest.mark.slow
class TestResume:
    """`--resume` without a value means the newest run; with a run or a folder, that one."""

    @pytest.fixture
    def root(self, tiny, finished, tmp_path):
        assert finished.is_complete
        (name,) = re.findall(r"^run (\S+)$", finished.err, re.MULTILINE)
        folder = tmp_path / name
        folder.mkdir()
        lines = (tiny / "reports" / name / "records.jsonl").read_bytes().splitlines(True)
        (folder / "records.jsonl").write_bytes(b"".join(lines[:-1]))  # all but its last word
        (folder / "run.json").write_bytes((tiny / "reports" / name / "run.json").read_bytes())
        assert not load_run(folder, tmp_path).is_complete
        return tmp_path

    @pytest.mark.sampled(one_in=5)
    @pytest.mark.parametrize("how", ["alone", "before another option", "latest", "id", "folder"])
    def test_an_interrupted_run_resumes_by_every_way_of_naming_it(self, how, root, tiny):
        (folder,) = root.iterdir()
        resume = {
            "alone": ["--runs-dir", str(root), "--resume"],
            "before another option": ["--resume", "--runs-dir", str(root)],
            "latest": ["--runs-dir", str(root), "--resume", "latest"],
            "id": ["--runs-dir", str(root), "--resume", folder.name],
            "folder": ["--resume", str(folder)],
        }[how]
        ran = specbench("run", *resume, cwd=tiny)
        assert ran.is_complete
        assert f"run {folder.name}\n" in ran.err
        assert load_run(folder, root).is_complete
        assert [path.name for path in root.iterdir()] == [folder.name]


def test_a_bug_is_a_traceback_and_exit_code_70(tmp_path, monkeypatch):
    def broken(_out):
        raise RuntimeError("two and two are five")

    monkeypatch.setattr(specbench_listing, "_runs", broken)
    ran = specbench("list", "runs", cwd=tmp_path)
    assert ran.code == 70
    assert "Traceback " in ran.err
    assert "RuntimeError: two and two are five" in ran.err
    assert "please report" in ran.err.splitlines()[-1]


@pytest.mark.slow
def test_a_closed_output_pipe_is_not_reported_as_a_bug(tmp_path):
    command = [sys.executable, "-m", "specbench", "list", "metrics"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert err == ""
    assert process.returncode != 70


@pytest.fixture
def run_id(finished: CommandResult) -> str:
    match = re.search(r"^run (\S+)$", finished.err, re.MULTILINE)
    assert match
    return match[1]


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        (
            ["tiny/draft"],
            ("measures tiny/draft, tiny/ngram and cannot be resumed with tiny/draft; leave"),
        ),
        (["--method", "ngram"], "cannot be resumed with tiny/ngram"),
        (["-k", "3"], "different settings (-k)"),
        (["--num-prompts", "5", "--temperature", "1"], "(--temperature, --num-prompts)"),
    ],
)
def test_resume_refuses_other_pairings_and_settings(
    beside: list[str], says: str, run_id: str, tiny: Path
) -> None:
    ran = specbench("run", *beside, "--resume", run_id, cwd=tiny)
    assert ran.code == 2
    assert says in " ".join(ran.err.split())


@pytest.mark.slow
def test_resume_accepts_the_runs_parameters(run_id: str, tiny: Path) -> None:
    options = ("tiny", "-w", "prompts.jsonl", "-k", "2", *SMALL)
    assert specbench("run", *options, "--resume", run_id, cwd=tiny).is_complete


def test_a_pairing_that_was_changed_since_is_refused(run_id: str, tiny: Path) -> None:
    file = tiny / "pairings.yaml"
    text = file.read_text()
    try:
        file.write_text(text.replace("method: ngram", "method: ngram, parameters: {max_ngram: 4}"))
        ran = specbench("run", "--resume", run_id, cwd=tiny)
    finally:
        file.write_text(text)
    assert ran.code == 2
    assert "tiny/ngram has changed in pairings.yaml" in " ".join(ran.err.split())
