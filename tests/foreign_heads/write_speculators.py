"""Heads that `speculators` writes, and the outputs of its own forwards.

python write_speculators.py OUT     (in the environment that environments.py makes)
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
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.models.peagle import core as peagle_core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import AutoConfig, LlamaConfig, Qwen3Config


def speculators_config(algorithm: str) -> SpeculatorsConfig:
    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def layers(make: Any, count: int, types: list[str] | None = None, **more: Any) -> Any:
    windows = {}
    if types:
        windows = {"layer_types": types, "sliding_window": WINDOW, "use_sliding_window": True}
    config = make(**{**SHAPE, **more}, num_hidden_layers=count, rope_parameters=ROPE, **windows)
    config._attn_implementation = "eager"
    return config


def finished(model: Any, target: Any, num_said: int | None) -> Tensor:
    """Random weights over the target's embedding and head; the ids of its vocabulary."""
    draw(model)
    ids_W = torch.arange(V)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        if num_said is None:
            model.lm_head.weight.copy_(target.lm_head.weight)
        else:
            ids_W = draftable_tokens(num_said)
            says_V = torch.zeros(V, dtype=torch.bool).index_fill(0, ids_W, True)
            model.load_vocab_mappings(says_V, ids_W - torch.arange(num_said))
    return ids_W


def joined(states: list[Tensor], ids: list[int]) -> Tensor:
    return torch.cat([states[i] for i in ids], -1)[None]


class Logits:
    """The logits of every pass through a model's head."""

    def __init__(self, model: Any) -> None:
        self.all: list[Tensor] = []
        model.lm_head.register_forward_hook(lambda _, __, out: self.all.append(out[0].detach()))


def eagle3(out: Path, make: Any, count: int, ids: list[int], types: list[str] | None = None,
           num_said: int | None = D, **style: Any) -> None:  # fmt: skip
    target, tokens_T = make_target(), make_tokens()
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layers(make, count, types),
        draft_vocab_size=num_said or V,
        eagle_aux_hidden_state_layer_ids=ids,
        speculators_config=speculators_config("eagle3"),
        **style,
    )
    model = Eagle3DraftModel(config).eval()
    ids_W = finished(model, target, num_said)
    states, _ = states_of(target, tokens_T)
    recorder, following_T = Logits(model), tokens_T.roll(-1)  # as its data pairs tokens and states
    with torch.no_grad():
        model(
            joined(states, ids),
            following_T[None],
            document_ids=torch.zeros(1, len(tokens_T), dtype=torch.long),
            ttt_steps=STEPS,
        )
    model.save_pretrained(out)
    # In a later pass a window counts back from the first pass's token: there it is compared only
    # while the window holds everything.
    room = WINDOW if types else len(tokens_T)
    logits = {}
    for n in range(1, len(tokens_T) - STEPS):
        deep = STEPS if n + STEPS - 1 <= room else 1
        logits[str(n)] = torch.stack([recorder.all[step][n - 1] for step in range(deep)])
    write_proof(out, "eagle3", logits, ids=ids_W.tolist())


def peagle(out: Path, make: Any, count: int, types: list[str] | None = None, **style: Any) -> None:
    target, tokens_T, ids = make_target(), make_tokens(), [1, 3, 5]
    config = PEagleSpeculatorConfig(
        transformer_layer_config=layers(make, count, types),
        draft_vocab_size=D,
        eagle_aux_hidden_state_layer_ids=ids,
        mask_token_id=MASK,
        speculators_config=speculators_config("peagle"),
        **style,
    )
    model = PEagleDraftModel(config).eval()
    ids_W = finished(model, target, D)
    states, last_TF = states_of(target, tokens_T)
    picked: list[tuple[Tensor, Tensor]] = []
    sample = peagle_core.generate_cod_sample_indices
    peagle_core.generate_cod_sample_indices = lambda **given: (
        picked.append(sample(**given)) or (picked[-1])
    )
    recorder = Logits(model)
    with torch.no_grad():
        model.verifier_lm_head.weight.copy_(model.lm_head.weight)
        model(
            joined(states, ids),
            tokens_T.roll(-1)[None],
            document_ids=torch.zeros(1, len(tokens_T), dtype=torch.long),
            verifier_last_hidden_states=last_TF[None],
            num_depths=STEPS,
            down_sample_ratio=0.999,
            loss_config=resolve_loss_config("kl_div", "eager"),  # a GPU's is the other
        )
    model.save_pretrained(out)
    (anchors_N, depths_N), logits = picked[0], {}
    for n in range(1, len(tokens_T) - STEPS):
        places = [((anchors_N == n - 1) & (depths_N == d)).nonzero()[:, 0] for d in range(STEPS)]
        there = [place for place in places if len(place)]
        logits[str(n)] = torch.stack([recorder.all[0][place[0]] for place in there])
    write_proof(out, "peagle", logits, ids=ids_W.tolist())


