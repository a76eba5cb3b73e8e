"""Packed weights: close to the plain ones, smaller, decoded like any model, or clearly refused."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torchao.quantization import Int8WeightOnlyConfig
from transformers import AutoModelForCausalLM, TorchAoConfig

from specbench.errors import ModelError
from specbench.files.model import ModelFiles, open_model
from specbench.fit.weights import model_weights
from specbench.fit.weights import planned_dtype as files_dtype
from specbench.forward.runner import StockRunner
from specbench.models import loading, quantization
from specbench.models.loading import LoadedModel, load_model, planned_dtype
from specbench.models.quantization import pack, packable, require_packable, stored_format
from tests.decoding.fake_cuda import DEVICE, HostWatch, fake_cuda
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, make_drafter
from tests.decoding.models import (
    ARCHITECTURES,
    build,
    plain_logits,
    ragged_prompts,
    ragged_requests,
    ragged_texts,
    tiny_llama,
)
from tests.tiny_models import change_json, spec_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
# Spread of the logits' error over that of the logits; a wrong scale or layout gives 1 and more.
ERRORS = {"int8": (0.0, 0.05), "fp8": (0.05, 0.15), "int4": (0.15, 0.6)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose layers have 128 inputs, an int4 group."""
    folder = tmp_path_factory.mktemp("wide")
    tiny_llama(hidden_size=128, intermediate_size=256, initializer_range=0.1).save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def load(folder: Path, scheme: str | None = None, **changes: Any) -> LoadedModel:
    return load_model(spec_of(folder, quantization=scheme, **changes), CPU)


def store(folder: Path, **quantization: Any) -> None:
    """Mark the weights as stored quantized in the config."""
    change_json(folder / "config.json", lambda c: c.update(quantization_config=quantization))


def decoded(loaded: LoadedModel, draft: LoadedModel | None = None) -> list[Any]:
    """A batch of ragged rows, greedy; with a draft at K = 4."""
    requests = ragged_requests()
    target = StockRunner(loaded.model)
    if draft is None:
        return decode(target, make_drafter("none", target), requests, k=0)
    drafter = make_drafter("draft_model", target, StockRunner(draft.model))
    return decode(target, drafter, requests, k=4)


@pytest.mark.sampled(one_in=2, every=["scheme", "dtype"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scheme", ERRORS)
def test_packed_weights_give_logits_near_the_plain_ones(saved, scheme, dtype):
    tokens_BT = torch.tensor([ragged_prompts()[0]])
    plain = plain_logits(load(saved).model, tokens_BT)
    packed = load(saved, scheme, dtype=dtype)
    error = (plain_logits(packed.model, tokens_BT).float() - plain).std() / plain.std()
    low, high = ERRORS[scheme]
    assert low < error < high
    assert (packed.dtype, packed.quantization) == (dtype, scheme)


@pytest.mark.parametrize(
    ("scheme", "packed_bytes"),
    [
        ("int8", lambda rows, columns: rows * columns + rows * (4 + 1)),
        ("fp8", lambda rows, columns: rows * columns + rows * 4),
        ("int4", lambda rows, columns: rows * columns // 2 + rows * columns // 128 * (4 + 4)),
    ],
)
def test_memory_is_that_of_the_values_scales_and_zero_points(saved, scheme, packed_bytes):
    plain, packed = load(saved), load(saved, scheme)
    # 4 heads and 2 key heads of 32; per layer: q, k, v, o, gate, up, down
    shapes = [(128, 128), (64, 128), (64, 128), (128, 128), (256, 128), (256, 128), (128, 256)]
    saving = sum(4 * rows * columns - packed_bytes(rows, columns) for rows, columns in shapes)
    assert plain.weights_bytes - packed.weights_bytes == 2 * saving
    assert packed.num_parameters == plain.num_parameters


def test_quantization_leaves_the_embedding_and_the_head_unchanged(saved):
    plain, packed = load(saved).model, load(saved, "int8").model
    assert torch.equal(packed.lm_head.weight, plain.lm_head.weight)
    assert torch.equal(packed.get_input_embeddings().weight, plain.get_input_embeddings().weight)
    kinds = {type(linear.weight).__name__ for linear in packable(packed)}
    assert kinds == {"Int8Tensor"}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ERRORS)
def test_a_packed_target_decodes_to_its_own_greedy_text(saved, scheme):
    loaded = load(saved, scheme)
    expected = ragged_texts(loaded.model)
    assert_texts(decoded(loaded), expected)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ERRORS)
def test_a_packed_draft_never_changes_the_text(saved, scheme):
    target, draft = load(saved), load(saved, scheme)
    expected = ragged_texts(target.model)
    results = decoded(target, draft)
    assert_texts(results, expected)
    assert 0 < acceptance_rate(results) <= 1


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_a_packed_layer_on_a_gpu_neither_syncs_nor_copies(scheme):
    with fake_cuda():
        linear = torch.nn.Linear(128, 64, device=DEVICE, dtype=torch.bfloat16)
        pack(linear, scheme)
        tokens_BTF = torch.empty(2, 5, 128, device=DEVICE, dtype=torch.bfloat16)
        with HostWatch():
            out_BTF = linear(tokens_BTF)
        assert (out_BTF.shape, out_BTF.dtype) == ((2, 5, 64), torch.bfloat16)


def test_a_packed_model_has_another_hash_than_its_checkpoint(saved):
    plain, packed = load(saved), load(saved, "int8")
    assert plain.quantization is None
    assert packed.content_sha256 == f"int8:{plain.content_sha256}"


@pytest.mark.parametrize(
    ("scheme", "device", "dtype", "refusal"),
    [
        ("int4", CUDA, torch.float16, "on a GPU needs dtype bfloat16, not float16"),
        ("int4", CUDA, torch.bfloat16, None),
        ("int4", CPU, torch.float16, None),
        ("int8", CUDA, torch.float16, None),
        ("int8", CPU, torch.float64, "no float64 kernels; choose dtype float32"),
    ],
)
def test_a_dtype_without_kernels_is_refused_before_anything_is_loaded(
    scheme, device, dtype, refusal
):
    if refusal is None:
        require_packable(scheme, device, dtype)
        return
    with pytest.raises(ModelError, match=refusal):
        require_packable(scheme, device, dtype)


@pytest.mark.parametrize("dummy", [False, True])
def test_quantization_without_torchao_names_the_install_command(saved, monkeypatch, dummy):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ModelError, match=r"int8.*pip install torchao"):
        load_model(spec_of(saved, quantization="int8"), CPU, dummy=dummy)


