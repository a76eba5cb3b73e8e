"""The author of a head's layout, by the keys that only this author writes."""

from typing import Any

import pytest

from specbench.files.head_files import HeadFiles, layout_of, misfits
from specbench.methods import find_method

SPECFORGES_EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"]}


@pytest.mark.parametrize(
    ("method", "config", "tensor", "author"),
    [
        ("eagle3", {"speculators_model_type": "eagle3"}, "midlayer.x", "speculators"),
        ("eagle3", {"eagle_config": {"next_layer_regular": True}}, "x", "NVIDIA's modelopt"),
        ("eagle3", SPECFORGES_EAGLE3, "midlayer.x", "SpecForge"),
        ("eagle3", SPECFORGES_EAGLE3, "layers.0.x", "SafeAILab"),
        ("eagle3", {}, "midlayer.x", "SafeAILab"),
        ("peagle", {"mask_token_id": 0}, "x", "SpecForge"),
        ("peagle", {}, "x", "Amazon"),
        ("dflash", {"dflash_config": {"causal": False}}, "x", "NVIDIA's modelopt"),
        ("dflash", {"num_target_layers": 4}, "x", "SpecForge"),
        ("dflash", {}, "x", "z-lab"),
        ("medusa", {}, "medusa_heads.0.0.linear.weight", "NVIDIA's modelopt"),
        ("medusa", {}, "blocks.0.layers.0.weight", "vLLM"),
        ("medusa", {}, "0.0.linear.weight", "FasterDecoding"),
    ],
)
def test_a_layout_is_recognized_by_keys_that_only_its_author_writes(
    method: str, config: dict[str, Any], tensor: str, author: str
) -> None:
    facts = find_method(method).head
    assert facts is not None
    files = HeadFiles(source="a head", config=config, tensors={tensor: Any})
    layout = layout_of(files, facts.layouts)
    assert layout is not None
    assert layout.author == author


def test_mtp_layers_without_tensors_are_judged_by_their_config():
    """The files of a shape, which has only a config."""

    class Target:
        hidden_size, vocab_size, num_layers = 64, 320, 2

    config = {
        "model_type": "mimo",
        "hidden_size": 64,
        "vocab_size": 320,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    }
    fit = find_method("mtp").head.fit
    files = HeadFiles(source="a shape", config=config, tensors={})
    assert misfits(fit(files, Target())) == {}
    other = HeadFiles(source="a shape", config={**config, "hidden_size": 32}, tensors={})
    assert misfits(fit(other, Target())) == {"hidden_size": (32, 64)}
