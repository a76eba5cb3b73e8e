"""Weights on the way to their device: one at a time, packed as they come, in bounded memory.

The tests measure what a process has allocated (RssAnon + RssShmem). Pages of the checkpoint's own
files, which are mapped once, are in the system's page cache, which drops them when needed.
The meta device stands in for a GPU: tensors go there in the same way and take no host memory.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.errors import ModelError
from specbench.files.headers import INDEX
from specbench.models import weights
from specbench.models.loading import LoadedModel, load_model
from specbench.models.quantization import pack, packable
from tests.decoding.models import tiny_llama
from tests.decoding.sharded import write_sharded
from tests.tiny_models import spec_of

CPU, META = torch.device("cpu"), torch.device("meta")
MIB, GIB = 2**20, 2**30


def allocated_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * sum(int(v.split()[1]) for v in lines if v.startswith(("RssAnon", "RssShmem")))


def growth(folder: Path, device: str, scheme: str, dtype: str) -> tuple[int, int]:
    """The maximum growth of a loading process in bytes, and the bytes of the loaded weights."""
    small = folder / "small"
    tiny_llama(hidden_size=128, intermediate_size=256).save_pretrained(small)
    module = [sys.executable, "-m", "tests.decoding.loading_child"]
    child = subprocess.Popen(
        [*module, small, folder, device, scheme, dtype],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "ready\n"
        before = most = allocated_bytes(child.pid)
        answers: list[str] = []
        reader = Thread(target=lambda: answers.append(child.stdout.readline()))
        reader.start()
        child.stdin.write("\n")
        child.stdin.flush()
        while reader.is_alive():
            most = max(most, allocated_bytes(child.pid))
            time.sleep(0.001)
        return most - before, int(answers[0])


def beyond_weights(folder: Path, device: str, scheme: str, dtype: str) -> int:
    """The maximum number of bytes that loading takes on the host, without those that stay there."""
    most, weights = growth(folder, device, scheme, dtype)
    kept = weights if device == "cpu" else 0
    print(f"{device} {scheme} {dtype}: {(most - kept) / MIB:+.0f} MiB beyond {kept / MIB:.0f} MiB")
    return most - kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_files", "device", "scheme", "dtype"),
    [
        pytest.param(4, "cpu", "int8", "auto", marks=pytest.mark.long),
        pytest.param(1, "cpu", "int4", "auto", marks=pytest.mark.long),
        pytest.param(4, "meta", "none", "float32", marks=pytest.mark.long),
        pytest.param(4, "cuda:0", "int8", "bfloat16", marks=pytest.mark.gpu),
        pytest.param(4, "cuda:0", "none", "float32", marks=pytest.mark.gpu),
    ],
)
def test_loading_takes_the_memory_of_the_weights_and_less_than_a_file(
    tmp_path, num_files, device, scheme, dtype
):
    write_sharded(tmp_path, hidden_size=1024, num_layers=6, num_files=num_files)
    assert beyond_weights(tmp_path, device, scheme, dtype) < 160 * MIB  # 390 MiB as float32


@pytest.fixture(scope="module", params=[5, 1], ids=["sharded", "single-file"])
def four_gib(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four-gib")
    write_sharded(folder, hidden_size=2048, num_layers=36, num_files=request.param)
    assert 4 * GIB < sum(file.stat().st_size for file in folder.glob("*.safetensors")) < 4.5 * GIB
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("device", "scheme", "dtype"),
    [
        ("cpu", "none", "auto"),
        ("cpu", "int8", "auto"),
        ("cpu", "int4", "auto"),
        ("meta", "none", "float32"),
        ("meta", "int8", "bfloat16"),
    ],
)
def test_four_gib_load_with_less_than_a_gib_above_the_weights(four_gib, device, scheme, dtype):
    assert beyond_weights(four_gib, device, scheme, dtype) < GIB


class Journey(TorchDispatchMode):
    """Steps of tensors on their way: `read` from a file's dtype, `moved` to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].device == CPU:
            is_moved = kwargs.get("device") == META
            self.steps.append(("moved" if is_moved else "read", tuple(args[0].shape)))
        return func(*args, **kwargs)


