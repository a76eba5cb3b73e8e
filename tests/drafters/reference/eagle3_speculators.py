"""Writes the logits that the package `speculators` computes for small random EAGLE-3 heads.

Its requirements are not this project's, so it runs in a separate environment, once:

    pip install torch==2.13.0 speculators==0.9.0   (which brings transformers 5.19.0)
    TORCHDYNAMO_DISABLE=1 python tests/drafters/reference/eagle3_speculators.py

A file holds a head as speculators saves it (`head.`), its config as metadata, the inputs
(`tokens_T`, each with the target's states before it, `states_TF`, side by side), and the
logits of three steps (`logits_STD`): of the first over the target's states, of the next over
the head's own, the token of each being the true one. `target_ids_D` are the tokens it can say.
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

FOLDER = Path(__file__).parent
NUM_STEPS, T, D, V = 3, 9, 24, 97
SHAPE = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
HEADS = {
    "llama": (LlamaConfig, {}, 1, [2, 3, 5]),
    "llama_deep": (
        LlamaConfig,
        {"norm_before_residual": True, "norm_before_fc": True},
        2,
        [2, 3, 5],
    ),
    "qwen3": (
        Qwen3Config,
        {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
        1,
        [0, 2, 3, 5],
    ),
}


def write(name: str) -> None:
    make, style, num_layers, layer_ids = HEADS[name]
    rope = {"rope_type": "default", "rope_theta": 500_000.0}
    layer = make(**SHAPE, num_hidden_layers=num_layers, rope_parameters=rope)
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=D,
        eagle_aux_hidden_state_layer_ids=layer_ids,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=NUM_STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **style,
    )
    model = Eagle3DraftModel(config).eval()
    generator = torch.Generator().manual_seed(1)
    for tensor_name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            drawn = torch.randn(tensor.shape, generator=generator) * 0.3
            tensor.copy_(drawn + 1 if "norm" in tensor_name else drawn)
    target_ids_D = torch.randperm(V, generator=generator)[:D].sort().values
    says_V = torch.zeros(V, dtype=torch.bool).index_fill(0, target_ids_D, True)
    model.load_vocab_mappings(says_V, target_ids_D - torch.arange(D))

    tokens_T = torch.randint(0, V, (T,), generator=generator)
    states_TF = torch.randn(T, SHAPE["hidden_size"] * len(layer_ids), generator=generator)
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _, __, out: logits.append(out[0]))
    with torch.no_grad():
        model(
            states_TF[None],
            tokens_T[None],
            document_ids=torch.zeros(1, T, dtype=torch.long),
            ttt_steps=NUM_STEPS,
        )

    head = {f"head.{key}": value for key, value in model.state_dict().items()}
    held = {
        **{key: value for key, value in head.items() if not key.startswith("head.verifier_")},
        "tokens_T": tokens_T,
        "states_TF": states_TF,
        "logits_STD": torch.stack(logits),
        "target_ids_D": target_ids_D,
    }
    packages = {package: version(package) for package in ("speculators", "transformers", "torch")}
    metadata = {"config": json.dumps(config.to_dict(), default=str), **packages}
    contiguous = {key: value.contiguous() for key, value in held.items()}
    save_file(contiguous, FOLDER / f"eagle3_{name}.safetensors", metadata)


if __name__ == "__main__":
    for head_name in HEADS:
        write(head_name)
