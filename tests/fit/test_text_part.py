"""Which tensors of a multimodal model its text needs, by the names that published files have."""

from types import SimpleNamespace
from typing import Any

import pytest

from specbench.fit.weights import text_tensors


def files(names: str, **config: Any) -> Any:
    return SimpleNamespace(tensors=dict.fromkeys(names.split()), config=config)


@pytest.mark.parametrize(
    ("text", "beside", "left_out"),
    [
        pytest.param(
            "language_model.model.embed_tokens.weight language_model.model.norm.weight"
            " language_model.lm_head.weight",
            "vision_tower.vision_model.head.weight multi_modal_projector.norm.weight",
            ("multi_modal_projector", "vision_tower"),
            id="Gemma 3, Mistral 3",
        ),
        pytest.param(
            "model.embed_tokens.weight model.layers.0.mlp.up_proj.weight lm_head.weight",
            "visual.blocks.0.mlp.up_proj.weight visual.merger.mlp.0.weight",
            ("visual",),
            id="Qwen 2.5 VL",
        ),
        pytest.param(
            "model.language_model.embed_tokens.weight model.language_model.norm.weight",
            "model.visual.patch_embed.proj.weight",
            ("model.visual",),
            id="Qwen 3 VL",
        ),
    ],
)
def test_text_needs_the_weights_next_to_its_embedding(
    text: str, beside: str, left_out: tuple[str, ...]
) -> None:
    kept, dropped = text_tensors(files(f"{beside} {text}", text_config={}))
    assert set(kept) == set(text.split())
    assert dropped == left_out


def test_a_text_only_model_needs_all_of_its_tensors() -> None:
    names = "model.embed_tokens.weight other.weight"
    assert text_tensors(files(names)) == (tuple(names.split()), ())
    assert text_tensors(files("other.weight", text_config={})) == (("other.weight",), ())
