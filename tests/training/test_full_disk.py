"""A full disk: one clear error, saved data is kept, and the same head in the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from specbench.errors import StoreError
from tests.full_disk import file_size_limit
from tests.training.test_training import Killed, killed_after, trained, weights
from tests.training.tiny_target import VOCAB_SIZE, lab
from tools.training.settings import replaced
from tools.training.texts import TextFile, TrainingText
from tools.training.train_head import write_head

ORIGIN = {"target_sha256": "abc", "seed": 0}
TEXT = TrainingText((1, 2, 3), 1, is_held_out=True)
LONG = TrainingText((1,) * 50_000, 1, is_held_out=False)


@contextmanager
def refused(path: Path, num_bytes: int) -> Iterator[None]:
    """The error in one sentence: the file, the reason, and what to do."""
    with pytest.raises(StoreError) as caught, file_size_limit(num_bytes):
        yield
    message = str(caught.value)
    assert message.startswith(f"{path} ")
    assert {"File", "large.", "--resume:"} <= set(message.split())
    assert "\n" not in message


def test_training_resumes_from_the_last_saved_step(tmp_path):
    path, whole = tmp_path / "state.ckpt", lab().student("medusa")
    trained(whole, tmp_path / "whole.ckpt")
    with pytest.raises(Killed):
        trained(lab().student("medusa"), path, report=killed_after(3))
    saved = path.read_bytes()

    with refused(path, len(saved) // 2):
        trained(lab().student("medusa"), path)
    assert path.read_bytes() == saved
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.ckpt", "whole.ckpt"]

    resumed = lab().student("medusa")
    trained(resumed, path)
    for name, tensor in weights(resumed).items():
        assert torch.equal(tensor, weights(whole)[name])


def test_a_full_disk_keeps_only_complete_training_texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    file = TextFile(path, ORIGIN, VOCAB_SIZE)
    file.add([TEXT])
    stored = path.read_bytes()

    with refused(path, len(stored) + 20_000):
        file.add([LONG])
    assert path.read_bytes() == stored
    assert file.texts == [TEXT]
    file.add([LONG])  # the disk has space again
    assert TextFile(path, ORIGIN, VOCAB_SIZE).texts == [TEXT, LONG]


def test_a_truncated_first_line_of_training_texts_is_rewritten(tmp_path):
    path = tmp_path / "texts.jsonl"
    with refused(path, 5):
        TextFile(path, ORIGIN, VOCAB_SIZE)
    assert path.read_bytes() == b""

    path.write_text('{"target_sha')  # the process was killed within it
    TextFile(path, ORIGIN, VOCAB_SIZE).add([TEXT])
    assert TextFile(path, ORIGIN, VOCAB_SIZE).texts == [TEXT]


def test_a_head_is_written_completely_or_not_at_all(tmp_path):
    head = lab().student("medusa").checkpoint()
    with refused(tmp_path / "model.safetensors", 1000):
        write_head(tmp_path, head)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_errors_other_than_disk_errors_are_unchanged(error, tmp_path):
    def writing() -> None:
        with replaced(tmp_path / "file") as stream:
            stream.write(b"half of it")
            raise error

    with pytest.raises(error):
        writing()
    assert list(tmp_path.iterdir()) == []