class MetaCopies(TorchDispatchMode):
    """Tensors that go to the meta device keep their values: they are copied in place."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == META:
            return args[0].clone()
        return func(*args, **kwargs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama in bfloat16 over four files."""
    write_sharded(tmp_path, hidden_size=256, num_layers=2, num_files=4)
    return tmp_path


def load(folder: Path, device: torch.device, **changes: Any) -> LoadedModel:
    return load_model(spec_of(folder, **changes), device)


@pytest.mark.parametrize("scheme", [None, "int8"])
def test_each_weight_is_on_its_device_before_the_next_is_read(folder, scheme):
    with Journey() as journey:
        model = load(folder, META, dtype="float32", quantization=scheme).model
    num_weights = len(list(model.parameters()))
    steps = journey.steps[: 2 * num_weights]  # after them: the rotary's frequencies
    assert [event for event, _ in steps] == ["read", "moved"] * num_weights
    assert [shape for _, shape in steps[::2]] == [shape for _, shape in steps[1::2]]
    assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {META}


def test_a_weight_is_packed_before_the_next_is_read(folder, monkeypatch):
    with Journey() as journey:

        def note_and_pack(linear: torch.nn.Linear, scheme: str) -> None:
            journey.steps.append(("packed", tuple(linear.weight.shape)))
            pack(linear, scheme)

        monkeypatch.setattr(weights, "pack", note_and_pack)
        model = load(folder, CPU, quantization="int8").model
    steps = journey.steps
    packed = [number for number, (event, _) in enumerate(steps) if event == "packed"]
    assert len(packed) == len(packable(model)) == 14
    assert all(steps[number - 1] == ("read", steps[number][1]) for number in packed)


@pytest.mark.gpu
def test_packing_on_a_gpu_needs_little_more_than_the_packed_weights(tmp_path):
    write_sharded(tmp_path, hidden_size=1024, num_layers=6, num_files=4)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loaded = load(tmp_path, torch.device("cuda:0"), quantization="int4")
    most = torch.cuda.max_memory_allocated() - before
    assert most - loaded.weights_bytes < 64 * MIB  # of 190 MiB in bfloat16


@pytest.mark.parametrize("tie_word_embeddings", [False, True])
def test_weights_that_were_moved_are_those_of_the_files(tmp_path, tie_word_embeddings):
    """Transformers draws values for all tensors that it does not expect to read."""
    tiny_llama(tie_word_embeddings=tie_word_embeddings).save_pretrained(tmp_path)
    expected = load(tmp_path, CPU).model.state_dict()
    with MetaCopies():
        moved = load(tmp_path, META).model.state_dict()
    assert moved.keys() == expected.keys()
    assert all(torch.equal(moved[name], expected[name]) for name in expected)


@pytest.mark.parametrize("device", [CPU, META])
def test_tied_weights_stay_tied_when_moved(tmp_path, device):
    tiny_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    model = load(tmp_path, device).model
    assert model.lm_head.weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("scheme", [None, "int8"])
@pytest.mark.parametrize("name", ["mlp.up_proj.weight", "input_layernorm.weight"])
def test_files_that_lack_a_weight_are_refused_not_filled_up(folder, name, scheme):
    index = json.loads((folder / INDEX).read_text())
    file = folder / index["weight_map"].pop(f"model.layers.1.{name}")
    (folder / INDEX).write_text(json.dumps(index))
    tensors = load_file(file)
    del tensors[f"model.layers.1.{name}"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"missing: model\.layers\.1\.{name};"):
        load(folder, CPU, quantization=scheme)


def test_a_failed_load_restores_the_default_device_and_environment(folder):
    before = dict(os.environ)
    (folder / "model-00003.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"model-00003\.safetensors"):
        load(folder, META, quantization="int8")
    assert dict(os.environ) == before
    linear = torch.nn.Linear(2, 2)
    assert linear.weight.device == CPU
    assert type(linear.weight) is torch.nn.Parameter
