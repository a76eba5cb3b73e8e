"""Rounds on a fake GPU: any use of the host raises.

An operation that needs a value on the host raises by itself (a sync); HostWatch catches one on a
CPU tensor (a copy). Either would break the capture of a round as one graph.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.decode.drafter import Drafter, Proposal
from specbench.decode.round import Verifier, finish_round, run_round
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.decode.verifier import verify
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner, StockRunner
from specbench.methods import find_method
from specbench.records import Sampling
from tests.decoding.fake_cuda import DEVICE, HostWatch, fake_cuda
from tests.decoding.fakes import Wrapped
from tests.decoding.lossless import deepest, make_drafter
from tests.decoding.models import tiny_llama

SPAN = 64
# The second runs all that one without cuts runs.
SAMPLINGS = (Sampling(), Sampling(temperature=0.7, top_k=5, top_p=0.9))


class FaultyDrafter(Wrapped):
    """Applies a forbidden operation to its drafts before it returns them."""

    def __init__(self, inner: Drafter, plant: Callable[[Tensor], object]) -> None:
        super().__init__(inner)
        self._plant = plant

    def change(self, proposal: Proposal) -> Proposal:
        self._plant(proposal.tokens_BK)
        return proposal


def drafts_with_a_model(method: str) -> bool:
    """Whether it needs a draft model, whose tracing takes as long as the target's."""
    if method == "none":
        return False
    known = find_method(method)
    return known.model == "required" and not known.is_head


def one_layer() -> StockRunner:
    return StockRunner(tiny_llama(num_hidden_layers=1))


def trace_round(
    method: str,
    k: int,
    *,
    make_runner: Callable[[], Runner] = one_layer,
    verifier: Verifier = verify,
    plant: Callable[[Tensor], object] | None = None,
    **parameters: object,
) -> None:
    """The part of a round that a graph holds, watched: all, or the half after a host's drafts."""
    with fake_cuda():
        with DEVICE:
            target = make_runner()
            draft = make_runner() if drafts_with_a_model(method) else None
        drafter = make_drafter(method, target, draft, **parameters)
        if k := deepest(drafter, k):
            drafter.num_drafts(k)  # called before any round, as in the decoder
        layers = drafter.resources.cached_layers
        if isinstance(target, FusedRunner) and isinstance(layers, LayerStack) and layers.fused:
            layers.fused.kernels = target.layers.kernels  # as for equal heads
        for holder in (target, drafter):
            holder.allocate(3, SPAN)
        state = State.allocate(3, SPAN, [5, 6], DEVICE)
        if plant is not None:
            drafter = FaultyDrafter(drafter, plant)
        for sampler in map(Sampler, SAMPLINGS):
            if not drafter.capabilities.needs_host:
                with HostWatch():
                    run_round(target, drafter, state, sampler, k=k, span=SPAN, verifier=verifier)
                continue
            tokens_BK = torch.zeros(3, k, dtype=torch.long, device=DEVICE)
            proposal = Proposal(tokens_BK, torch.full_like(state.budget_B, k))
            with HostWatch():
                finish_round(target, drafter, state, sampler, proposal, SPAN, verifier)
