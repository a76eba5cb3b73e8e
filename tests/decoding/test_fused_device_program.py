"""A round of fused forwards runs on the device alone: traced on fake CUDA tensors."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Output
from specbench.records import Sampling
from specbench.round.round import run_round
from specbench.round.sampling import Sampler
from specbench.round.state import State
from tests.decoding.fake_cuda import DEVICE, HostTensorError, HostWatch, fake_cuda
from tests.decoding.fused_families import FAMILIES, family
from tests.decoding.lossless import make_drafter

# transformers computes this rope with a tensor from the host when the model is built.
TRACED = [name for name in FAMILIES if name != "Llama, llama3 rope"]


def trace_round(name: str, k: int, runner_class: type[FusedRunner] = FusedRunner) -> None:
    """One round on a GPU that is not there, watched."""
    with fake_cuda():
        with DEVICE:
            target, draft = runner_class(family(name)), FusedRunner(family(name))
        state = State.allocate(3, 64, [5, 6], DEVICE)
        for runner in (target, draft):
            runner.allocate(3, 64)
        drafter = make_drafter("draft_model" if k else "none", target, draft)
        with HostWatch():
            run_round(target, drafter, state, Sampler(Sampling()), k=k, span=64)


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("name", TRACED)
def test_a_round_neither_syncs_nor_copies(name: str, k: int) -> None:
    trace_round(name, k)


class MakesATensorOnTheHost(FusedRunner):
    def forward(self, *inputs: Any, **options: Any) -> Output:
        torch.arange(3)
        return super().forward(*inputs, **options)


class ReadsAnItem(FusedRunner):
    def forward(self, *inputs: Any, **options: Any) -> Output:
        out = super().forward(*inputs, **options)
        out.logits.sum().item()
        return out


@pytest.mark.parametrize(
    ("fault", "error"),
    [(MakesATensorOnTheHost, HostTensorError), (ReadsAnItem, DataDependentOutputException)],
)
def test_a_forward_that_copies_or_syncs_is_found(
    fault: type[FusedRunner], error: type[Exception]
) -> None:
    with pytest.raises(error):
        trace_round("Llama", 0, fault)
