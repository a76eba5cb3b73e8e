"""What may stand beside --resume."""

import re
from pathlib import Path

import pytest

from tests.cli.calls import CommandResult, specbench
from tests.cli.conftest import SMALL


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
