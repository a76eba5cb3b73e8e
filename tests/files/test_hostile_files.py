"""Reading a model's files with any bytes gives a finding or a ModelError, never a crash."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import ModelError, SpecbenchError
from specbench.files.headers import read_headers
from specbench.files.model import ModelFiles
from specbench.files.model_spec import ModelSpec
from specbench.fit.candidates import discover
from specbench.fit.compatibility import check_drafter
from specbench.fit.memory_plan import DeploymentSpec, plan_pair
from specbench.inputs.pairing import DrafterSpec
from tests.hostile.mutations import json_file, tensor_file
from tests.tiny_models import files_of, write_head, write_model

PLACE = DeploymentSpec(device="cuda", memory_bytes=2**33, bytes_per_s=1e12)
NUM_TRIALS = 30


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("models") / "target")


def check_draft(target: ModelFiles, folder: Path, method: str) -> bool:
    """Everything `pair --dry-run` does with a draft; whether it was refused."""
    spec = ModelSpec(source=str(folder), folder=folder)
    drafter = DrafterSpec(name="draft", method=method, model=spec)
    discover(target, [folder], in_hub_cache=False)
    checked = check_drafter(target, drafter)
    if checked.level == "refused":
        return True
    try:
        plan_pair(target, drafter, PLACE)
    except ModelError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("dflash", "config.json"),
        ("dflash2", "config.json"),
        ("dflash2", "model.safetensors"),
        ("dspark", "config.json"),
        ("gemma4_mtp", "config.json"),
        ("gemma4_mtp", "model.safetensors"),
        ("peagle", "config.json"),
        ("peagle", "model.safetensors"),
    ],
    ids=lambda value: value.removesuffix(".json"),
)
def test_damaged_files_of_heads_that_the_demo_lacks_are_findings(target, tmp_path, method, name):
    folder = tmp_path / "draft"
    write_head(folder, method, target)
    file = folder / name
    whole = file.read_bytes()
    mutated = tensor_file if name.endswith(".safetensors") else json_file
    assert not check_draft(target, folder, method)
    refused = 0
    for seed in range(NUM_TRIALS):
        file.write_bytes(mutated(whole, random.Random(seed)))
        refused += check_draft(target, folder, method)
    assert refused > NUM_TRIALS // 4


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]"])
def test_an_invalid_header_is_a_model_error(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read"):
        read_headers(tmp_path / "model.safetensors")


def with_header(header: str, num_bytes: int) -> bytes:
    text = header.encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * num_bytes


@pytest.mark.parametrize(
    "header",
    [
        '{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}}',
        '{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        '{"x": {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}}',
        '{"x": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}',
        '{"x": {"dtype": "X32", "shape": [2], "data_offsets": [0, 8]}}',
        '{"x": {"dtype": "F32", "shape": "2", "data_offsets": 8}}',
        '{"x": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 8]}}',
        '{"x": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}',
        '{"x": 3}',
    ],
)
def test_a_tensor_with_an_impossible_offset_is_a_model_error(tmp_path, header):
    (tmp_path / "model.safetensors").write_bytes(with_header(header, 8))
    with pytest.raises(ModelError, match="read: x"):
        read_headers(tmp_path / "model.safetensors")


def test_a_link_out_of_the_folder_is_refused(target, tmp_path):
    draft = write_model(tmp_path / "draft", num_hidden_layers=1)
    (tmp_path / "secret").write_bytes((draft.folder / "config.json").read_bytes())
    (draft.folder / "config.json").unlink()
    (draft.folder / "config.json").symlink_to(tmp_path / "secret")
    spec = ModelSpec(source=str(draft.folder), folder=draft.folder)
    checked = check_drafter(target, DrafterSpec(name="d", method="draft_model", model=spec))
    (text,) = {finding.text for finding in checked.of_level("refused")}
    assert "a link out" in text


def test_parsed_headers_equal_those_of_safetensors(tmp_path):
    from safetensors import safe_open

    model = write_model(tmp_path / "model", num_hidden_layers=2)
    headers = read_headers(model.folder / "model.safetensors")
    with safe_open(model.folder / "model.safetensors", framework="pt") as opened:
        assert set(opened.keys()) == set(headers)
        for name, header in headers.items():
            tensor = opened.get_tensor(name)
            assert (header.shape, header.nbytes) == (tuple(tensor.shape), tensor.nbytes)


def test_equal_tensors_are_found_equal_and_others_are_not(tmp_path):
    from specbench.files.headers import same_bytes

    first = read_headers(write_model(tmp_path / "one", seed=0).folder / "model.safetensors")
    same = read_headers(write_model(tmp_path / "same", seed=0).folder / "model.safetensors")
    other = read_headers(write_model(tmp_path / "other", seed=1).folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    assert same_bytes(first[name], same[name])
    assert not same_bytes(first[name], other[name])
    assert not same_bytes(first[name], first["model.norm.weight"])


def test_reading_an_empty_model_folder_is_a_specbench_error(tmp_path):
    reads: list[Callable[[], object]] = [
        lambda: files_of(tmp_path).config,
        lambda: files_of(tmp_path).head,
        lambda: files_of(tmp_path).hidden_size,
    ]
    for read in reads:
        with pytest.raises(SpecbenchError):
            read()
