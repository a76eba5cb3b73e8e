"""The bundled target, as slow as a larger model: as it is, or as a GLM-4-MoE with an MTP layer.

    python -m tests.real_engines.slow_targets llama|glm OUT

Its MLPs are padded with zeros, which a step has to read, so the text is the bundled target's: a
client on two cores keeps up with it, as it does not with a model of 2 MB. A GLM-4-MoE, here with
dense layers only, is a family whose MTP engines know. Its MTP layer (`glm_mtp`) was trained with
`python -m tools.training mtp` on 1,400 of its answers.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, Glm4MoeConfig, PreTrainedConfig

from specbench.demo import MODELS

MTP_LAYER = Path(__file__).with_name("glm_mtp") / "model.safetensors"
_SOURCE = MODELS / "target"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_WIDTH = 4096  # of the MLPs


def write_llama(out: Path) -> None:
    """Write the model's folder, of the family that it is of."""
    llama = AutoModelForCausalLM.from_pretrained(_SOURCE, dtype=torch.float32)
    config = type(llama.config)(**llama.config.to_dict() | {"intermediate_size": _WIDTH})
    _write(llama, config, out)


def write_glm(out: Path) -> None:
    """Write the model's folder, with the MTP layer after its last layer."""
    llama = AutoModelForCausalLM.from_pretrained(_SOURCE, dtype=torch.float32)
    given = llama.config.to_dict()
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim")
    same += ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "eos_token_id")
    config = Glm4MoeConfig(
        **{name: given[name] for name in (*same, "pad_token_id")},
        intermediate_size=_WIDTH,
        rope_parameters={**given["rope_parameters"], "partial_rotary_factor": 1.0},
        tie_word_embeddings=False,
        attention_bias=False,
        use_qk_norm=False,
        first_k_dense_replace=llama.config.num_hidden_layers,
        n_routed_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=128,
        num_nextn_predict_layers=1,
        bos_token_id=None,
    )
    _write(llama, config, out)
    layer = {name: weight.float() for name, weight in load_file(MTP_LAYER).items()}
    stored = load_file(out / "model.safetensors") | layer
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})


def _write(llama: torch.nn.Module, config: PreTrainedConfig, out: Path) -> None:
    """A model of this configuration, with the weights of the bundled one and its tokenizer."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = llama.state_dict()
    missing = _WIDTH - llama.config.intermediate_size
    for name, weight in weights.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            weights[name] = pad(weight, (0, 0, 0, missing))
        elif name.endswith("down_proj.weight"):
            weights[name] = pad(weight, (0, missing))
    model.load_state_dict(weights)
    model.save_pretrained(out)
    for file in _TOKENIZER:
        shutil.copy(_SOURCE / file, out)


if __name__ == "__main__":
    {"llama": write_llama, "glm": write_glm}[sys.argv[1]](Path(sys.argv[2]))
