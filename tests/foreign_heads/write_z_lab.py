"""DFlash 2 heads that z-lab's `dflash` writes, and the outputs of its own forwards.

python write_z_lab.py OUT     (in the environment that environments.py makes)
"""

import sys
from pathlib import Path
from typing import Any

import torch
from dflash import model as library
from safetensors.torch import load_file, save_file
from shapes import (
    BLOCK,
    FULL,
    MASK,
    NUM_LAYERS,
    ROPE,
    SHAPE,
    SLIDING,
    WINDOW,
    V,
    draw,
    make_target,
    make_tokens,
    states_of,
    write_proof,
)
from torch import Tensor
from transformers import Qwen3Config

K = BLOCK - 1
CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")


@torch.no_grad()
def dflash2(out: Path, types: list[str], more: dict[str, Any] | None = None, **top: Any) -> None:
    target, tokens_T, ids = make_target(), make_tokens(), [1, 4]
    section = {
        **{"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": ids},
        **{"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 8, "selector_top_k": V},
        **(more or {}),
    }
    config = Qwen3Config(
        **SHAPE,
        num_hidden_layers=2,
        rope_parameters=ROPE,
        layer_types=types,
        sliding_window=WINDOW,
        use_sliding_window=SLIDING in types,
        num_target_layers=NUM_LAYERS,
        dflash_config=section,
        **top,
    )
    model = library.DFlash2DraftModel(config).eval()
    draw(model)
    states, _ = states_of(target, tokens_T)
    context_1TF = torch.cat([states[i + 1] for i in ids], -1)[None]
    logits = {}
    for n in range(1, len(tokens_T) - K):
        block_1N = torch.full((1, BLOCK), MASK)
        block_1N[0, 0] = tokens_T[n]
        embedded = target.model.embed_tokens(block_1N) * section.get("input_embedding_scale", 1.0)
        hidden_1KF = model(
            target_hidden=context_1TF[:, :n],
            noise_embedding=embedded,
            position_ids=torch.arange(n + BLOCK)[None],
        )[:, 1:]
        logits[str(n)] = scored(model, target, hidden_1KF, tokens_T[n : n + K])
    model.save_pretrained(out)
    file = out / "model.safetensors"  # its `from_pretrained` reads the tables without the suffix
    named = {f"{name}.weight": name for name in CODEBOOKS}
    tensors = {named.get(name, name): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    write_proof(out, "dflash2", logits, ids=list(range(V)))


def scored(model: Any, target: Any, hidden_1KF: Tensor, before_K: Tensor) -> Tensor:
    """What `propose` samples from [K, V], each draft after the true token before it."""
    seen: list[Tensor] = []
    sample = library._sampling_probs
    library._sampling_probs = lambda scores, *rest: (
        seen.append(scores[0, 0]) or sample(scores, *rest)
    )
    scores_KV = torch.zeros(len(before_K), V)
    for i, before in enumerate(before_K):
        state = hidden_1KF[:, i : i + 1]
        _, candidates, _ = model.propose(state, before[None], target.lm_head, 1.0)
        scores_KV[i, candidates[0, 0]] = seen[-1]
    library._sampling_probs = sample
    return scores_KV


def write_all(out: Path) -> None:
    make_target().save_pretrained(out / "target")
    dflash2(out / "dflash2", [FULL, FULL])
    dflash2(out / "dflash2_window", [SLIDING, SLIDING], is_causal=False)
    scales = {"output_multiplier": 0.5, "final_logit_softcapping": 2.0}
    dflash2(out / "dflash2_scales", [SLIDING, FULL], {**scales, "input_embedding_scale": 3.0})


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
