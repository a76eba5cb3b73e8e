"""The weights of a fused forward are held once, and what cannot be fused is named."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specbench.errors import ModelError
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.fused_weights import FusedWeights, can_fuse, fuse
from tests.decoding.fused_families import FAMILIES, TOKENS_2T, family
from tests.decoding.models import ARCHITECTURES, build, plain_logits, tiny_llama


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by address of all memory that the tensors lie in."""
    memory = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in memory}


def tensors_of(weights: FusedWeights) -> list[Tensor]:
    own = [weights.embedding, weights.final_norm, weights.head]
    return own + [t for layer in weights.layers for t in layer if isinstance(t, Tensor)]


@pytest.mark.parametrize("mirrored", [False, True], ids=["gpu", "cpu"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_weights_are_held_once(name: str, mirrored: bool) -> None:
    model = family(name)
    expected = plain_logits(model, TOKENS_2T)
    before = sum(storages(model.parameters()).values())

    weights = fuse(model, mirrored=mirrored)
    again = fuse(model, mirrored=mirrored)

    together = storages([*model.parameters(), *tensors_of(weights), *tensors_of(again)])
    norms = 5 * 32 * 4 if mirrored else 0  # the zeros behind the norms of 2 layers and the last
    for made in (weights, again):
        norms += sum(la.head_norm.nbytes for la in made.layers if la.head_norm is not None)
    assert sum(together.values()) == before + norms
    torch.testing.assert_close(plain_logits(model, TOKENS_2T), expected)
    is_tied = model.config.tie_word_embeddings
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == is_tied


def _of_two_dtypes(model: Any) -> None:
    model.model.norm.double()


def _with_half_a_bias(model: Any) -> None:
    model.model.layers[1].self_attn.k_proj.bias = nn.Parameter(torch.zeros(16))


def _with_another_linear(model: Any) -> None:
    class Linear8bit(nn.Linear): ...

    model.model.layers[0].mlp.down_proj = Linear8bit(48, 32, bias=False)


class Int8Tensor(Tensor):
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return [], None


def _with_quantized_weights(model: Any) -> None:
    linear = model.model.layers[0].mlp.down_proj
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Int8Tensor))


def _with_a_bias_in_the_head(model: Any) -> None:
    model.lm_head.bias = nn.Parameter(torch.zeros(97))


def _spread(model: Any) -> None:
    model.model.layers[1].to("meta")


def _half_rotary(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq[:2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_of_two_dtypes, "several dtypes: torch.float32, torch.float64"),
        (_with_half_a_bias, "some of the linear layers to be joined have a bias"),
        (_with_another_linear, "its linear layers are Linear8bit"),
        (_with_quantized_weights, "its weights are Int8Tensor (quantized)"),
        (_with_a_bias_in_the_head, "its lm_head has a bias"),
        (_spread, "spread over cpu, meta"),
        (_half_rotary, "only a part of each head"),
    ],
)
def test_a_model_that_cannot_be_fused_is_refused_with_the_reason(
    change: Callable[[Any], None], reason: str
) -> None:
    model = tiny_llama()
    assert can_fuse(model) is None

    change(model)

    assert reason in (can_fuse(model) or "")
    with pytest.raises(ModelError, match=r"LlamaForCausalLM.*fused"):
        FusedRunner(model)


def test_other_architectures_and_activations_are_named() -> None:
    assert re.match("Phi3ForCausalLM .*Llama", can_fuse(build(ARCHITECTURES["Phi3"]())) or "")
    assert re.search("gelu, .*silu", can_fuse(tiny_llama(hidden_act="gelu")) or "")
