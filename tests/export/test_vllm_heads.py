"""Notes on a head whose files vLLM does not accept as they are."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from specbench.demo import MODELS
from specbench.drafters.registry import drafter_class
from tests.export.deployments import deployment, exported, with_draft
from tools.training.train_head import write_head

HEADS = ("eagle", "eagle3", "medusa")


def losses(method: str, head: Path) -> tuple[str, ...]:
    made = with_draft(deployment(method, tree="chain"), source=str(head), folder=head)
    return exported("vllm", made, "0.32").not_expressed


def write(path: Path, config: dict[str, Any], *tensors: str, size: int = 4) -> Path:
    """A head's folder, every tensor of which is size x size, or has size biases."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    shapes = {name: (size,) if name.endswith(".bias") else (size, size) for name in tensors}
    if tensors:
        held = {name: torch.zeros(shape) for name, shape in shapes.items()}
        save_file(held, path / "model.safetensors")
    return path


@pytest.mark.parametrize("method", HEADS)
def test_bundled_and_new_heads_are_exported_without_notes(method: str, tmp_path: Path) -> None:
    target = AutoConfig.from_pretrained(MODELS / "target")
    write_head(tmp_path, drafter_class(method).new_checkpoint(target, 0))

    assert losses(method, MODELS / method) == losses(method, tmp_path) == ()


def test_a_head_that_names_no_class_gets_a_note_in_the_export(tmp_path: Path) -> None:
    (of_none,) = losses("eagle3", write(tmp_path / "none", {}))
    assert "names no class" in of_none

    assert not losses("eagle3", write(tmp_path / "named", {"architectures": ["LlamaForCausalLM"]}))


def test_an_eagle_bias_that_vllm_misreads_is_noted(tmp_path: Path) -> None:
    config = json.loads((MODELS / "eagle" / "config.json").read_text())

    (note,) = losses("eagle", write(tmp_path / "told", {**config, "bias": True}))
    assert '"bias": true' in note
    assert "almost no draft" in note

    del config["bias"]  # which means that there is one
    (silent,) = losses("eagle", write(tmp_path / "silent", config))
    assert silent.startswith("fc.bias of ")
    assert "drops it" in silent


def test_a_bias_of_eagle3_is_dropped(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"]}
    (note,) = losses("eagle3", write(tmp_path / "head", config, "fc.weight", "fc.bias"))
    assert "fc.bias" in note


def test_fields_missing_in_a_medusa_config_are_listed_with_their_values(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "medusa", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    gone = ("model_type", "hidden_size", "vocab_size", "medusa_fc_bias")
    (tmp_path / "config.json").write_text(
        json.dumps({name: value for name, value in config.items() if name not in gone})
    )

    (note,) = losses("medusa", tmp_path)

    assert note.endswith(
        'add "model_type": "medusa", "hidden_size": 128, "vocab_size": 2048, "medusa_fc_bias": true'
    )


def test_wrong_sizes_in_a_medusa_config_are_listed(tmp_path: Path) -> None:
    config = {"model_type": "medusa", "hidden_size": 4096, "vocab_size": 4}
    counts = {"num_heads": 1, "num_hidden_layers": 1}  # vLLM's own names
    head = write(
        tmp_path / "head", {**config, **counts}, "blocks.0.layers.0.weight", "lm_heads.0.weight"
    )

    (note,) = losses("medusa", head)

    assert note.endswith('add "hidden_size": 4')


def test_a_shared_head_matrix_and_token_map_set_medusa_fields(tmp_path: Path) -> None:
    tensors = ("0.0.linear.weight", "0.0.linear.bias", "lm_head.weight", "token_map")
    (note,) = losses("medusa", write(tmp_path / "head", {"model_type": "medusa"}, *tensors))

    assert '"truncated_vocab_size": 4' in note
    assert '"vocab_size"' not in note
    assert '"original_lm_head": true' in note


def test_missing_or_unreadable_files_get_no_notes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    for method in HEADS:
        assert losses(method, tmp_path) == ()
        assert exported("vllm", deployment(method, tree="chain"), "0.32").not_expressed == ()
