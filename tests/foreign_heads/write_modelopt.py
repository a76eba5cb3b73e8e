"""Heads that NVIDIA's modelopt writes, and the outputs of its own forwards.

python write_modelopt.py OUT     (in the environment that environments.py makes)
"""

import sys
from pathlib import Path
from typing import Any

import modelopt.torch.speculative as mtsp
import torch
from modelopt.torch.export import export_speculative_decoding
from shapes import (
    BLOCK,
    MASK,
    SHAPE,
    STEPS,
    WINDOW,
    D,
    V,
    draftable_tokens,
    draw,
    make_target,
    make_tokens,
    write_proof,
)

LAYER = {name: SHAPE[name] for name in SHAPE if name != "vocab_size"}


def eagle3(out: Path, count: int, num_said: int, scaling: dict[str, Any], **more: Any) -> None:
    tokens_T, model = make_tokens(), make_target()
    settings = {
        "eagle_architecture_config": {
            **LAYER,
            "num_hidden_layers": count,
            "draft_vocab_size": num_said,
            "use_aux_hidden_state": True,
            "use_last_layernorm": True,
            **more,
        },
        "eagle_use_torch_compile": False,
        "eagle_export_rope_scaling": scaling,
    }
    mtsp.convert(model, [("eagle", settings)])
    head = model.eagle_module
    draw(head)
    # Since December 2025 (its commit bdd10c2) its own forward norms the states with
    # input_layernorm and then with hidden_norm. Servers, and it before, leave the first one
    # out, and its config does not say so. With equal weights it changes nothing.
    torch.nn.init.constant_(head.layers[0].input_layernorm.weight, 1.5)
    ids_W = draftable_tokens(num_said) if num_said < V else torch.arange(V)
    logits = {}
    with torch.no_grad():
        if num_said < V:
            head.d2t.copy_(ids_W - torch.arange(num_said))
        for n in range(1, len(tokens_T) - STEPS):
            model._base_model(tokens_T[None, :n])  # its hooks keep the states
            states = head.fc(model.pop_and_gather_aux_hiddens())
            head._maybe_init_rope()
            all_logits = []
            for step in range(STEPS):  # as its pseudo_speculative_generate does
                ids_1T = tokens_T[None, 1 : n + 1 + step]
                shape = tuple(ids_1T.shape)
                mask = model._prepare_decoder_attention_mask(None, shape, 0, "cpu", states.dtype)
                _, head_states, logits_1TW, _ = model._eagle_forward(
                    states, model._base_model_embeddings(ids_1T), mask, None
                )
                all_logits.append(logits_1TW[0, -1])
                states = torch.cat([states, head_states[:, -1:]], 1)
            logits[str(n)] = torch.stack(all_logits)
    out.mkdir(parents=True)
    export_speculative_decoding(model, export_dir=out)
    # With a scaling its export differs from its own forward.
    write_proof(out, "eagle3", {} if scaling else logits, ids=ids_W.tolist())


def dflash(out: Path, **more: Any) -> None:
    tokens_T, model = make_tokens(), make_target()
    layer = {**LAYER, "num_hidden_layers": 2, "target_layer_ids": [0, 5]}
    settings = {
        "dflash_architecture_config": layer,
        "dflash_block_size": BLOCK,
        "dflash_mask_token_id": MASK,
        "dflash_use_torch_compile": False,
        **more,
    }
    mtsp.convert(model, [("dflash", settings)])
    draw(model.dflash_module)
    logits = {}
    for n in range(1, len(tokens_T) - BLOCK):  # as its pseudo_speculative_generate does
        with torch.no_grad():
            read = model._base_model(tokens_T[None, :n], output_hidden_states=True)
            states = [read.hidden_states[i + 1] for i in model.target_layer_ids]
            block = torch.tensor([[int(tokens_T[n]), *[MASK] * (BLOCK - 1)]])
            hidden = model.dflash_module(
                noise_embedding=model._base_model_embeddings(block),
                target_hidden=torch.cat(states, -1),
                position_ids=torch.arange(n + BLOCK)[None],
                attention_mask=model._build_generate_swa_mask(n, 1, torch.float32, "cpu"),
            )
            logits[str(n)] = model._base_model_lm_head(hidden)[0, 1:]
    out.mkdir(parents=True)
    export_speculative_decoding(model, export_dir=out)
    write_proof(out, "dflash", logits, ids=list(range(V)))


def medusa(out: Path) -> None:
    """The library has no exporter for these tensors: they are in the saved model."""
    tokens_T, model = make_tokens(), make_target()
    mtsp.convert(model, [("medusa", {"medusa_num_heads": STEPS, "medusa_num_layers": 2})])
    draw(model.medusa_heads)
    with torch.no_grad():
        last_TF = model.model(tokens_T[None]).last_hidden_state[0]
        stacked = torch.stack([head(last_TF) for head in model.medusa_heads], 1)
    model.save_pretrained(out)
    logits = {str(n): stacked[n - 1] for n in range(1, len(tokens_T) - STEPS)}
    write_proof(out, "medusa", logits, ids=list(range(V)))


def write_all(out: Path) -> None:
    make_target().save_pretrained(out / "target")
    eagle3(out / "eagle3", 1, D, {})
    eagle3(out / "eagle3_deep", 2, V, {}, has_lm_head=True)
    eagle3(out / "eagle3_ids", 1, D, {}, eagle_aux_hidden_state_layer_ids=[1, 2, 5])
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64}
    eagle3(out / "eagle3_yarn", 1, D, yarn)
    dflash(out / "dflash")
    dflash(out / "dflash_window", dflash_swa_window_size=WINDOW)
    dflash(
        out / "dflash_causal", dflash_swa_window_size=WINDOW, dflash_draft_attention="causal"
    )  # fmt: skip
    medusa(out / "medusa")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
