"""A disk that becomes full at random points of a command.

The error is clear, and no block is lost or stored twice.
"""

import random
import re

import pytest

from specbench.inputs.config import load_pairings
from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.conftest import SMALL
from tests.full_disk import file_size_limit

FUTURE_RUN = "29991231-235959-abcd"  # a run's id begins with its date
COMMANDS = {
    "run": ("tiny", "-w", "prompts.jsonl", "-k", "2", *SMALL),
    "pair": (
        "./target",
        "--draft",
        "./draft",
        "--draft",
        "ngram",
        "-w",
        "prompts.jsonl",
        "-k",
        "1",
        *SMALL,
    ),
}


def explored_ids(run):
    return sorted(block.block_id for block in run.blocks if block.purpose == "explore")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "num_writes"),
    [("run", 2), *(pytest.param(name, 20, marks=pytest.mark.long) for name in COMMANDS)],
)
def test_a_full_disk_loses_no_block_and_the_error_gives_the_remedy(
    command, num_writes, tiny, finished, tmp_path
):
    assert finished.is_complete
    rng, root, yaml_file = random.Random(command), tmp_path / "out", tmp_path / "kept.yaml"
    target, *_ = words = COMMANDS[command]
    out = ("--runs-dir", root, *(("--output", yaml_file) if command == "pair" else ()))
    resume = (command, *((target,) if command == "pair" else ()), *out, "--resume")
    (root / FUTURE_RUN).mkdir(parents=True)  # as if the clock had been set back since that run
    (root / FUTURE_RUN / "run.json").write_text("{}")

    uninterrupted = load_run("latest", tiny / "reports")
    sizes = {path.name: path.stat().st_size for path in uninterrupted.folder.iterdir()}
    # Bounds of the limits while the command begins, measures, and writes its reports. The last one
    # is below the size of a page, so that no page can be written.
    ends = (0, 1_000, sizes["records.jsonl"], sizes["report.html"] * 9 // 10)
    limits = sorted(
        rng.randrange(*ends[i : i + 2])
        for i in rng.choices(range(3), weights=(1, 2, 1), k=num_writes)
    )

    def run_again():
        begun = len(list(root.glob("*/run.json"))) > 1
        return specbench(*(resume if begun else (command, *words, *out)), cwd=tiny, in_full=True)

    stored, printed = b"", ""
    for limit in limits:
        with file_size_limit(limit):
            ran = run_again()
        assert ran.code == 2, (limit, ran.err)
        assert "Traceback" not in ran.err
        printed += ran.err
        (error,) = re.findall(r"^error: (.*)$", ran.err, re.MULTILINE)
        assert str(tmp_path) in error
        assert "File too large" in error
        files = list(root.glob("*/records.jsonl"))
        assert len(files) < 2
        records = files[0].read_bytes() if files else b""
        assert records.startswith(stored)
        assert records.endswith(b"\n") or not records
        if records:
            hints = f"--resume {files[0].parent.name}", f"specbench report {files[0].parent}"
            assert any(hint in error for hint in hints)
        stored = records
    last = run_again()
    assert last.is_complete, last.err
    assert f": run {FUTURE_RUN} is dated" in " ".join((printed + last.err).split())

    run = load_run("latest", root)
    assert (run.folder / "records.jsonl").read_bytes().startswith(stored)
    ids = [block.block_id for block in run.blocks]
    assert len(ids) == len({*ids})
    assert command == "pair" or explored_ids(run) == explored_ids(uninterrupted)
    if command == "pair" and "not written" not in last.err:
        assert load_pairings(yaml_file).all
