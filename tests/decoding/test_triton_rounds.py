"""Whole decodings on our Triton kernels, in the interpreter: the text is transformers' own."""

from collections import defaultdict
from typing import Any

import pytest
import torch

from specbench.forward.attention.implementations import SplitKv
from specbench.forward.fused_layers import FusedLayers, TritonSteps
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.fused_weights import fuse
from specbench.records import Request
from tests.decoding.fused_families import FAMILIES, family
from tests.decoding.lossless import assert_texts, decode, make_drafter
from tests.decoding.models import CLOSE, generated, ragged_prompts
from tests.decoding.test_fused_runner import over_slots

# The interpreter runs program by program.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interpreted_programs")]

NUM_TOKENS = 4
LONG = pytest.mark.long


def interpreted(*parts: Any, **named: Any) -> FusedLayers:
    """Layers on our kernels, which only Triton's interpreter runs here."""
    layers = FusedLayers(*parts, **named)
    layers.steps = TritonSteps(layers.sizes, layers.eps)
    layers.kernels = defaultdict(SplitKv)
    return layers


class Interpreted(FusedRunner):
    """Steps as on a GPU: norms by torch's one kernel, all else by ours."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._weights = fuse(model, mirrored=False)
        rotary = model.model.rotary_emb
        self.layers = interpreted(self._weights.layers, model.config, rotary, mirrored=False)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "Qwen3, window, tied" else LONG) for name in FAMILIES],
)
@torch.no_grad()
def test_logits_over_slots_are_the_fused_forwards(name: str) -> None:
    model = family(name)
    torch.testing.assert_close(
        over_slots(Interpreted(model)), over_slots(FusedRunner(model)), **CLOSE
    )


@LONG
@pytest.mark.parametrize("name", ["Llama", "Qwen3, window, tied"])
@pytest.mark.parametrize("parameters", [{}, {"tree": (2, 2)}], ids=["chain", "tree"])
def test_text_on_triton_kernels_equals_transformers(name: str, parameters: dict[str, Any]) -> None:
    model, prompts = family(name), ragged_prompts()
    texts = [generated(model, prompt, NUM_TOKENS) for prompt in prompts]
    target, draft = Interpreted(model), Interpreted(family(name, seed=1))
    drafter = make_drafter("draft_model", target, draft, **parameters)
    requests = [Request(prompt_ids=prompt, max_new_tokens=NUM_TOKENS) for prompt in prompts]
    assert_texts(decode(target, drafter, requests, k=2), texts)
