"""Bytes of weights that are packed on loading or in the checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.bench.built_weights import built_weights
from specbench.engines.model_pool import bytes_read
from specbench.errors import ModelError
from specbench.files.model import ModelFiles
from specbench.files.model_spec import ModelSpec
from specbench.fit.weights import model_weights
from specbench.models.loading import load_model
from tests.decoding.models import _config, build
from tests.tiny_models import change_config, files_of, write_files

# Layers of 128 and 256 inputs: one int4 group and two.
WIDE = {"hidden_size": 128, "intermediate_size": 256}
FAMILIES = {
    "Llama": _config("Llama", **WIDE),
    "Llama, tied": _config("Llama", tie_word_embeddings=True, **WIDE),
    "Phi3": _config("Phi3", **WIDE),
    "GPT-NeoX": _config("GPTNeoX", **WIDE),
}


def config_only(folder: Path, config: Any, scheme: str) -> ModelFiles:
    config.save_pretrained(folder)
    files = files_of(folder)
    files.spec = replace(files.spec, quantization=scheme)
    return files


@pytest.mark.sampled(one_in=4, every=["family", "scheme", "dtype"])
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_planned_bytes_of_a_packed_model_equal_the_loaded_ones(tmp_path, family, scheme, dtype):
    build(FAMILIES[family]()).save_pretrained(tmp_path / "whole")
    source = ModelSpec(
        source=str(tmp_path / "whole"), folder=tmp_path / "whole", dtype=dtype, quantization=scheme
    )
    loaded = load_model(source, torch.device("cpu"))

    counted = built_weights(config_only(tmp_path / "config", FAMILIES[family](), scheme), dtype)

    assert counted is not None
    assert counted.nbytes == loaded.weights_bytes
    assert counted.read_bytes == bytes_read(loaded)
    assert counted.num_parameters == loaded.num_parameters
    assert not counted.is_exact


def test_planned_int4_bytes_follow_from_weights_and_groups(tmp_path):
    config = FAMILIES["Llama"]()
    plain = built_weights(config_only(tmp_path, config, None), "bfloat16")
    packed = built_weights(config_only(tmp_path, config, "int4"), "bfloat16")
    # 4 heads and 2 key heads of 32, in two layers: q, k, v, o, gate, up, down
    weights = 2 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 256 * 128)
    assert plain.nbytes - packed.nbytes == 2 * weights - weights // 2 - weights // 128 * (2 + 2)


def test_weights_outside_linear_layers_are_refused_for_int4(tmp_path):
    files = config_only(tmp_path, _config("GPT2", **WIDE)(), "int4")
    with pytest.raises(ModelError, match="outside linear layers"):
        built_weights(files, "bfloat16")


def stored(folder: Path, *, is_tied: bool = False) -> ModelFiles:
    """A checkpoint as GPTQ's tools write it: some tensors of numbers in 32 bits, some in 16."""
    half = torch.float16
    tensors = {
        "model.embed_tokens.weight": torch.zeros(97, 32, dtype=half),
        "lm_head.weight": torch.zeros(97, 32, dtype=half),
        "model.layers.0.mlp.up_proj.qweight": torch.zeros(4, 48, dtype=torch.int32),
        "model.layers.0.mlp.up_proj.scales": torch.zeros(1, 48, dtype=half),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
        "model.layers.2.mlp.up_proj.qweight": torch.zeros(4, 48, dtype=torch.int32),
    }
    config = _config("Llama")().to_dict()
    files = write_files(folder, config, tensors)
    return change_config(
        files,
        tie_word_embeddings=is_tied,
        quantization_config={"quant_method": "gptq", "bits": 4},
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_packed_checkpoint_takes_the_bytes_of_its_files(tmp_path, dtype):
    counted = model_weights(stored(tmp_path), dtype)
    table, packed, scales = 97 * 32 * 2, 4 * 48 * 4, 48 * 2
    assert counted is not None
    # Of two layers: a third is an MTP layer that is left in the files, as are old rotary tables.
    assert counted.nbytes == 2 * table + packed + scales
    assert counted.read_bytes == counted.nbytes - table
    assert counted.num_parameters == 2 * 97 * 32 + 4 * 48 + 48
    assert (counted.is_exact, counted.basis) == (False, "headers")
    # 2 layers of 2 key heads of 8 numbers, in the dtype that is computed in
    assert counted.kv_bytes_per_token == 2 * 2 * 2 * 8 * (4 if dtype == "float32" else 2)


def test_a_tied_head_of_a_packed_checkpoint_is_read_and_counted_once(tmp_path):
    counted = model_weights(stored(tmp_path, is_tied=True), "float16")
    assert counted is not None
    assert counted.nbytes == counted.read_bytes == 97 * 32 * 2 + 4 * 48 * 4 + 48 * 2


def test_a_packed_checkpoint_without_its_files_has_no_known_size(tmp_path):
    files = stored(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert model_weights(files_of(files.folder), "float16") is None
