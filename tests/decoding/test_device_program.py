"""A round runs only on the device: traced on fake CUDA tensors, without a GPU."""

from collections import defaultdict
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from specbench.forward.attention import implementations
from specbench.forward.attention.implementations import (
    FlashAttn,
    Kernel,
    PlainAttention,
    SplitKv,
    VarlenFlash,
)
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import StockRunner
from tests.decoding.fake_cuda import HostTensorError
from tests.decoding.fake_rounds import trace_round
from tests.decoding.fused_families import FAMILIES, family
from tests.decoding.models import ARCHITECTURES, build
from tests.drafters.variants import VARIANTS, Variant

# Experts are left out: transformers asks the CUDA driver which kernel it may use for them,
# and no driver is present to query.
TRACED = [name for name in ARCHITECTURES if name not in ("Qwen3-MoE", "GPT-OSS + window")]
# transformers computes this rope with a tensor from the host when the model is built.
FUSED = [name for name in FAMILIES if name != "Llama, llama3 rope"]


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_round_with_drafts_neither_syncs_nor_copies(variant: Variant) -> None:
    trace_round(variant.method, 3, **variant.parameters)


def test_a_round_of_the_baseline_neither_syncs_nor_copies() -> None:
    trace_round("none", 0)


@pytest.mark.sampled(one_in=8)
@pytest.mark.slow
@pytest.mark.parametrize("architecture", TRACED)
def test_a_baseline_forward_neither_syncs_nor_copies(architecture: str) -> None:
    trace_round("none", 0, make_runner=lambda: StockRunner(build(ARCHITECTURES[architecture]())))


@pytest.mark.sampled(one_in=8, every=["method"])
@pytest.mark.slow
@pytest.mark.parametrize(("method", "k"), [("none", 0), ("draft_model", 4)])
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_forward_neither_syncs_nor_copies(name: str, method: str, k: int) -> None:
    trace_round(method, k, make_runner=lambda: FusedRunner(family(name)))


def on_triton(name: str) -> FusedRunner:
    runner = FusedRunner(family(name)).with_triton()
    runner.layers.kernels = defaultdict(SplitKv)
    return runner


@pytest.mark.sampled(one_in=4, every=["name"])
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *product(("Llama", "Qwen2, window", "Qwen3"), ("draft_model", "draft_model, tree 3 2")),
        *product(["Llama"], ("eagle", "eagle, chain", "eagle3", "eagle3, static", "mtp", "dflash")),
    ],
)
def test_a_round_on_our_kernels_neither_syncs_nor_copies(name: str, variant: str) -> None:
    (chosen,) = (candidate for candidate in VARIANTS if str(candidate) == variant)
    trace_round(chosen.method, 3, make_runner=lambda: on_triton(name), **chosen.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [FlashAttn, VarlenFlash, PlainAttention])
def test_attention_with_given_lengths_neither_syncs_nor_copies(
    kernel: type[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.ops.aten, "_flash_attention_forward", lambda query, *_, **__: (query,)
    )
    module = SimpleNamespace(flash_attn_with_kvcache=lambda query, *_, **__: query)
    monkeypatch.setattr(implementations, "import_module", lambda _: module)

    def make() -> FusedRunner:
        runner = FusedRunner(family("Qwen2, window"))
        runner.layers.kernels = defaultdict(kernel)
        return runner

    trace_round("draft_model", 3, make_runner=make)


Plant = Callable[[Tensor], object]
SYNCS: dict[str, Plant] = {
    "reads an item": lambda tokens_BK: tokens_BK.sum().item(),
    "branches on data": lambda tokens_BK: bool((tokens_BK >= 0).all()),
    "asks for nonzero": lambda tokens_BK: tokens_BK.nonzero(),
    "indexes by a mask": lambda tokens_BK: tokens_BK[tokens_BK > 3],
}
COPIES: dict[str, Plant] = {
    "copies to the device": lambda tokens_BK: torch.tensor([1, 2]).to(tokens_BK.device),
    "makes a tensor from a list": lambda tokens_BK: torch.tensor([1, 2], device=tokens_BK.device),
    "makes a tensor on the host": lambda tokens_BK: torch.arange(tokens_BK.shape[1]),
    "copies to the host": lambda tokens_BK: tokens_BK.to("cpu", non_blocking=True),
}


@pytest.mark.parametrize("fault", SYNCS)
def test_a_planted_sync_is_detected(fault: str) -> None:
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        trace_round("ngram", 4, plant=SYNCS[fault])


@pytest.mark.parametrize("fault", COPIES)
def test_a_planted_copy_is_detected(fault: str) -> None:
    with pytest.raises(HostTensorError):
        trace_round("ngram", 4, plant=COPIES[fault])
