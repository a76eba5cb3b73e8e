"""The bundled target as a GLM-4-MoE with an MTP layer, for engines that know MTP of that family.

    python -m tests.real_engines.make_glm OUT

All layers are dense, so the text is the bundled target's. Their MLPs are padded with zeros, which
a step has to read as those of a larger model. The MTP layer (`glm_mtp`) was trained with
`python -m tools.training mtp` on 1,400 of its answers.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from specbench.demo import MODELS

MTP_LAYER = Path(__file__).with_name("glm_mtp") / "model.safetensors"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


_WIDTH = 4096  # of the MLPs


def write_glm(out: Path) -> None:
    """Write the model's folder, with the MTP layer after its last layer."""
    source = MODELS / "target"
    llama = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
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
    glm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = llama.state_dict()
    for name, weight in weights.items():
        missing = _WIDTH - given["intermediate_size"]
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            weights[name] = pad(weight, (0, 0, 0, missing))
        elif name.endswith("down_proj.weight"):
            weights[name] = pad(weight, (0, missing))
    glm.load_state_dict(weights)
    glm.save_pretrained(out)
    for file in _TOKENIZER:
        shutil.copy(source / file, out)
    layer = {name: weight.float() for name, weight in load_file(MTP_LAYER).items()}
    stored = load_file(out / "model.safetensors") | layer
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    write_glm(Path(sys.argv[1]))