def test_a_layer_that_int4_groups_do_not_divide_is_refused(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"48.*128"):
        load(tmp_path, "int4")


@pytest.mark.parametrize("name", ["Qwen3-MoE", "GPT-2"])
def test_a_model_without_linear_layers_is_refused(name):
    with pytest.raises(ModelError, match="outside linear layers"):
        packable(build(ARCHITECTURES[name]()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantized_checkpoint_is_loaded_as_stored(saved, tmp_path, dtype):
    packed = load(saved, "int8", dtype=dtype)
    AutoModelForCausalLM.from_pretrained(
        saved,
        dtype=getattr(torch, dtype),
        quantization_config=TorchAoConfig(Int8WeightOnlyConfig()),
    ).save_pretrained(tmp_path)
    stored = load(tmp_path)
    assert (stored.quantization, stored.dtype) == ("torchao", dtype)
    assert planned_dtype(spec_of(tmp_path), CPU) == dtype
    assert stored.num_parameters == packed.num_parameters
    assert stored.weights_bytes == packed.weights_bytes
    tokens_BT = torch.tensor([ragged_prompts()[0]])
    assert torch.equal(*(plain_logits(m.model, tokens_BT) for m in (stored, packed)))


@pytest.mark.parametrize(
    ("quantization", "command"),
    [
        ({"quant_method": "gptq", "bits": 4}, "pip install gptqmodel optimum"),
        ({"quant_method": "awq", "bits": 4}, "pip install gptqmodel accelerate"),
        ({"quant_method": "compressed-tensors"}, "pip install compressed-tensors"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "pip install bitsandbytes accelerate",
        ),
        ({"quant_method": "fp8"}, "pip install accelerate"),
    ],
    ids=lambda value: value["quant_method"] if isinstance(value, dict) else "",
)
def test_a_stored_format_without_its_packages_says_how_to_install_them(
    folder, quantization, command
):
    store(folder, **quantization)
    with pytest.raises(ModelError) as refused:
        load(folder)
    assert f"format {quantization['quant_method']} of" in str(refused.value)
    assert str(refused.value).endswith(command)


def test_weights_that_share_one_number_are_counted_as_the_config_has_them(saved):
    model = tiny_llama(hidden_size=128, intermediate_size=256)  # of the saved config
    expected = model.num_parameters()
    model.lm_head = torch.nn.Module()
    model.lm_head.register_buffer("qweight", torch.zeros(4, 97, dtype=torch.int32))
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    assert loading._num_parameters(model, spec_of(saved), "gptq") == expected


def test_a_stored_format_that_transformers_does_not_know_is_refused(folder):
    store(folder, quant_method="nonsense")
    with pytest.raises(ModelError, match=r"nonsense.*transformers"):
        load(folder)


def test_stored_weights_are_not_packed_again(folder):
    store(folder, quant_method="gptq", bits=4)
    with pytest.raises(ModelError, match=r"gptq .*`quantization: int8`"):
        load(folder, "int8")


def test_a_format_that_transformers_unpacks_is_not_called_quantized():
    config = tiny_llama().config
    config.quantization_config = {"quant_method": "mxfp4", "dequantize": True}
    assert stored_format(config) is None


class Unpacking:
    """Loads a checkpoint whose first forward applies `in_forward` to the weights."""

    def __init__(self, in_forward: Any) -> None:
        self._in_forward = in_forward

    def from_pretrained(self, *args: Any, **options: Any) -> Any:
        model, report = AutoModelForCausalLM.from_pretrained(*args, **options)

        def hook(model: Any, _: object) -> None:
            handle.remove()
            self._in_forward(model)

        handle = model.register_forward_pre_hook(hook)
        return model, report


def unpack(model: Any) -> None:
    """A checkpoint as compressed-tensors writes it."""
    for linear in packable(model):
        linear.weight = torch.nn.Parameter(linear.weight.dequantize(), requires_grad=False)


@pytest.fixture
def stored(saved, tmp_path):
    """Stored as torchao's int8, which loads without another package."""
    AutoModelForCausalLM.from_pretrained(
        saved, dtype=torch.float32, quantization_config=TorchAoConfig(Int8WeightOnlyConfig())
    ).save_pretrained(tmp_path / "stored")
    return tmp_path / "stored"


def test_weights_that_the_first_forward_unpacks_are_counted_after_it(saved, stored, monkeypatch):
    plain, packed = load(saved), load(stored)
    assert (packed.quantization, packed.unpacked_from, packed.notes) == ("torchao", None, ())
    monkeypatch.setattr(loading, "text_class", lambda *_, **__: Unpacking(unpack))
    unpacked = load(stored)
    assert (unpacked.quantization, unpacked.unpacked_from) == (None, "torchao")
    assert unpacked.weights_bytes == plain.weights_bytes > packed.weights_bytes
    assert unpacked.num_parameters == plain.num_parameters
    (note,) = unpacked.notes
    assert all(word in note for word in ("torchao", "float32", "4 bytes per weight"))


def test_a_stored_format_is_placed_by_its_reader_and_not_moved_again(stored, monkeypatch):
    placements: list[str] = []

    class Placing:
        @staticmethod
        def from_pretrained(*args: Any, device_map: str, **options: Any) -> Any:
            placements.append(device_map)
            return AutoModelForCausalLM.from_pretrained(*args, **options)

    monkeypatch.setattr(loading, "text_class", lambda *_, **__: Placing)
    loaded = load_model(spec_of(stored), torch.device("meta"))
    assert placements == ["meta"]
    assert {parameter.device for parameter in loaded.model.parameters()} == {CPU}


def test_a_forward_without_its_kernels_names_the_package_to_install(stored, monkeypatch):
    def lacks_kernels(_: Any) -> None:
        raise ImportError("finegrained-fp8 kernel unavailable: pip install kernels")

    monkeypatch.setattr(loading, "text_class", lambda *_, **__: Unpacking(lacks_kernels))
    monkeypatch.setattr(ModelFiles, "stored_format", "fp8")
    with pytest.raises(ModelError) as refused:
        load(stored)
    assert re.match(rf"{re.escape(str(stored))} \(.*fp8\): .*: finegrained", str(refused.value))
    assert str(refused.value).endswith("pip install kernels")


def compressed(num_bits: int, kind: str) -> dict[str, Any]:
    weights = {"num_bits": num_bits, "type": kind}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("num_bits", "kind", "capability", "is_kept"),
    [
        (8, "float", None, False),  # a CPU
        (8, "float", (8, 0), False),  # A100
        (8, "float", (9, 0), True),  # H100
        (4, "int", (9, 0), False),
        (8, "int", (9, 0), False),
    ],
)
def test_compressed_tensors_are_unpacked_when_loaded_unless_fp8_kernels_run_here(
    folder, monkeypatch, num_bits, kind, capability, is_kept
):
    store(folder, **compressed(num_bits, kind))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    config = loading.load_config(spec_of(folder))
    assert stored_format(config) is None
    quantization.unpack_compressed(config, CPU if capability is None else CUDA)
    facts = config.quantization_config
    assert (facts["dequantize"], facts["use_optimized_inference"]) == (not is_kept, is_kept)
    assert stored_format(config) == ("compressed-tensors" if is_kept else None)


@pytest.mark.parametrize(
    ("num_bits", "kind", "dtype", "is_counted_plain"),
    [
        (4, "int", "bfloat16", True),
        (8, "float", "float32", True),
        (8, "float", "bfloat16", False),
    ],
)
def test_memory_plans_count_compressed_tensors_as_they_run(
    folder, num_bits, kind, dtype, is_counted_plain
):
    spec = spec_of(folder)
    plain = model_weights(open_model(spec), dtype)
    stored_bytes = sum(tensor.nbytes for tensor in open_model(spec).tensors.values())
    store(folder, **compressed(num_bits, kind))
    files = open_model(spec)
    planned = model_weights(files, dtype)
    assert planned.nbytes == (plain.nbytes if is_counted_plain else stored_bytes)
    assert not planned.is_exact
    assert files_dtype(files, "cpu", None) == "float32"
