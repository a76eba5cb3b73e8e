"""Models from only a config: they run, their outputs vary, and they cost what real ones cost."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig

from specbench.errors import ModelError
from specbench.forward.runner import StockRunner
from specbench.models.loading import load_dummy, load_model
from specbench.models.weights import fill, make_skeleton
from specbench.records import Request
from specbench.shipped import PACKAGE
from tests.decoding.lossless import assert_texts, decode, make_drafter
from tests.decoding.models import (
    ARCHITECTURES,
    generated,
    plain_logits,
    ragged_prompts,
    random_prompt,
    tiny_llama,
)
from tests.tiny_models import change_json, spec_of

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with only a config."""
    config = tiny_llama(hidden_size=128, intermediate_size=256).config
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    return tmp_path


def build(config: Any, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    model = make_skeleton(config, dtype, seed=seed)
    fill(model, CPU, seed=seed, scheme=None)
    return model.eval()


def rewrite(folder: Path, **changes: Any) -> None:
    change_json(folder / "config.json", lambda config: config.update(changes))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_finite_and_differ_from_token_to_token(name):
    tokens_1T = torch.tensor([random_prompt(40, seed=1)])
    logits_TV = plain_logits(build(ARCHITECTURES[name]()), tokens_1T)[0]
    assert logits_TV.isfinite().all()
    assert len(set(logits_TV.argmax(-1).tolist())) >= 8
    assert 0.5 < logits_TV.std(0).mean() / logits_TV.std() < 1.1  # not one text for all inputs


@pytest.mark.slow
@pytest.mark.parametrize("tie_word_embeddings", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dummy_logits_of_deep_half_precision_models_stay_distinct(dtype, tie_word_embeddings):
    config = tiny_llama(num_hidden_layers=64, tie_word_embeddings=tie_word_embeddings).config
    logits_TV = plain_logits(build(config, dtype=dtype), torch.tensor([random_prompt(40, seed=1)]))
    assert 0.7 < logits_TV.float().std() < 1.4  # a final norm of 1 times rows of length 1
    assert len(set(logits_TV[0].argmax(-1).tolist())) >= 4


def test_the_same_seed_gives_the_same_weights_and_another_others():
    first, same, other = (build(ARCHITECTURES["GPT-OSS + window"](), seed=s) for s in (0, 0, 1))
    for (name, weight), again in zip(first.named_parameters(), same.parameters(), strict=True):
        assert torch.equal(weight, again), name
    drawn = [n for n, p in first.named_parameters() if p.ndim > 1 or n.endswith("sinks")]
    other_parameters = dict(other.named_parameters())
    assert not any(torch.equal(first.get_parameter(name), other_parameters[name]) for name in drawn)


def test_the_callers_random_state_is_unchanged():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build(ARCHITECTURES["Llama"]())
    assert torch.equal(torch.rand(3), expected)


class MatrixRecorder(TorchDispatchMode):
    """Records every two-dimensional tensor made outside the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.ndim > 1 and not tensor.is_meta:
                self.taken[tensor.untyped_storage().data_ptr()] = tensor
        return out


def test_memory_is_taken_once_and_in_the_final_dtype():
    model = make_skeleton(tiny_llama().config, torch.bfloat16)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    assert all(matrix.is_meta for matrix in matrices)

    with MatrixRecorder() as takings:
        fill(model, CPU, seed=0, scheme=None)
    assert {tensor.dtype for tensor in takings.taken.values()} == {torch.bfloat16}
    assert sum(t.nbytes for t in takings.taken.values()) == sum(m.nbytes for m in matrices)
    assert not any(p.is_meta for p in (*model.parameters(), *model.buffers()))


class UnpackedCount(TorchDispatchMode):
    """The largest number of drawn matrices held at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[StorageWeakRef] = []
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.uniform_.default:
            self.held = [ref for ref in self.held if not ref.expired()]
            self.held.append(StorageWeakRef(args[0].untyped_storage()))
            self.most = max(self.most, len(self.held))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("scheme", "most"), [("int8", 3), (None, 2 + 7 * 4)])
def test_a_packed_model_is_never_held_unpacked(scheme, most):
    """int8: the embedding, and one layer's matrix or the head at a time, or both ends."""
    model = make_skeleton(tiny_llama(num_hidden_layers=4).config, torch.float32)
    with UnpackedCount() as unpacked:
        fill(model, CPU, seed=0, scheme=scheme)
    assert unpacked.most <= most
    assert (unpacked.most == most) is (scheme is None)


def test_tied_dummy_weights_stay_tied():
    model = build(tiny_llama(tie_word_embeddings=True).config)
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_a_folder_with_only_a_config_becomes_a_model_labeled_dummy(folder):
    loaded = load_model(spec_of(folder), CPU, dummy=True)
    assert loaded.dtype == "float32"
    assert not any(p.requires_grad for p in loaded.model.parameters())
    real = tiny_llama(hidden_size=128, intermediate_size=256)
    assert loaded.num_parameters == real.num_parameters()
    assert loaded.content_sha256.startswith("dummy:")
    assert load_model(spec_of(folder, dtype="bfloat16"), CPU, dummy=True).dtype == "bfloat16"
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_model(spec_of(folder), CPU)


def test_the_hash_depends_on_config_and_seed_but_not_on_the_folder(folder, tmp_path_factory):
    first = load_model(spec_of(folder), CPU, dummy=True).content_sha256
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copy(folder / "config.json", elsewhere)
    rewrite(elsewhere, transformers_version="5.17.0")
    assert load_model(spec_of(elsewhere), CPU, dummy=True).content_sha256 == first
    assert load_dummy(spec_of(folder), CPU, seed=1).content_sha256 != first
    rewrite(folder, num_hidden_layers=3)
    assert load_model(spec_of(folder), CPU, dummy=True).content_sha256 != first


def test_dummy_models_decode_to_their_own_greedy_text(folder):
    model = load_model(spec_of(folder), CPU, dummy=True).model
    prompts = ragged_prompts()
    expected = [generated(model, prompt, 24) for prompt in prompts]
    assert min(len(set(text)) for text in expected) > 1
    target = StockRunner(model)
    draft = StockRunner(load_dummy(spec_of(folder), CPU, seed=1).model)
    requests = [Request(prompt_ids=prompt, max_new_tokens=24, seed=0) for prompt in prompts]
    drafter = make_drafter("draft_model", target, draft)
    assert_texts(decode(target, drafter, requests, k=3), expected)


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_dummy_weights_can_be_quantized_on_creation(folder, scheme):
    plain, packed = (
        load_model(spec_of(folder), CPU, dummy=True),
        load_model(spec_of(folder, quantization=scheme), CPU, dummy=True),
    )
    assert packed.content_sha256 == f"{scheme}:{plain.content_sha256}"
    assert packed.weights_bytes < plain.weights_bytes
    tokens_1T = torch.tensor([random_prompt(20, seed=1)])
    logits, near = (plain_logits(m.model, tokens_1T) for m in (plain, packed))
    assert (near - logits).std() < 0.6 * logits.std()


def test_dummy_weights_refuse_a_device_map_and_stored_quantization(folder):
    with pytest.raises(ModelError, match="device_map balanced"):
        load_model(spec_of(folder, device_map="balanced"), CPU, dummy=True)
    rewrite(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match="gptq"):
        load_model(spec_of(folder), CPU, dummy=True)


@pytest.mark.slow
def test_a_missing_config_or_one_of_no_language_model_is_refused(folder, tmp_path):
    with pytest.raises(ModelError, match="gone: cannot"):
        load_model(spec_of(tmp_path / "gone"), CPU, dummy=True)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ModelError, match=r"t5.*encoder"):
        load_model(spec_of(folder), CPU, dummy=True)


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [("1b", 1_235_814_400), ("8b", 8_030_261_248), ("70b", 70_553_706_496)],
)
def test_a_shape_has_as_many_parameters_as_the_model_it_is_named_after(name, num_parameters):
    config = AutoConfig.from_pretrained(PACKAGE / "shapes" / f"llama-{name}")
    assert config.dtype is torch.bfloat16
    model = make_skeleton(config, config.dtype)
    assert model.num_parameters() == num_parameters
    assert model.generation_config.eos_token_id is None  # its texts do not end by accident
