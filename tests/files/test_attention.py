"""A model's attention in its config: refused kinds, and the longest context."""

from typing import Any

import pytest

from specbench.files.config import is_hybrid, longest_context, unsupported_attention


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"keep_window_size": 64}, "by a separate index (keep_window_size)"),
        ({"index_topk": 64}, "by a separate index (index_topk)"),
        ({"model_type": "mpt"}, "uses ALiBi"),
        ({"model_type": "falcon", "alibi": True}, "uses ALiBi"),
        ({"model_type": "llama", "layer_types": ["hybrid_sliding"]}, "type hybrid_sliding"),
    ],
)
def test_unsupported_attention_fields_are_reported(fields: dict[str, Any], words: str) -> None:
    reason = unsupported_attention(fields.get)
    assert reason is not None
    assert words in reason


def test_layer_types_of_a_single_family_are_supported_in_it() -> None:
    fields = {"model_type": "zaya", "layer_types": ["hybrid", "hybrid_sliding"]}
    assert unsupported_attention(fields.get) is None


@pytest.mark.parametrize(
    ("kinds", "is_one"),
    [(["attention", "full_attention"], False), (["conv", "full_attention"], True), (None, True)],
)
def test_a_hybrid_class_with_attention_layers_only_is_not_a_hybrid(
    kinds: list[str] | None, is_one: bool
) -> None:
    fields = {"model_type": "granitemoehybrid", "layer_types": kinds}
    assert is_hybrid(fields.get) is is_one


def test_the_context_ends_before_attention_temperature_scaling() -> None:
    fields = {"max_position_embeddings": 9000, "floor_scale": 8192}
    assert longest_context(fields.get) == 9000
    fields["attn_temperature_tuning"] = True
    assert longest_context(fields.get) == 8191
