"""A head's files are read as they were written, or refused if they cannot be trusted."""

import json
import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.errors import ModelError, SpecbenchError
from specbench.files import headers
from specbench.models.checkpoint import Checkpoint, has_tokenizer, read_checkpoint
from tests.hostile.mutations import damaged
from tests.tiny_models import write_files

TENSORS = {"fc.weight": torch.arange(6.0).view(2, 3), "d2t": torch.tensor([0, 2, 5])}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A head's folder without weights."""
    path = tmp_path / "head"
    path.mkdir()
    (path / "config.json").write_text('{"medusa_num_heads": 2}')
    return path


def save_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    for i, (name, tensor) in enumerate(tensors.items()):
        save_file({name: tensor}, folder / f"model-{i}.safetensors")
    files = {name: f"model-{i}.safetensors" for i, name in enumerate(tensors)}
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))


def save_old_pickle(folder: Path, tensors: dict[str, Tensor]) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


LAYOUTS: dict[str, Callable[[Path, dict[str, Tensor]], None]] = {
    "one file": lambda folder, t: save_file(t, folder / "model.safetensors"),
    "shards": save_shards,
    "a pickle": lambda folder, t: torch.save(t, folder / "pytorch_model.bin"),
    "a pickle as of old": save_old_pickle,
    "medusa's pickle": lambda folder, t: torch.save(t, folder / "medusa_lm_head.pt"),
    "medusa's": lambda folder, t: save_file(t, folder / "medusa_lm_head.safetensors"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_checkpoint_layout_reads_back_equal(layout: str, folder: Path) -> None:
    LAYOUTS[layout](folder, TENSORS)

    read = read_checkpoint(str(folder))

    assert read.config == {"medusa_num_heads": 2}
    assert set(read.tensors) == set(TENSORS)
    assert len(read.tensors) == len(TENSORS)
    for name, tensor in TENSORS.items():
        assert read.tensors[name].dtype == tensor.dtype
        assert torch.equal(read.tensors[name], tensor)


def test_a_heads_own_file_takes_precedence_over_a_model_next_to_it(folder: Path) -> None:
    save_file({"model.embed_tokens.weight": torch.zeros(1)}, folder / "model.safetensors")
    torch.save(TENSORS, folder / "medusa_lm_head.pt")
    assert set(read_checkpoint(str(folder)).tensors) == set(TENSORS)


def test_only_the_requested_shard_is_opened(folder: Path) -> None:
    save_shards(folder, TENSORS)
    (folder / "model-1.safetensors").unlink()

    read = read_checkpoint(str(folder)).under("fc.")

    assert torch.equal(read.tensors["weight"], TENSORS["fc.weight"])
    assert "d2t" not in read.tensors
    with pytest.raises(ModelError, match=r"model-1.safetensors.*d2t"):
        read_checkpoint(str(folder)).renamed({"d2": "D2"}).tensors["D2t"]


def test_two_tensors_that_get_one_name_are_refused() -> None:
    both = Checkpoint(source="both", config={}, tensors={"a.w": torch.ones(1), "w": torch.ones(1)})
    with pytest.raises(ModelError, match=r": w repeats a\.w"):
        both.renamed({"a.": ""})


def test_missing_extra_and_misshapen_tensors_are_listed_by_name() -> None:
    read = Checkpoint(source="mine", config={}, tensors=TENSORS)
    read.require({"fc.weight": (2, 3), "d2t": (3,), "t2d": (9,)}, frozenset({"t2d"}))
    differences = r"^mine .*missing: norm\.weight; .*: d2t; fc\.weight .*\(2, 3\), .*\(3, 2\)$"
    with pytest.raises(ModelError, match=differences):
        read.require({"fc.weight": (3, 2), "norm.weight": (3,)}, frozenset())


class Attack:
    """Runs code when a pickle with it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (os.mkdir, ("pwned",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "medusa_lm_head.pt"])
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    torch.save({"fc.weight": torch.ones(1), "x": Attack()}, folder / name)
    with pytest.raises(ModelError, match=rf"{name} is damaged"):
        read_checkpoint(str(folder))
    (folder / name).write_bytes(pickle.dumps(Attack()))
    with pytest.raises(ModelError, match=name):
        read_checkpoint(str(folder))
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize(
    "content", [[torch.ones(1)], {"a": 1}, {1: torch.ones(1)}, {"a": {"b": torch.ones(1)}}]
)
def test_a_pickle_without_a_mapping_of_tensors_is_refused(content: object, folder: Path) -> None:
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="not a mapping"):
        read_checkpoint(str(folder))


def write(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "not a config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "a broken config": (lambda f: write(f, "config.json", b"{"), "config.json cannot be read"),
    "a deep config": (lambda f: write(f, "config.json", b"[" * 99_999), "config.json"),
    "a list": (lambda f: write(f, "config.json", b"[]"), "config.json is not a JSON object"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights found; one of medusa"),
    "a huge header": (
        lambda f: write(f, "model.safetensors", struct.pack("<Q", 2**40) + b"{}"),
        "model.safetensors cannot be read",
    ),
    "a folder": (
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
        "model.safetensors is not a file",
    ),
    "a link out of it": (
        lambda f: link(f, f.parent / "secret.safetensors"),
        "is a link out of its folder",
    ),
    "a link to a device": (lambda f: link(f, Path(os.devnull)), "is a link out of its folder"),
    "a link to nowhere": (lambda f: link(f, f / "nothing"), "a broken link"),
    "a link to itself": (lambda f: link(f, f / "model.safetensors"), "model.safetensors"),
    "an index that leads out": (
        lambda f: shard(f, "../secret.safetensors"),
        "names the file '../secret.safetensors'",
    ),
    "an index of pickles": (lambda f: shard(f, "model.bin"), "only NAME.safetensors is read"),
    "an index of numbers": (lambda f: shard(f, 7), "only NAME.safetensors is read"),
    "an index of another file": (
        lambda f: (
            save_file({"d2t": torch.ones(1)}, f / "b.safetensors"),
            shard(f, "b.safetensors"),
        ),
        "names fc.weight, and no file has it",
    ),
    "an index of a long name": (
        lambda f: shard(f, "x" * 300 + ".safetensors"),
        r"xxx\.safetensors cannot be read: .*File name too long",
    ),
    "no tensors": (lambda f: save_file({}, f / "model.safetensors"), "has no tensors"),
    "an empty index": (lambda f: write_index(f, {}), "has no weight_map"),
}


def link(folder: Path, to: Path) -> None:
    if to.parent == folder.parent:
        save_file(TENSORS, to)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(to)


def shard(folder: Path, file: object) -> None:
    write_index(folder, {"fc.weight": file})


def write_index(folder: Path, files: dict[str, object]) -> None:
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))


@pytest.mark.parametrize("case", HOSTILE)
def test_a_folder_that_cannot_be_trusted_is_refused_by_name(case: str, folder: Path) -> None:
    save_file(TENSORS, folder / "model.safetensors")
    spoil, complaint = HOSTILE[case]
    spoil(folder)
    with pytest.raises(ModelError, match=complaint):
        dict(read_checkpoint(str(folder)).tensors)


def test_a_file_too_large_to_be_a_config_is_not_read(folder, monkeypatch) -> None:
    save_file(TENSORS, folder / "model.safetensors")
    monkeypatch.setattr(headers, "LARGEST_JSON", 10)
    with pytest.raises(ModelError, match="more than 10 bytes"):
        read_checkpoint(str(folder))


def test_the_hubs_cache_may_keep_files_outside_its_snapshots(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / ("a" * 40)
    blobs.mkdir()
    folder.mkdir(parents=True)
    save_file(TENSORS, blobs / "1")
    (blobs / "2").write_text("{}")
    (folder / "model.safetensors").symlink_to("../../blobs/1")
    (folder / "config.json").symlink_to("../../blobs/2")

    read = read_checkpoint(str(folder))

    assert set(read.tensors) == set(TENSORS)
    assert read.revision == "a" * 40


@pytest.mark.parametrize("num_inputs", [20, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("layout", ["one file", "shards", "a pickle", "a pickle as of old"])
def test_a_checkpoint_of_random_damage_is_read_or_refused(
    layout: str, num_inputs: int, folder: Path
) -> None:
    LAYOUTS[layout](folder, TENSORS)
    file = next(path for path in sorted(folder.iterdir()) if "model" in path.name)
    content, num_refused = file.read_bytes(), 0
    for seed in range(num_inputs):
        file.write_bytes(damaged(content, random.Random(seed)))
        try:
            dict(read_checkpoint(str(folder)).tensors)
        except SpecbenchError:
            num_refused += 1
    assert num_refused > num_inputs // 4


def test_a_separate_tokenizer_is_noticed(folder: Path) -> None:
    assert not has_tokenizer(str(folder))
    (folder / "tokenizer.json").write_text("{}")
    assert has_tokenizer(str(folder))


@pytest.mark.parametrize("layout", ["one file", "shards"])
def test_shapes_are_known_without_reading_a_tensor(
    layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LAYOUTS[layout](folder, TENSORS)
    head = read_checkpoint(str(folder)).renamed({"fc.": "join."}).without("d2t")
    files = type(read_checkpoint(str(folder)).tensors)

    def read(self: object, name: str) -> Tensor:  # noqa: ARG001
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(files, "__getitem__", read)

    head.require({"join.weight": (2, 3)}, frozenset())
    with pytest.raises(ModelError, match=r"join.weight is \(2, 3\), not \(3, 2\)"):
        head.require({"join.weight": (3, 2)}, frozenset())
    with pytest.raises(AssertionError, match="was read"):
        head.tensors["join.weight"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.float32])
def test_the_dtype_is_read_from_the_weights_if_the_config_lacks_it(tmp_path, dtype):
    model = write_files(tmp_path, {}, {"model.norm.weight": torch.zeros(4, dtype=dtype)})
    assert f"torch.{model.stored_dtype}" == str(dtype)
