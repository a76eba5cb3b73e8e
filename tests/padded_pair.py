"""The bundled pair with more embedding rows in the target than the tokenizer has ids."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from specbench.shipped import PACKAGE

ROWS, PADDING = 2048, 128  # Qwen 2.5's padding: 152,064 rows against 151,936
_YAML = """\
targets:
  padded:
    model: ./target
    workloads: demo
    drafters:
      draft: {method: draft_model, model: "demo:draft"}
"""


def write_padded_pair(folder: Path, padding: int = PADDING) -> Path:
    """pairings.yaml with `padded/draft`, and its target; returns the folder."""
    target = folder / "target"
    shutil.copytree(PACKAGE / "demo" / "models" / "target", target)
    weights = {
        name: torch.cat([tensor, torch.zeros(padding, *tensor.shape[1:], dtype=tensor.dtype)])
        if tensor.shape[0] == ROWS
        else tensor
        for name, tensor in load_file(target / "model.safetensors").items()
    }
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    assert config["vocab_size"] == ROWS
    (target / "config.json").write_text(json.dumps({**config, "vocab_size": ROWS + padding}))
    (folder / "pairings.yaml").write_text(_YAML)
    return folder
