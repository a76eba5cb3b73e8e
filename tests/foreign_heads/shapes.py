"""The target of all libraries' heads, without any code of this project.

A tiny Llama of six layers with random weights; `Proof` has a library's outputs for its head.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

V, F, NUM_LAYERS, T = 97, 32, 6, 24
# A head's steps, the tokens of its window and of its block, and how many tokens it can say.
STEPS, WINDOW, BLOCK, D, MASK = 3, 6, 5, 24, V - 1
SLIDING, FULL = "sliding_attention", "full_attention"
SHAPE: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": F,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


def make_target() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPE, num_hidden_layers=NUM_LAYERS, rope_parameters=ROPE, initializer_range=0.3
    )
    return LlamaForCausalLM(config).eval()


def make_tokens() -> Tensor:
    return torch.randint(0, V - 1, (T,), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def states_of(target: Any, tokens_T: Tensor) -> tuple[list[Tensor], Tensor]:
    """The unnormalized outputs of all layers [T, F] by number (0 is the embedding), and the last
    one after the final norm."""
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
        for layer in [*target.model.layers, target.model.norm]
    ]
    last_TF = target.model(tokens_T[None]).last_hidden_state[0]
    for hook in hooks:
        hook.remove()
    return seen, last_TF


def draw(module: torch.nn.Module, seed: int = 2) -> None:
    """Draw other weights than the ones a library begins with, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            drawn = torch.randn(tensor.shape, generator=generator) * 0.3
            tensor.copy_(drawn + 1 if "norm" in name else drawn)


def draftable_tokens(count: int) -> Tensor:
    """The tokens of a smaller vocabulary, in rising order."""
    return torch.randperm(V, generator=torch.Generator().manual_seed(3))[:count].sort().values


def write_proof(folder: Path, method: str, logits: Mapping[str, Tensor], **facts: Any) -> None:
    """Write the logits of the library's forward after parts of the text, next to a head's files.

    `logits` [K, W] by the number of tokens that the target has read, of K drafts (of which all
    but the first follow the text's true tokens) over the W tokens `ids` of the target.
    """
    facts = {"method": method, **facts}
    metadata = {"facts": json.dumps(facts)}
    held = {"tokens": make_tokens(), **logits}
    save_file({k: v.contiguous() for k, v in held.items()}, folder / "proof.safetensors", metadata)
