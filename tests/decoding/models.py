"""Tiny random models that the decoder's tests run on, and the text transformers gives for them.

Weights are drawn wider than usual and embeddings are untied: small or tied random weights repeat
one token forever, and a test on such text shows nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

from specbench.records import Request

VOCAB_SIZE = 97
WINDOW = 12
PROMPT_LENGTHS = (20, 9, 15)

SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 2, "head_dim": 8}


# For logits and states in float32 of two computations: with torch's own tolerances, one
# instruction set rounds beyond them (1.02e-5) and another does not (0.95e-5).
# A wrong position, norm or scale is off by 1e-2 and more.
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def _config(family: str, **changes: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{family}Config")(**{**SHAPE, **changes})


ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "Llama": _config("Llama"),
    "Qwen2": _config("Qwen2"),
    "Qwen2 + window": _config(
        "Qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "Qwen3": _config("Qwen3", head_dim=8),
    "Mistral + window": _config("Mistral", sliding_window=WINDOW),
    "Gemma2 + window": _config(
        "Gemma2",
        attn_logit_softcapping=1.5,
        attn_implementation="eager",  # transformers 5.17 would take a kernel that forgets the cap
        query_pre_attn_scalar=3,
        head_dim=8,
        **_MIXED,
    ),
    "Gemma3 + window": _config("Gemma3Text", query_pre_attn_scalar=12, head_dim=8, **_MIXED),
    "Phi3": _config("Phi3"),
    "GPT-NeoX": _config("GPTNeoX"),
    "Qwen3-MoE": _config("Qwen3Moe", num_experts=4, moe_intermediate_size=16, **_EXPERTS),
    "GPT-OSS + window": _config("GptOss", num_local_experts=4, **_EXPERTS, **_MIXED),
    "OLMo2": _config("Olmo2"),
    "Cohere2 + window": _config("Cohere2", head_dim=8, **_MIXED),
    "GPT-2": _config("GPT2"),
    "StarCoder2": _config("Starcoder2", sliding_window=None),
    "StarCoder2 + window": _config("Starcoder2", sliding_window=WINDOW),
    "Granite": _config("Granite"),
}


def build(config: Any, seed: int = 0) -> Any:
    """The architecture's own model in float32 with weights drawn from the seed."""
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def tiny_llama(seed: int = 0, **changes: Any) -> Any:
    """A two-layer Llama; `changes` go to its config."""
    return build(_config("Llama", **changes)(), seed)


def exact_llama(seed: int = 0, **changes: Any) -> Any:
    """A tiny Llama in float64, for texts that two computations must share.

    In float32 the processor's instruction set decides near-ties.
    """
    return tiny_llama(seed, **changes).double()


def random_prompt(num_tokens: int, seed: int, vocab_size: int = VOCAB_SIZE) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, vocab_size, (num_tokens,), generator=generator).tolist())


def ragged_prompts() -> list[tuple[int, ...]]:
    """Three prompts of 20, 9 and 15 tokens: below and above the window of 12."""
    return [random_prompt(n, seed=n) for n in PROMPT_LENGTHS]


def ragged_requests(num_tokens: int = 24) -> list[Request]:
    return [Request(prompt_ids=p, max_new_tokens=num_tokens) for p in ragged_prompts()]


def generated(model: Any, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """Greedy text from transformers' own `generate`, one prompt at a time, without padding.

    Call it before the model is given to a runner, which switches its attention.
    """
    assert model.config._attn_implementation != "specbench_slots"
    ids_1T = torch.tensor([list(prompt)])
    out = model.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        do_sample=False,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
    )
    return tuple(out[0, len(prompt) :].tolist())


def ragged_texts(model: Any, num_tokens: int = 24) -> list[tuple[int, ...]]:
    """The greedy text after each of the ragged prompts."""
    return [generated(model, prompt, num_tokens) for prompt in ragged_prompts()]


@torch.no_grad()
def plain_logits(model: Any, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] of the model's own forward, without any cache."""
    logits: Tensor = model(input_ids=tokens_BT, use_cache=False).logits
    return logits


def rms_error(logits: Tensor, truth: Tensor) -> float:
    return float((logits.double() - truth).square().mean().sqrt())


def positions(start: int, stop: int, num_rows: int = 1) -> Tensor:
    """The same positions in every row [num_rows, stop - start]."""
    return torch.arange(start, stop).expand(num_rows, -1)
