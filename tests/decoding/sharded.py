"""Checkpoints of any size and number of files, written with one file in memory at a time."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.files.headers import INDEX


def write_sharded(folder: Path, *, hidden_size: int, num_layers: int, num_files: int) -> int:
    """A Llama in bfloat16 over files of about the same size; bytes of the largest.

    The inputs of its layers are multiples of an int4 group.
    """
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 256,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in LlamaForCausalLM(config).state_dict().items()}
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    # Drawing this many weights takes longer than everything else.
    some = torch.randn(2**16, generator=torch.Generator().manual_seed(0)).bfloat16() * 0.02
    names, most = list(shapes), 0
    per_file = sum(shape.numel() for shape in shapes.values()) / num_files
    files: dict[str, str] = {}
    for number in range(1, num_files + 1):
        tensors, count = {}, 0
        while names and (count < per_file or number == num_files):
            shape = shapes[names[0]]
            tensors[names.pop(0)] = some.repeat(-(-shape.numel() // len(some)))[: shape.numel()]
            count += shape.numel()
        tensors = {name: tensor.view(shapes[name]) for name, tensor in tensors.items()}
        file = f"model-{number:05}.safetensors" if num_files > 1 else "model.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, file)
        most = max(most, 2 * count)
    if num_files > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return most
