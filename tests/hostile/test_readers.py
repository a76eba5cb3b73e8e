"""Whatever a file holds, its reader takes it in or refuses it in words: 1,000 damaged copies each
under `long`, of which every run of the tests has a sample."""

import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specbench.errors import SpecbenchError
from tests.hostile import answer_readers, file_readers, model_readers

READERS = {**file_readers.READERS, **model_readers.READERS, **answer_readers.READERS}
PATIENCE_S = 120  # with one input: what takes longer hangs
MOST_GROWTH = 2**30  # bytes of memory that one reader may take at its worst


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


def most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("num_inputs", [8, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
def test_damaged_copies_are_read_or_give_a_clear_error(name, num_inputs, tmp_path: Path):
    case = READERS[name](tmp_path)
    case.file.write_bytes(case.content)
    case.read()
    before, refusals = most_memory(), []
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
    assert most_memory() - before < MOST_GROWTH
