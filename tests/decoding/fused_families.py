"""Tiny models of every family that has a fused forward, and tokens for them."""

from typing import Any

import torch

from tests.decoding.models import ARCHITECTURES, WINDOW, build, random_prompt

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_BIASES = {"attention_bias": True, "mlp_bias": True}
_TIED = {"tie_word_embeddings": True}
_WINDOWS = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", {}),
    "Llama, biases": ("Llama", _BIASES),
    "Llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "Llama, no groups": ("Llama", {"num_key_value_heads": 4}),
    "Mistral, window": ("Mistral + window", {}),
    "Qwen2": ("Qwen2", {}),
    "Qwen2, window": ("Qwen2 + window", {}),
    "Qwen3": ("Qwen3", {}),
    "Qwen3, window, tied": ("Qwen3", {**_WINDOWS, **_TIED}),
}


def family(name: str, seed: int = 0) -> Any:
    """A model of the family whose biases and norms differ from their initial zeros and ones."""
    base, changes = FAMILIES[name]
    config = ARCHITECTURES[base]()
    for key, value in changes.items():
        setattr(config, key, value)
    model = build(config, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


TOKENS_2T = torch.tensor([random_prompt(2 * WINDOW, seed=1), random_prompt(2 * WINDOW, seed=2)])
