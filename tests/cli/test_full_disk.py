"""A disk that is full at random bytes of a command: a sentence, and nothing lost or doubled."""

import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from specbench.inputs.config import load_pairings
from specbench.runs import load_run
from tests.cli.calls import Ran, specbench
from tests.full_disk import file_size_limit

LATER = "29991231-235959-abcd"
SMALL = ("-w", "prompts.jsonl", "--max-new-tokens", "4", "--threads", "1", "--device", "cpu")
COMMANDS = {
    "sweep-k": ("sweep-k", "tiny/draft", "-k", "1,2", *SMALL),
    "pair": ("pair", "./target", "--drafts", "./draft", "ngram", "-k", "1", *SMALL),
}


class Sound(NamedTuple):
    """The command on a disk with room."""

    ran: Ran
    blocks: set[str]
    num_bytes: int  # of its records
    largest: int  # of its files


def blocks_of(root: Path) -> list[str]:
    return [block.block_id for block in load_run("latest", root, also_empty=True).blocks]


@pytest.fixture(scope="module", params=COMMANDS)
def command(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def sound(command: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    root = tmp_path_factory.mktemp("sound")
    (root / LATER).mkdir()
    (root / LATER / "run.json").write_text("{}")
    ran = specbench(*COMMANDS[command], "--out", root, cwd=tiny)
    assert ran.code == 0, ran.err
    files = [path.stat().st_size for path in load_run("latest", root).folder.iterdir()]
    num_bytes = (load_run("latest", root).folder / "records.jsonl").stat().st_size
    return Sound(ran, {*blocks_of(root)}, num_bytes, max(files))


def test_a_clock_that_was_set_back_is_said_with_the_run_that_latest_means(sound: Sound) -> None:
    assert f"the clock was set back: run {LATER} is dated later than now" in " ".join(
        sound.ran.err.split()
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_writes", [2, pytest.param(20, marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_and_a_sentence_says_what_to_do(
    num_writes: int, command: str, sound: Sound, tiny: Path, tmp_path: Path
) -> None:
    rng, root = random.Random(f"{command}/{num_writes}"), tmp_path / "out"
    where = ("--out", root, *(("--write", tmp_path / "kept.yaml") if command == "pair" else ()))
    resume = (command, *(("./target",) if command == "pair" else ()), *where, "--resume")
    # While it begins, while it measures, and while it writes its reports.
    num_early = num_late = num_writes // 4
    full_at = sorted(
        [rng.randrange(1, 200) for _ in range(num_early)]
        + [rng.randrange(200, sound.num_bytes) for _ in range(num_writes - num_early - num_late)]
        + [rng.randrange(sound.num_bytes, sound.largest) for _ in range(num_late)]
    )
    stored = b""
    for limit in full_at:
        is_begun = any(root.glob("*/run.json"))
        with file_size_limit(limit):
            ran = specbench(*(resume if is_begun else (*COMMANDS[command], *where)), cwd=tiny)
        assert ran.code == 2, (limit, ran.err)
        assert "Traceback" not in ran.err
        (said,) = re.findall(r"^error: (.*)$", ran.err, re.MULTILINE)
        assert str(tmp_path) in said
        assert "File too large" in said
        files = list(root.glob("*/records.jsonl"))
        assert len(files) < 2
        now = files[0].read_bytes() if files else b""
        assert now.startswith(stored)
        assert now.endswith(b"\n") or not now
        assert bool(now) <= (
            f"--resume {files[0].parent.name}" in said or "specbench report" in said
        )
        stored = now
    assert not (tmp_path / "kept.yaml").exists()
    last = specbench(*resume, cwd=tiny)
    assert last.code == 0, last.err
    blocks = blocks_of(root)
    assert len(blocks) == len({*blocks})
    assert command == "pair" or {*blocks} == sound.blocks
    assert next(root.glob("*/records.jsonl")).read_bytes().startswith(stored)
    if command == "pair" and "not written" not in last.err:
        assert load_pairings(tmp_path / "kept.yaml").all