def dflash(
    out: Path, count: int, ids: list[int], types: list[str] | None = None,
    num_said: int | None = None, *, is_second: bool = False, **style: Any,
) -> None:  # fmt: skip
    target, tokens_T = make_target(), make_tokens()
    config = (DFlash2SpeculatorConfig if is_second else DFlashSpeculatorConfig)(
        transformer_layer_config=layers(Qwen3Config, count, types),
        draft_vocab_size=num_said or V,
        block_size=BLOCK,
        aux_hidden_state_layer_ids=ids,
        mask_token_id=MASK,
        speculators_config=speculators_config("dflash2" if is_second else "dflash"),
        **style,
    )
    model = (DFlash2DraftModel if is_second else DFlashDraftModel)(config).eval()
    ids_W = finished(model, target, num_said)
    states, last_TF = states_of(target, tokens_T)
    T = len(tokens_T)
    with torch.no_grad():
        model.verifier_lm_head.weight.copy_(model.lm_head.weight)
        hidden_1NF, logits_1ND, _, _, places_N = model._backbone_forward(
            joined(states, ids),
            tokens_T[None],
            torch.ones(1, T),
            last_TF[None],
            torch.zeros(1, T, dtype=torch.long),
            max_anchors=T - BLOCK,
        )
    if is_second:  # all tokens are candidates, each after the true token before it
        before_1N = model._predecessor_ids(tokens_T[None], places_N).reshape(1, -1)
        with torch.no_grad():
            ids, scores = model.candidate_selector.select(logits_1ND, hidden_1NF, before_1N, V)
        logits_1ND = torch.zeros_like(logits_1ND).scatter(-1, ids, scores)
    model.save_pretrained(out)
    anchors = places_N.view(-1, BLOCK)[:, 0].tolist()
    first = 0 if style.get("sample_from_anchor") else 1
    blocks = logits_1ND[0].view(len(anchors), BLOCK, -1)[:, first:]
    logits = {str(n): blocks[i] for i, n in enumerate(anchors) if n > 0}
    write_proof(out, "dflash2" if is_second else "dflash", logits, ids=ids_W.tolist())


MTP_LAYERS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3_5_text": {"layer_types": [FULL] * NUM_LAYERS},
    "qwen3_next": {
        "layer_types": [FULL] * NUM_LAYERS,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}


def mtp(out: Path, model_type: str) -> None:
    target, tokens_T = make_target(), make_tokens()
    shape = {**SHAPE, "num_hidden_layers": NUM_LAYERS, **MTP_LAYERS[model_type]}
    config = AutoConfig.for_model(model_type, **shape)
    config._attn_implementation = "eager"
    model = MTPDraftModel(
        MTPSpeculatorConfig(
            transformer_layer_config=config, speculators_config=speculators_config("mtp")
        )
    ).eval()
    finished(model, target, None)
    _, last_TF = states_of(target, tokens_T)
    recorder = Logits(model)
    with torch.no_grad():
        model(tokens_T[None], last_TF[None])
    del model.verifier_lm_head  # as its load_verifier_weights does
    model.save_pretrained(out)
    logits = {}
    for n in range(1, len(tokens_T) - STEPS):
        draft_logits = drafted(model, tokens_T, last_TF, n)
        torch.testing.assert_close(draft_logits[0], recorder.all[0][n - 1], atol=1e-3, rtol=1e-3)
        logits[str(n)] = draft_logits
    write_proof(out, "mtp", logits, ids=list(range(V)))


@torch.no_grad()
def drafted(model: Any, tokens_T: Tensor, last_TF: Tensor, n: int) -> Tensor:
    """The layer over one text, as servers run it: its forward gives a later step only the keys of
    that step. The states handed on are those of its forward."""
    states, all_logits = last_TF[None, :n], []
    for step in range(STEPS):
        T = n + step
        places = torch.arange(T)[None]
        turned = places.expand(3, -1, -1) if "qwen3_5" in str(type(model.rotary_emb)) else places
        out = model.mtp_layers[0](
            hidden_states=states,
            token_embeddings=model.embed_tokens(tokens_T[None, 1 : T + 1]),
            attention_mask=torch.full((T, T), -torch.inf).triu(1)[None, None],
            position_ids=places,
            position_embeddings=model.rotary_emb(states, turned),
        )
        all_logits.append(model.lm_head(out)[0, -1])
        states = torch.cat([states, out[:, -1:]], 1)
    return torch.stack(all_logits)


def write_all(out: Path) -> None:
    make_target().save_pretrained(out / "target")
    eagle3(out / "eagle3", LlamaConfig, 1, [2, 3, 5])
    eagle3(out / "eagle3_last_output", LlamaConfig, 1, [2, 4, 6], norm_before_residual=True)
    eagle3(out / "eagle3_window", Qwen3Config, 1, [2, 3, 5], [SLIDING], norm_output=True)
    eagle3(
        out / "eagle3_mixed", Qwen3Config, 2, [0, 2, 3, 5], [SLIDING, FULL],
        num_said=None, fc_norm=True, norm_before_residual=True,
    )  # fmt: skip
    peagle(out / "peagle", LlamaConfig, 2, norm_before_residual=True)
    peagle(out / "peagle_window", Qwen3Config, 2, [FULL, SLIDING], norm_before_fc=True)
    dflash(out / "dflash", 2, [2, 5])
    dflash(out / "dflash_last_output", 2, [0, 6], num_said=D)
    dflash(out / "dflash_window", 2, [1, 4], [SLIDING, SLIDING])
    dflash(out / "dflash_mixed", 2, [1, 4], [SLIDING, FULL], num_said=D)
    dflash(
        out / "dflash_from_anchor", 2, [1, 4], [FULL, SLIDING],
        sliding_window_non_causal=True, sample_from_anchor=True,
    )  # fmt: skip
    second: dict[str, Any] = {
        "is_second": True, "conv_group_size": 4, "selector_rank": 8, "selector_top_k": V
    }  # fmt: skip
    dflash(out / "dflash2", 2, [2, 5], **second)
    dflash(out / "dflash2_mixed", 2, [1, 4], [SLIDING, FULL], **second, conv_kernel_size=3)
    dflash(
        out / "dflash2_causal", 2, [0, 6], [FULL, SLIDING],
        sliding_window_non_causal=False, **second,
    )  # fmt: skip
    for model_type in MTP_LAYERS:
        mtp(out / f"mtp_{model_type}", model_type)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
