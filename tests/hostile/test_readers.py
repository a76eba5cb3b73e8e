"""Damaged copies of files are read or refused, by their reader and by a command: up to 1,000 each
under `long`, and a few in every run of the tests."""

import random
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specbench.errors import SpecbenchError
from tests.cli.calls import specbench
from tests.hostile import answer_readers, file_readers, model_readers

READERS = {**file_readers.READERS, **model_readers.READERS, **answer_readers.READERS}
PATIENCE_S = 120  # with one input; longer counts as a hang
MAX_GROWTH = 2**30  # the maximum bytes of memory of one reader


@contextmanager
def patience(name: str) -> Iterator[None]:
    def raise_hang(*_: object) -> None:
        raise AssertionError(f"{name} hangs")

    signal.signal(signal.SIGALRM, raise_hang)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("num_inputs", [8, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
def test_damaged_copies_are_read_or_give_a_clear_error(name, num_inputs, tmp_path: Path):
    case = READERS[name](tmp_path)
    case.file.write_bytes(case.content)
    case.read()
    before, refusals = peak_memory(), []
    for seed in range(num_inputs):
        content = case.mutated(case.content, random.Random(f"{name}/{seed}"))
        case.file.write_bytes(content)
        with patience(f"{name}, copy {seed}"):
            try:
                case.read()
            except SpecbenchError as error:
                refusals.append(str(error))
            except BaseException as error:
                error.add_note(f"{name}, copy {seed}: {content[:2000]!r}")
                raise
    place = case.file.name if case.place is None else case.place
    assert [refusal for refusal in refusals if place not in refusal] == []
    assert bool(refusals) <= case.refuses
    assert peak_memory() - before < MAX_GROWTH


COMMANDS = {  # reader -> the command that is handed its file; {} is the file, {folder} its folder
    "pairings.yaml": "list pairings --config {}",
    "prompts of ours": "run demo/draft -w {} --dry-run",
    "prompts in an array": "run demo/draft -w {} --dry-run",
    "a table of costs": "run demo/draft --step-times {} -k 1 --dry-run",
    "a CSV of costs": "run demo/draft --step-times {} -k 1 --dry-run",
    "run.json": "report {folder} --format md",
    "records.jsonl": "report {folder} --format csv",
    "a baseline": "check {} latest",
    "results, sglang.jsonl": "import {} --temperature 0",
    "config.json of draft_model": "pair demo:target --draft {folder} --dry-run",
    "model.safetensors of medusa": "pair demo:target --draft {folder} --dry-run",
}


@pytest.mark.parametrize("num_inputs", [3, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_damaged_file_gives_an_error_with_its_name(name, num_inputs, tmp_path: Path):
    (tmp_path / "read").mkdir()
    case = READERS[name](tmp_path / "read")
    (tmp_path / "reports").mkdir()
    if name == "a baseline":
        shutil.copytree(file_readers.RUN, tmp_path / "reports" / "sweep")
    command = COMMANDS[name].format(case.file, folder=case.file.parent).split()
    place = case.file.parent.name if "{folder}" in COMMANDS[name] else case.file.name
    for seed in range(num_inputs):
        content = case.mutated(case.content, random.Random(f"{name}/{seed}"))
        case.file.write_bytes(content)
        refusal = refusal_of(case.read)
        with patience(f"{name}, copy {seed}"):
            ran = specbench(*command, cwd=tmp_path)
        details = f"{name}, copy {seed}: {ran} {content[:2000]!r}"
        assert ran.code in range(5), details
        assert "Traceback" not in ran.err, details
        if refusal:
            assert ran.code == 2, details
            is_whole = refusal.startswith("these runs did different work")  # a baseline, read
            assert is_whole or place in ran.out + ran.err, details


def refusal_of(read) -> str:
    try:
        read()
    except SpecbenchError as error:
        return str(error)
    return ""
