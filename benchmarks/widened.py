"""The embedded target with wider feed-forward layers: the same text, and weights no cache holds.

The target of 13 MB lives in a processor's cache, which a virtual machine may share with others, so
the pace of its steps may be theirs. What is added here is zeros (the function-preserving widening
of Chen et al. 2016, arXiv:1511.05641, with weights that do nothing): every logit is as it was up to
rounding, so the drafters, their acceptance and the prompts stay those of the embedded pair, and a
step reads as much memory as one of a larger model does.
"""

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from specbench.shipped import PACKAGE

DRAFTERS = """\
      draft: {method: draft_model, model: demo:draft}
      ngram: {method: ngram}
      medusa: {method: medusa, model: demo:medusa, parameters: {tree: chain}}
      eagle: {method: eagle, model: demo:eagle, parameters: {tree: chain}}
"""
PAIRINGS = """\
targets:
  wide:
    model: ./target
    workloads: demo
    drafters:
"""


def write_wide_pair(folder: Path, num_bytes: int) -> Path:
    """A target of at least `num_bytes` in float32 and its pairings.yaml in `folder`; its path."""
    source = PACKAGE / "demo" / "models" / "target"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    held = sum(p.numel() for p in model.parameters()) * 4
    config = model.config
    per_neuron = 3 * config.hidden_size * config.num_hidden_layers * 4
    added = max(0, -(-(num_bytes - held) // per_neuron))
    with torch.no_grad():
        for layer in model.model.layers:
            mlp = layer.mlp
            for name in ("gate_proj", "up_proj"):
                _pad(getattr(mlp, name), (0, 0, 0, added))
            _pad(mlp.down_proj, (0, added))
    config.intermediate_size += added
    model.save_pretrained(folder / "target")
    for file in source.iterdir():  # the tokenizer's
        if not (folder / "target" / file.name).exists():
            shutil.copy(file, folder / "target")
    path = folder / "pairings.yaml"
    path.write_text(PAIRINGS + DRAFTERS, encoding="utf-8")
    return path


def _pad(linear: torch.nn.Linear, zeros: tuple[int, ...]) -> None:
    weight = torch.nn.functional.pad(linear.weight, zeros)
    linear.weight = torch.nn.Parameter(weight)
    linear.out_features, linear.in_features = weight.shape
