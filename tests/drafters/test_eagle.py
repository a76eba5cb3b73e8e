"""EAGLE-1's head: its layouts and what does not fit.

The rounds that it drafts in are tested in test_feature_drafter.py. Shape suffixes: F hidden
size, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.drafters.eagle import Eagle, EagleHead
from specbench.drafters.registry import build_drafter
from specbench.errors import ModelError
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from tests.decoding.lossless import parts_of
from tests.decoding.models import tiny_llama
from tests.drafters.changed_heads import with_config, with_tensors

SPECULATORS = {"fc.": "fusion_fc.", "layers.0.": "transformer."}


@cache
def target() -> StockRunner:
    return StockRunner(tiny_llama())


def new() -> Checkpoint:
    return Eagle.new_checkpoint(target().model.config, 1)


def biased(value: float = 1.0) -> Checkpoint:
    """A head with a bias, as SafeAILab's have."""
    return with_config(with_tensors(new(), fc__bias=torch.full((32,), value)), bias=True)


@torch.no_grad()
def head_logits(checkpoint: Checkpoint) -> Tensor:
    """The head's logits [V] after three tokens over random states."""
    head = EagleHead(checkpoint, target())
    head.layers.allocate(1, 64)
    states = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
    after = head.step(torch.tensor([[4, 8, 15]]), states, torch.arange(3)[None], 64)
    return head.logits(after)[0, -1]


def test_the_tensors_are_those_of_the_published_checkpoints_but_for_a_bias() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in new().tensors.items()}

    assert shapes == {
        "fc.weight": (32, 64),
        "layers.0.self_attn.q_proj.weight": (32, 32),
        "layers.0.self_attn.k_proj.weight": (16, 32),
        "layers.0.self_attn.v_proj.weight": (16, 32),
        "layers.0.self_attn.o_proj.weight": (32, 32),
        "layers.0.mlp.gate_proj.weight": (48, 32),
        "layers.0.mlp.up_proj.weight": (48, 32),
        "layers.0.mlp.down_proj.weight": (32, 48),
        "layers.0.post_attention_layernorm.weight": (32,),
    }


@pytest.mark.parametrize("prefixes", [{"": "model."}, SPECULATORS])
def test_every_layout_of_tensor_names_gives_the_same_head(prefixes: Mapping[str, str]) -> None:
    torch.testing.assert_close(head_logits(new().renamed(prefixes)), head_logits(new()))


def test_a_config_of_speculators_is_read() -> None:
    plain = new()
    config = {
        "speculators_model_type": "eagle",
        "transformer_layer_config": plain.config,
        "layernorms": False,
        "fusion_bias": False,
    }
    theirs = replace(plain.renamed(SPECULATORS), config=config)

    torch.testing.assert_close(head_logits(theirs), head_logits(plain))


def test_a_new_eagle_head_has_no_bias_in_config_and_tensors() -> None:
    assert new().config["bias"] is False
    assert not any(name.endswith(".bias") for name in new().tensors)


def test_a_bias_that_the_files_have_is_added() -> None:
    assert not torch.allclose(head_logits(biased()), head_logits(new()))
    torch.testing.assert_close(head_logits(biased(0.0)), head_logits(new()))


def test_an_eagle_config_without_bias_implies_a_bias() -> None:
    config = {name: value for name, value in biased().config.items() if name != "bias"}

    torch.testing.assert_close(head_logits(replace(biased(), config=config)), head_logits(biased()))


def test_rotary_frequencies_in_old_files_are_ignored() -> None:
    frequencies = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}

    old = replace(new(), tensors={**new().tensors, **frequencies})

    torch.testing.assert_close(head_logits(old), head_logits(new()))


def test_a_separate_embedding_is_used_and_a_copy_of_the_targets_is_dropped() -> None:
    own_VF = target().model.get_input_embeddings().weight.clone()
    copy = with_tensors(new(), embed_tokens__weight=own_VF)
    other = with_tensors(new(), embed_tokens__weight=own_VF.flip(0))

    num_plain = len(EagleHead(new(), target()).weights)

    assert len(EagleHead(copy, target()).weights) == num_plain
    assert len(EagleHead(other, target()).weights) == num_plain + 1
    torch.testing.assert_close(head_logits(copy), head_logits(new()))
    assert not torch.allclose(head_logits(other), head_logits(new()))


def test_tensors_of_the_targets_dtype_are_not_copied() -> None:
    checkpoint = new()

    weights = EagleHead(checkpoint, target()).weights

    held = {tensor.data_ptr() for tensor in checkpoint.tensors.values()}
    assert {tensor.data_ptr() for tensor in weights} == held


def test_an_eagle_head_may_have_two_layers_and_biases() -> None:
    first = {n: t for n, t in new().tensors.items() if n.startswith("layers.0.")}
    second = {name.replace("layers.0.", "layers.1."): tensor for name, tensor in first.items()}
    deep = replace(new(), tensors={**new().tensors, **second})
    deep = with_config(
        with_tensors(
            deep,
            layers__1__input_layernorm__weight=torch.ones(32),
            layers__0__self_attn__q_proj__bias=torch.ones(32),
        ),
        num_hidden_layers=2,
    )

    assert not torch.allclose(head_logits(deep), head_logits(new()))


def test_a_head_may_attend_as_far_as_its_target() -> None:
    short = with_config(new(), max_position_embeddings=8)

    torch.testing.assert_close(head_logits(short), head_logits(new()))


CONFIGS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "hidden size": ({"hidden_size": 64}, "hidden_size is 64, the target's is 32"),
    "vocabulary": ({"vocab_size": 99}, "vocab_size is 99, the target's is 97"),
    "bias": ({"bias": True}, "missing: fc.bias"),
    "layers": ({"num_hidden_layers": 2}, "missing: layers.1.input_layernorm.weight"),
    "norms": ({"layernorms": True}, "layernorms"),
    "heads": ({"num_attention_heads": None}, "config.json has no num_attention_heads"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_does_not_fit_is_refused_by_name(case: str) -> None:
    changes, message = CONFIGS[case]

    with pytest.raises(ModelError, match=message):
        EagleHead(with_config(new(), **changes), target())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fc__weight": None}, "missing: fc.weight"),
        ({"fc__bias": torch.ones(32)}, "unknown: fc.bias"),
        ({"layers__0__input_layernorm__weight": torch.ones(32)}, "unknown: layers.0.input"),
        ({"embed_tokens__weight": torch.ones(96, 32)}, r"\(96, 32\), not \(97, 32\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    changes: dict[str, Tensor | None], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        EagleHead(with_tensors(new(), **changes), target())


@pytest.mark.parametrize(
    ("tree", "num_drafts"),
    [("chain", (1, 4, 5)), ("static", (4, 23, 25)), ("dynamic", (10, 59, 59))],
)
def test_a_proposal_has_as_many_drafts_as_its_tree(tree: Any, num_drafts: tuple[int, ...]) -> None:
    drafter = build_drafter("eagle", parts_of(target(), None, new()), {"tree": tree})

    assert tuple(drafter.num_drafts(k) for k in (1, 4, 5)) == num_drafts
