"""An MTP head that is the target's own is not kept twice."""

from dataclasses import replace

import pytest
import torch

from specbench.drafters.mtp import MtpHead, _is_same
from specbench.forward.runner import StockRunner
from tests.decoding.models import build
from tests.drafters.mtp_families import checkpoint_for, family_of


@pytest.mark.parametrize("is_stored", [True, False], ids=["in its files", "in the model alone"])
def test_a_head_that_is_the_targets_own_is_not_kept_twice(is_stored: bool) -> None:
    """A target whose files call its head otherwise, or tie it, has it in the model alone."""
    config = family_of("glm4_moe").config
    model = build(config)
    made = checkpoint_for("glm4_moe", config)
    name = "model.layers.2.shared_head.head.weight"
    head_VF = model.get_output_embeddings().weight.data.clone()
    tensors = {**made.tensors, name: head_VF}
    if is_stored:
        tensors["lm_head.weight"] = head_VF.clone()
    else:
        tensors.pop("lm_head.weight", None)
    same = MtpHead(replace(made, tensors=tensors), StockRunner(model))
    other = MtpHead(replace(made, tensors={**tensors, name: head_VF + 1}), StockRunner(model))
    sizes = [sum(weight.numel() for weight in head.weights) for head in (other, same)]
    assert sizes[0] - sizes[1] == head_VF.numel()


def test_only_a_plain_tensor_of_the_same_numbers_and_dtype_is_a_copy() -> None:
    class Packed(torch.Tensor):
        pass

    one = torch.ones(2, 3)
    assert _is_same(one, one.clone())
    assert _is_same(one, torch.nn.Parameter(one.clone()))
    others = (None, one + 1, one[:1], one.bfloat16(), one.clone().as_subclass(Packed))
    assert not any(_is_same(one, other) for other in others)
