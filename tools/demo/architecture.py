"""The shapes of the target and its drafts: plain Llama models with one tokenizer."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tools.demo.tokenizer import VOCAB_SIZE

MAX_POSITIONS = 1024
EOS_ID, PAD_ID = 2, 0


def llama(
    *, layers: int, hidden: int, intermediate: int, heads: int, seed: int
) -> LlamaForCausalLM:
    """A randomly initialised float32 Llama with head size 64 and tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(
                    (2 * layers) ** -0.5
                )  # keeps the residual stream's size at the start
    return model


def target_model(seed: int) -> LlamaForCausalLM:
    """16 layers, 128 wide: deep on purpose, because a CPU pays per layer."""
    return llama(layers=16, hidden=128, intermediate=320, heads=2, seed=seed)


def draft_model(target: LlamaForCausalLM, seed: int) -> LlamaForCausalLM:
    """2 layers of the target's width, which start as the target's embeddings and first layers."""
    draft = llama(layers=2, hidden=128, intermediate=320, heads=2, seed=seed)
    kept = {
        name: value for name, value in target.state_dict().items() if name in draft.state_dict()
    }
    draft.load_state_dict(kept)
    return draft


def poor_model(seed: int) -> LlamaForCausalLM:
    """4 layers, 64 wide: few parameters, but on a CPU a quarter of the target's time a token."""
    return llama(layers=4, hidden=64, intermediate=64, heads=1, seed=seed)
