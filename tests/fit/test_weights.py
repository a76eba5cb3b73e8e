"""Bytes counted from a config or from headers against the tensors of built models; which tensors
of a multimodal model its text needs."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.bench.built_weights import built_weights
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool, bytes_read
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.memory_plan import DeploymentSpec, plan_pair, plan_target
from specbench.fit.weights import (
    kv_elements_per_token,
    model_weights,
    planned_dtype,
    text_tensors,
)
from specbench.forward.state_layers import cache_bytes, cache_of
from specbench.inputs.config import load_pairings
from specbench.models.loading import load_model
from specbench.models.loading import planned_dtype as loading_dtype
from specbench.records import Request, Sampling
from specbench.shipped import shipped
from tests.decoding.models import ARCHITECTURES, _config, build
from tests.tiny_models import files_of

# Without and with a tied head, grouped heads, and biases wherever the family has them.
DENSE: dict[str, Any] = {
    "Llama": _config("Llama"),
    "Llama, tied": _config("Llama", tie_word_embeddings=True),
    "Llama, every head its own": _config("Llama", num_key_value_heads=4),
    "Llama, biases": _config("Llama", attention_bias=True, mlp_bias=True),
    "Llama, wide heads": _config("Llama", head_dim=24),
    "Mistral": _config("Mistral", sliding_window=12),
    "Qwen 2": _config("Qwen2"),
    "Qwen 2, tied": _config("Qwen2", tie_word_embeddings=True),
    "Qwen 3": _config("Qwen3", head_dim=8),
    "Qwen 3, tied, biases": _config(
        "Qwen3", head_dim=16, attention_bias=True, tie_word_embeddings=True
    ),
}

GEMMA_3N = _config(
    "Gemma3nText",
    num_hidden_layers=6,
    head_dim=8,
    layer_types=["sliding_attention", "full_attention"] * 3,
    num_kv_shared_layers=2,
    vocab_size_per_layer_input=97,
    hidden_size_per_layer_input=8,
    laurel_rank=8,
    activation_sparsity_pattern=None,
)
# Fewer stored heads than `num_key_value_heads` or its absence shows, or fewer layers.
STORING_LESS: dict[str, Any] = {
    "StarCoder": _config("GPTBigCode", multi_query=True),
    "StarCoder, every head its own": _config("GPTBigCode", multi_query=False),
    "Falcon 7B": _config("Falcon", multi_query=True, new_decoder_architecture=False),
    "Falcon 40B": _config("Falcon", new_decoder_architecture=True, num_kv_heads=2),
    "Falcon RW": _config("Falcon", multi_query=False, new_decoder_architecture=False),
    "Gemma 3n": GEMMA_3N,
    "Gemma 4": _config(
        "Gemma4Text",
        num_hidden_layers=6,
        head_dim=8,
        global_head_dim=32,
        layer_types=["sliding_attention", "full_attention"] * 3,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=97,
        hidden_size_per_layer_input=8,
    ),
}


def saved(folder: Path, make: Any) -> Path:
    build(make()).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", DENSE)
def test_bytes_of_the_llama_family_follow_exactly_from_the_config(tmp_path, name, dtype):
    folder = saved(tmp_path, DENSE[name])
    source = ModelSpec(source=str(folder), folder=folder, dtype=dtype)
    loaded = load_model(source, torch.device("cpu"))
    (folder / "model.safetensors").unlink()

    counted = model_weights(files_of(folder), dtype)

    assert counted is not None
    assert (counted.basis, counted.is_exact) == ("config", True)
    assert counted.num_parameters == loaded.num_parameters
    assert counted.nbytes == loaded.weights_bytes
    assert counted.read_bytes == bytes_read(loaded)


@pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if not name.startswith(("Llama", "Qwen2", "Mistral"))]
)
def test_parameters_of_any_architecture_are_exact_from_headers(tmp_path, name):
    folder = saved(tmp_path, ARCHITECTURES[name])
    loaded = load_model(ModelSpec(source=str(folder), folder=folder), torch.device("cpu"))
    counted = model_weights(files_of(folder), "float32")
    assert counted is not None
    assert counted.num_parameters == loaded.num_parameters
    assert loaded.weights_bytes - 1024 < counted.nbytes <= loaded.weights_bytes
    idle_bytes = _idle_bytes(loaded.model)
    assert bytes_read(loaded) - 1024 < counted.read_bytes + idle_bytes <= bytes_read(loaded)
    assert (idle_bytes > 0) == name.startswith(("Qwen3-MoE", "GPT-OSS"))
    built = built_weights(files_of(folder), "float32")
    assert built is not None
    assert built.read_bytes + idle_bytes == bytes_read(loaded)


def _idle_bytes(model: Any) -> int:
    """Bytes of the experts that one token does not use."""
    experts = [w.nbytes for n, w in model.named_parameters() if ".experts." in n]
    of = model.config
    return sum(experts) * (4 - of.num_experts_per_tok) // 4 if experts else 0


def test_a_table_for_each_layer_is_only_looked_up_in(tmp_path):
    """It is neither read by a pass nor packed."""
    folder = saved(tmp_path, GEMMA_3N)
    plain = model_weights(files_of(folder), "float32")
    built = built_weights(files_of(folder), "float32")
    model = build(GEMMA_3N())
    table, embedding = model.model.embed_tokens_per_layer.weight, model.lm_head.weight
    for counted in (plain, built):
        assert counted is not None
        assert counted.read_bytes == counted.nbytes - table.nbytes - embedding.nbytes
    packed = files_of(folder)
    packed.spec = replace(packed.spec, quantization="int8")
    whole, half = (model_weights(files, "bfloat16") for files in (files_of(folder), packed))
    assert whole is not None
    assert half is not None
    matrices = [w for n, w in model.named_parameters() if w.ndim == 2 and "embed_tokens" not in n]
    linears = sum(weight.numel() for weight in matrices) - embedding.numel()
    assert whole.nbytes - half.nbytes == linears


@pytest.mark.parametrize("name", ["Gemma2 + window", "GPT-NeoX", "Qwen3-MoE", "Llama"])
def test_an_architecture_without_files_is_built_without_memory_and_counted(tmp_path, name):
    folder = saved(tmp_path, ARCHITECTURES[name])
    loaded = load_model(
        ModelSpec(source=str(folder), folder=folder, dtype="bfloat16"), torch.device("cpu")
    )
    (folder / "model.safetensors").unlink()
    files = files_of(folder)
    assert (model_weights(files, "bfloat16") is None) == (name != "Llama")
    counted = built_weights(files, "bfloat16")
    assert counted is not None
    assert (counted.num_parameters, counted.nbytes) == (
        loaded.num_parameters,
        loaded.weights_bytes,
    )


@pytest.mark.parametrize("name", STORING_LESS)
def test_keys_and_values_of_a_token_are_those_that_the_model_stores(tmp_path, name):
    folder = saved(tmp_path, STORING_LESS[name])
    config = json.loads((folder / "config.json").read_text())
    if "multi_query" in config:  # as published before transformers added the field
        config.pop("num_key_value_heads", None)
        (folder / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        out = build(STORING_LESS[name]())(input_ids=torch.ones(1, 1, dtype=torch.long))
    stored_bytes, _ = cache_bytes(cache_of(out))
    assert kv_elements_per_token(files_of(folder)) == stored_bytes // 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["auto", "float16"])
def test_the_planned_dtype_equals_the_loaded_one(tmp_path, device, dtype):
    model = build(DENSE["Llama"]()).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    requested_dtype = None if dtype == "auto" else dtype
    source = ModelSpec(source=str(tmp_path), folder=tmp_path, dtype=dtype)
    wanted = loading_dtype(source, torch.device(device))
    assert planned_dtype(files_of(tmp_path), device, requested_dtype) == wanted


def test_planned_bytes_of_packed_weights_are_an_estimate(tmp_path):
    files = files_of(saved(tmp_path, DENSE["Llama"]))
    files.spec = replace(files.spec, quantization="int8")
    plain, packed = model_weights(files_of(tmp_path), "bfloat16"), model_weights(files, "bfloat16")
    assert packed is not None
    assert plain is not None
    assert not packed.is_exact
    assert packed.nbytes < plain.nbytes


@pytest.mark.slow
def test_planned_bytes_equal_loaded_ones_for_every_bundled_drafter():
    """Heads of four kinds and draft models: their tensors, their keys, and the nodes of a round."""
    target = load_pairings(shipped("pairings.yaml")).target("demo")
    files, place = open_model(target.model), DeploymentSpec(device="cpu", context=200)
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    alone = plan_target(files, place)
    assert alone is not None
    assert alone.target.nbytes == engine.weights_bytes("none")
    request = Request(
        prompt_ids=tuple(range(10, 40)), max_new_tokens=8, sampling=Sampling(), seed=0
    )
    for drafter in target.drafters:
        engine.add_drafter(drafter)
        engine.generate(request, Work(drafter=drafter.name, method=drafter.method, k=4))
        plan = plan_pair(files, drafter, place)
        assert plan is not None, drafter.name
        draft_bytes = plan.draft.nbytes if plan.draft else 0
        kv = plan.draft.kv_bytes_per_token if plan.draft else 0
        assert plan.target.nbytes + draft_bytes == engine.weights_bytes(drafter.name), drafter.name
        whole = plan.target.kv_bytes_per_token + kv
        assert whole == engine.kv_bytes_per_token(drafter.name), drafter.name
        nodes = engine._drafters[drafter.name].num_drafts(4)
        assert plan.num_drafts == nodes, drafter.name


def test_dtype_and_quantization_are_read_from_the_top_level_config(tmp_path):
    """The config is read as transformers reads it, without the config of the text part."""
    text = {"num_hidden_layers": 2, "hidden_size": 8, "dtype": "float32"}
    whole = {"text_config": text, "torch_dtype": "bfloat16"}
    for changes, dtype in (({}, "bfloat16"), ({"dtype": "float16"}, "float16")):
        (tmp_path / "config.json").write_text(json.dumps({**whole, **changes}))
        files = open_model(ModelSpec(source="./x", folder=tmp_path))
        assert (files.num_layers, planned_dtype(files, "cuda", None)) == (2, dtype)
        assert files.field("quantization_config") is None
    (tmp_path / "config.json").write_text(json.dumps({**whole, "quantization_config": {"bits": 4}}))
    files = open_model(ModelSpec(source="./x", folder=tmp_path))
    assert files.field("quantization_config") == {"bits": 4}
    assert planned_dtype(files, "cpu", None) == "bfloat16"


def files(names: str, **config: Any) -> Any:
    return SimpleNamespace(tensors=dict.fromkeys(names.split()), config=config)


@pytest.mark.parametrize(
    ("text", "beside", "left_out"),
    [
        pytest.param(
            "language_model.model.embed_tokens.weight language_model.model.norm.weight"
            " language_model.lm_head.weight",
            "vision_tower.vision_model.head.weight multi_modal_projector.norm.weight",
            ("multi_modal_projector", "vision_tower"),
            id="Gemma 3, Mistral 3",
        ),
        pytest.param(
            "model.embed_tokens.weight model.layers.0.mlp.up_proj.weight lm_head.weight",
            "visual.blocks.0.mlp.up_proj.weight visual.merger.mlp.0.weight",
            ("visual",),
            id="Qwen 2.5 VL",
        ),
        pytest.param(
            "model.language_model.embed_tokens.weight model.language_model.norm.weight",
            "model.visual.patch_embed.proj.weight",
            ("model.visual",),
            id="Qwen 3 VL",
        ),
    ],
)
def test_text_needs_the_weights_next_to_its_embedding(
    text: str, beside: str, left_out: tuple[str, ...]
) -> None:
    kept, dropped = text_tensors(files(f"{beside} {text}", text_config={}))
    assert set(kept) == set(text.split())
    assert dropped == left_out


def test_a_text_only_model_needs_all_of_its_tensors() -> None:
    names = "model.embed_tokens.weight other.weight"
    assert text_tensors(files(names)) == (tuple(names.split()), ())
    assert text_tensors(files("other.weight", text_config={})) == (("other.weight",), ())
