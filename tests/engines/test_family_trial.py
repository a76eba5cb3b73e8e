"""The small model that `doctor` loads for a family, and when it loads none."""

from pathlib import Path
from typing import NoReturn

import pytest
from transformers import BambaConfig, DeepseekV3Config, LlamaConfig, Qwen2VLTextConfig

from specbench.engines import family_trial
from specbench.engines.family_trial import HEAD_SIZE, HEADS, small_config
from tests.tiny_models import spec_of


def test_a_trial_model_has_no_more_heads_than_the_original():
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
    small = small_config(LlamaConfig(**heads))
    assert (small.num_attention_heads, small.num_key_value_heads) == (2, 2)
    many = small_config(LlamaConfig(num_attention_heads=32, num_key_value_heads=32))
    assert (many.num_attention_heads, many.num_key_value_heads) == (HEADS, HEADS)


def test_a_hybrid_keeps_its_first_attention_layer_between_two_others():
    small = small_config(BambaConfig(num_hidden_layers=32, attn_layer_indices=[9, 18, 27]))
    assert small.num_hidden_layers == 3
    assert small.attn_layer_indices == [1]


def test_heads_of_latent_attention_are_as_wide_as_their_rotary_part():
    small = small_config(DeepseekV3Config())
    assert small.head_dim == small.qk_rope_head_dim < HEAD_SIZE


def test_rotary_sections_of_a_trial_model_are_scaled_to_its_heads():
    rope = {"rope_type": "default", "mrope_section": [16, 24, 24]}
    small = small_config(Qwen2VLTextConfig(rope_parameters=rope))
    assert small.rope_parameters["mrope_section"] == [2, 3, 3]
    assert sum(small.rope_parameters["mrope_section"]) == HEAD_SIZE // 2


def test_a_family_without_a_trial_model_is_checked_on_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> NoReturn:
        raise ValueError("sizes that do not go together")

    LlamaConfig().save_pretrained(tmp_path)
    monkeypatch.setattr(family_trial, "small_config", fail)

    assert family_trial.why_family_fails(spec_of(tmp_path)) is None
