"""Folders of small models and heads, for code that reads only files.

A draft or a head is written correctly; a test then changes the part that it tests.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.drafters.registry import drafter_class
from specbench.files.model import ModelFiles, open_model
from specbench.files.model_spec import ModelSpec
from tests.decoding.models import tiny_llama
from tests.tiny_pair import make_tokenizer

VOCAB_SIZE = 272
NUM_LAYERS = 6
HEADS = ("eagle", "eagle3", "peagle", "medusa", "dflash", "dflash2", "dspark", "gemma4_mtp")


def write_model(folder: Path, **changes: Any) -> ModelFiles:
    """A random Llama with the byte tokenizer; `changes` go to its config."""
    shape = {"vocab_size": VOCAB_SIZE, "num_hidden_layers": NUM_LAYERS, "eos_token_id": 0}
    tiny_llama(**{**shape, **changes}).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return files_of(folder)


def write_head(folder: Path, method: str, target: ModelFiles, **arguments: Any) -> ModelFiles:
    """A new head of that method for a target, in safetensors."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(target.folder)
    checkpoint = drafter_class(method).new_checkpoint(config, 0, **arguments)
    return write_files(folder, checkpoint.config, checkpoint.tensors)


def write_files(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> ModelFiles:
    """A folder with this config and these tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    if tensors is not None:
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    return files_of(folder)


def change_json(file: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def swap_tokens(content: Any) -> None:
    """Exchanges the ids of the tokens A and B in a tokenizer.json."""
    vocab = content["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]


def rename_end_of_turn(content: Any) -> None:
    """Change a tokenizer.json: <|im_end|> becomes <|turn|>."""
    vocab = content["model"]["vocab"]
    vocab["<|turn|>"] = vocab.pop("<|im_end|>")
    for token in content["added_tokens"]:
        if token["content"] == "<|im_end|>":
            token["content"] = "<|turn|>"


def change_config(model: ModelFiles, **fields: Any) -> ModelFiles:
    """The model after these fields of its config.json were set."""
    change_json(model.folder / "config.json", lambda config: config.update(fields))
    return files_of(model.folder)


def replace_weights(model: ModelFiles, name: str, content: object) -> ModelFiles:
    """The model with one pickle instead of its safetensors."""
    for file in model.folder.glob("*.safetensors*"):
        file.unlink()
    torch.save(content, model.folder / name)
    return files_of(model.folder)


def files_of(folder: Path) -> ModelFiles:
    """The files opened again, without anything cached."""
    return open_model(spec_of(folder))


def spec_of(folder: Path, **changes: Any) -> ModelSpec:
    """The model of a folder, named by its path."""
    return ModelSpec(source=str(folder), folder=folder, **changes)
