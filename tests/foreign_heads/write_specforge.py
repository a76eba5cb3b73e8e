"""Heads that SpecForge writes, and the outputs of its own forwards.

python write_specforge.py OUT     (in the environment that environments.py makes)
"""

import sys
from pathlib import Path
from typing import Any

import torch
from shapes import (
    BLOCK,
    FULL,
    MASK,
    NUM_LAYERS,
    ROPE,
    SHAPE,
    SLIDING,
    STEPS,
    WINDOW,
    D,
    V,
    draftable_tokens,
    draw,
    make_target,
    make_tokens,
    states_of,
    write_proof,
)
from specforge.algorithms.common.dflash_family_model import create_dflash_sdpa_mask
from specforge.algorithms.peagle import model as peagle_model
from specforge.export.checkpoint_io import apply_legacy_rope_scaling
from specforge.modeling.draft.dflash import DFlashDraftModel
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
from specforge.modeling.draft.peagle import PEagleDraftModel
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

# Without ids in its config SpecForge captures the outputs of these layers.
IDS = (1, NUM_LAYERS // 2 - 1, NUM_LAYERS - 4)


def outputs(states: list[Tensor], ids: tuple[int, ...]) -> Tensor:
    """The outputs of the layers of these numbers, side by side."""
    return torch.cat([states[i + 1] for i in ids], -1)[None]


def randomize(model: Any) -> Tensor:
    """Set random weights, and a vocabulary of D tokens."""
    draw(model)
    ids_D = draftable_tokens(D)
    with torch.no_grad():
        model.d2t.copy_(ids_D - torch.arange(D))
        model.t2d.zero_()[ids_D] = True
    return ids_D


def save(model: Any, out: Path, *, with_embedding: bool) -> None:
    """Save a head as the library's exporters do."""
    held = {k: v for k, v in model.state_dict().items() if with_embedding or "embed" not in k}
    model.save_pretrained(out, state_dict=held)
    apply_legacy_rope_scaling(str(out))


def eagle3(out: Path, ids: tuple[int, ...], **more: Any) -> None:
    target, tokens_T = make_target(), make_tokens()
    config = LlamaConfig(
        **SHAPE, num_hidden_layers=1, draft_vocab_size=D, rope_parameters=ROPE, pad_token_id=0,
        **more,
    )  # fmt: skip
    model = LlamaForCausalLMEagle3(config).eval()
    ids_D = randomize(model)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
    states, _ = states_of(target, tokens_T)
    T, rows = len(tokens_T), []
    places_1T = torch.arange(T)[None]
    mask = model.prepare_decoder_attention_mask(torch.ones(1, T), states[0][None], 1, T, 0)
    kept: list[list[Tensor]] = [[], []]
    with torch.no_grad():
        hidden = model.project_hidden_states(outputs(states, ids))
        for step in range(STEPS):  # as its training unrolls them
            hidden = model.backbone(
                input_embeds=model.embed_input_ids(tokens_T.roll(-1 - step)[None]),
                hidden_states=hidden,
                cache_hidden=kept,
                attention_mask=mask,
                position_ids=places_1T,
            )
            rows.append(model.compute_logits(hidden)[0])
    save(model, out, with_embedding=False)
    logits = {str(n): torch.stack([row[n - 1] for row in rows]) for n in range(1, T - STEPS)}
    write_proof(out, "eagle3", logits, ids=ids_D.tolist())


def peagle(out: Path) -> None:
    target, tokens_T = make_target(), make_tokens()
    config = LlamaConfig(
        **SHAPE, num_hidden_layers=2, draft_vocab_size=D, rope_parameters=ROPE, pad_token_id=0,
        norm_before_residual=True, mask_token_id=MASK,
    )  # fmt: skip
    model = PEagleDraftModel(config).eval()
    ids_D = randomize(model)
    states, last_TF = states_of(target, tokens_T)
    picked: list[tuple[Tensor, Tensor]] = []
    sample = peagle_model.generate_cod_sample_indices
    peagle_model.generate_cod_sample_indices = lambda **given: (
        picked.append(sample(**given)) or (picked[-1])
    )
    peagle_model.compute_peagle_metrics = lambda **_: (None, {})  # a kernel for GPUs
    all_logits: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _, __, logits: all_logits.append(logits[0].detach()))
    T = len(tokens_T)
    training = peagle_model.OnlinePEagleModel(
        model, MASK, num_depths=STEPS, down_sample_ratio=0.999
    )
    with torch.no_grad():
        training(
            input_ids=tokens_T.roll(-1)[None],
            attention_mask=torch.ones(1, T),
            target=target.lm_head(last_TF)[None],
            loss_mask=torch.ones(1, T),
            hidden_states=outputs(states, IDS),
        )
    save(model, out, with_embedding=True)
    (anchors_N, depths_N), logits = picked[0], {}
    for n in range(1, T - STEPS):
        places = [((anchors_N == n - 1) & (depths_N == d)).nonzero()[:, 0] for d in range(STEPS)]
        logits[str(n)] = torch.stack([all_logits[0][place[0]] for place in places if len(place)])
    write_proof(out, "peagle", logits, ids=ids_D.tolist())


def dflash(out: Path, types: list[str]) -> None:
    target, tokens_T, ids = make_target(), make_tokens(), (0, 3)
    config = Qwen3Config(
        **SHAPE, num_hidden_layers=2, rope_parameters=ROPE, layer_types=types,
        sliding_window=WINDOW, use_sliding_window=SLIDING in types, block_size=BLOCK,
        num_target_layers=NUM_LAYERS,
        dflash_config={"target_layer_ids": list(ids), "mask_token_id": MASK},
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = DFlashDraftModel(config).eval()
    draw(model)
    states, _ = states_of(target, tokens_T)
    logits, context = {}, outputs(states, ids)
    for n in range(1, len(tokens_T) - BLOCK):
        block = torch.tensor([[int(tokens_T[n]), *[MASK] * (BLOCK - 1)]])
        anchor = torch.tensor([[n]]), torch.ones(1, 1, dtype=torch.bool), n, BLOCK, "cpu"
        masks = {FULL: create_dflash_sdpa_mask(*anchor)}
        masks[SLIDING] = create_dflash_sdpa_mask(*anchor, sliding_window=WINDOW)
        with torch.no_grad():
            hidden = model(
                position_ids=torch.arange(n + BLOCK)[None],
                attention_mask=masks,
                noise_embedding=target.model.embed_tokens(block),
                target_hidden=context[:, :n],
            )
            logits[str(n)] = target.lm_head(hidden)[0, 1:]
    save(model, out, with_embedding=True)
    write_proof(out, "dflash", logits, ids=list(range(V)))


def write_all(out: Path) -> None:
    make_target().save_pretrained(out / "target")
    eagle3(out / "eagle3", IDS)
    eagle3(
        out / "eagle3_ids", (1, 3, 5),
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
    )  # fmt: skip
    peagle(out / "peagle")
    dflash(out / "dflash", [FULL, FULL])
    dflash(out / "dflash_mixed", [SLIDING, FULL])


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
