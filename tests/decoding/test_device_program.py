"""A round runs on the device alone: traced on fake CUDA tensors, without a GPU.

What needs a value on the host raises by itself (a sync); what touches a CPU tensor is caught
by HostWatch (a copy). Either would break the capture of a round as one graph.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from specbench.forward.runner import StockRunner
from specbench.records import Sampling
from specbench.round.drafter import Drafter, Proposal
from specbench.round.round import finish_round, run_round
from specbench.round.sampling import Sampler
from specbench.round.state import State
from tests.decoding.fake_cuda import DEVICE, HostTensorError, HostWatch, fake_cuda
from tests.decoding.fakes import Wrapped
from tests.decoding.lossless import deepest, make_drafter
from tests.decoding.models import ARCHITECTURES, build, tiny_llama
from tests.drafters.variants import VARIANTS, Variant

GREEDY = Sampling()
CUT = Sampling(temperature=0.7, top_k=5, top_p=0.9)  # runs all that a warm one without cuts runs
SPAN = 64

# Experts are left out: transformers asks the CUDA driver which kernel it may use for them,
# and there is no driver to ask.
TRACED = [name for name in ARCHITECTURES if name not in ("Qwen3-MoE", "GPT-OSS + window")]


class Device(NamedTuple):
    """Fake models and rows on a GPU that is not there."""

    target: StockRunner
    draft: StockRunner
    state: State

    def run(self, drafter: Drafter, sampling: Sampling, k: int) -> None:
        """What a graph holds of a round, watched: all, or the half after a host's drafts."""
        for runner in (self.target, self.draft):
            runner.allocate(3, SPAN)
        drafter.allocate(3, SPAN)
        sampler = Sampler(sampling)
        if not drafter.traits.needs_host:
            with HostWatch():
                run_round(self.target, drafter, self.state, sampler, k=k, span=SPAN)
            return
        tokens_BK = torch.zeros(3, k, dtype=torch.long, device=DEVICE)
        proposal = Proposal(tokens_BK, torch.full_like(self.state.budget_B, k))
        with HostWatch():
            finish_round(self.target, drafter, self.state, sampler, proposal, SPAN)


@pytest.fixture
def device() -> Iterator[Device]:
    with fake_cuda():
        with DEVICE:
            target, draft = (StockRunner(tiny_llama(num_hidden_layers=1)) for _ in range(2))
        yield Device(target, draft, rows())


def rows() -> State:
    return State.allocate(3, SPAN, [5, 6], DEVICE)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_round_with_drafts_neither_syncs_nor_copies(device: Device, variant: Variant) -> None:
    drafter = make_drafter(variant.method, device.target, device.draft, **variant.parameters)
    k = deepest(drafter, 3)
    drafter.num_drafts(k)  # asked before any round, as the decoder does
    for sampling in (GREEDY, CUT):
        device.run(drafter, sampling, k=k)


def test_a_round_of_the_baseline_neither_syncs_nor_copies(device: Device) -> None:
    for sampling in (GREEDY, CUT):
        device.run(make_drafter("none", device.target), sampling, k=0)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TRACED)
def test_no_architectures_forward_syncs_or_copies(architecture: str) -> None:
    with fake_cuda():
        with DEVICE:
            target = StockRunner(build(ARCHITECTURES[architecture]()))
        Device(target, target, rows()).run(make_drafter("none", target), GREEDY, k=0)


class Planted(Wrapped):
    """Does on the host what a round must not do, before it hands on the proposal."""

    def change(self, proposal: Proposal) -> Proposal:
        self.plant(proposal.tokens_BK)
        return proposal

    def plant(self, tokens_BK: Tensor) -> None:
        raise NotImplementedError


class ReadsAnItem(Planted):
    def plant(self, tokens_BK: Tensor) -> None:
        tokens_BK.sum().item()


class BranchesOnData(Planted):
    def plant(self, tokens_BK: Tensor) -> None:
        assert bool((tokens_BK >= 0).all())


class AsksForNonzero(Planted):
    def plant(self, tokens_BK: Tensor) -> None:
        tokens_BK.nonzero()


class IndexesByMask(Planted):
    def plant(self, tokens_BK: Tensor) -> None:
        tokens_BK[tokens_BK > 3]


class CopiesToTheDevice(Planted):
    def plant(self, tokens_BK: Tensor) -> None:
        torch.tensor([1, 2]).to(tokens_BK.device)


class MakesATensorFromAList(Planted):
    def plant(self, tokens_BK: Tensor) -> None:
        torch.tensor([1, 2], device=tokens_BK.device)


class MakesATensorOnTheHost(Planted):
    def plant(self, tokens_BK: Tensor) -> None:
        torch.arange(tokens_BK.shape[1])


class CopiesToTheHost(Planted):
    def plant(self, tokens_BK: Tensor) -> None:
        tokens_BK.to("cpu", non_blocking=True)


@pytest.mark.parametrize("fault", [ReadsAnItem, BranchesOnData, AsksForNonzero, IndexesByMask])
def test_a_planted_sync_is_found(device: Device, fault: type[Planted]) -> None:
    drafter = fault(make_drafter("ngram", device.target))

    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        device.run(drafter, GREEDY, k=4)


@pytest.mark.parametrize(
    "fault", [CopiesToTheDevice, MakesATensorFromAList, MakesATensorOnTheHost, CopiesToTheHost]
)
def test_a_planted_copy_is_found(device: Device, fault: type[Planted]) -> None:
    drafter = fault(make_drafter("ngram", device.target))

    with pytest.raises(HostTensorError):
        device.run(drafter, GREEDY, k=4)
