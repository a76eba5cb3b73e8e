import pytest

from specbench.bench.served.cycle import CHUNK_BYTES, read_once
from specbench.errors import ModelError


def test_the_weights_of_a_model_are_read_and_nothing_else(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(bytes(CHUNK_BYTES + 5))
    (tmp_path / "b.bin").symlink_to(tmp_path / "a.safetensors")
    (tmp_path / "c.gguf").write_bytes(bytes(3))
    (tmp_path / "tokenizer.json").write_bytes(bytes(7))
    (tmp_path / "d.bin").mkdir()
    assert read_once(tmp_path) == 2 * (CHUNK_BYTES + 5) + 3
    assert read_once(tmp_path / "c.gguf") == 3


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        read_once(tmp_path / "absent.gguf")
