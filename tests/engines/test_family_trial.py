"""Which small model `doctor` asks for a family, and when it asks none."""

from pathlib import Path
from typing import NoReturn

import pytest
from transformers import LlamaConfig

from specbench.engines import family_trial
from specbench.files.model_spec import ModelSpec
from specbench.models.small import HEADS, small_config


def test_a_model_of_fewer_heads_than_a_small_one_keeps_them():
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
    small = small_config(LlamaConfig(**heads))
    assert (small.num_attention_heads, small.num_key_value_heads) == (2, 2)
    many = small_config(LlamaConfig(num_attention_heads=32, num_key_value_heads=32))
    assert (many.num_attention_heads, many.num_key_value_heads) == (HEADS, HEADS)


def test_a_family_of_which_no_small_model_is_made_is_left_to_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> NoReturn:
        raise ValueError("sizes that do not go together")

    LlamaConfig().save_pretrained(tmp_path)
    monkeypatch.setattr(family_trial, "small_config", fail)

    assert family_trial.why_family_fails(ModelSpec(source=str(tmp_path), folder=tmp_path)) is None
