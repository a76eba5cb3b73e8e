"""The target's own first layers guess the next tokens: no other weights, no other cache.

Shape suffixes: B rows, T tokens, V vocabulary.
"""

from functools import partial
from typing import Annotated

from torch import Tensor

from specbench.decoding.drafter import BareForward, Memoryless, Proposal
from specbench.decoding.growth import Frontier, grow_chain, grow_static
from specbench.decoding.runner import Runner
from specbench.decoding.sampling import Sampler
from specbench.decoding.state import State
from specbench.decoding.topology import StaticTrees, Topology
from specbench.drafters.registry import Parts, drafter
from specbench.errors import UsageError


@drafter("self_speculation", draws=True)
class SelfSpeculation(Memoryless):
    """The target's first layers draft for all of it (Elhoushi et al. 2024, arXiv:2404.16710).

    `num_layers` of them, a quarter of all where it is 0, draft with the target's final norm and
    head. Their keys and values of committed tokens are the target's own; those that
    drafts leave behind are rewritten by the target's check. `tree` is that of draft_model.
    """

    chains_nest = True

    def __init__(
        self,
        parts: Parts,
        *,
        num_layers: Annotated[int, range(0, 257)] = 0,
        tree: tuple[int, ...] = (),
    ) -> None:
        most = parts.target.num_layers
        if num_layers > most:
            raise UsageError(
                f"self_speculation: num_layers {num_layers}; the target has {most} layers"
            )
        self.runner: Runner = parts.target.first_layers(num_layers or max(most // 4, 1))
        self._trees = StaticTrees(partial(Topology.of_widths, tree), parts.target.device)
        self._is_tree = bool(tree)

    def num_drafts(self, k: int) -> int:
        return self._trees[k].topology.num_drafts if self._is_tree else k

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        forward = partial(self.runner.forward, span=span, first_row=state.first_row)
        tokens_B1 = state.tokens_at(state.length_B1)
        logits_BV = forward(tokens_B1, state.length_B1).logits[:, 0]

        def follow(tokens_B1: Tensor, positions_B1: Tensor) -> Tensor:
            return forward(tokens_B1, positions_B1).logits

        def feed(nodes: Frontier) -> Tensor:
            return forward(nodes.tokens_BW, nodes.positions_BW, branches=nodes.branches).logits

        if self._is_tree:
            return grow_static(self._trees[k], state, logits_BV, feed, sampler)
        return grow_chain(state, logits_BV, follow, k, sampler)

    def forwards(self, k: int) -> tuple[BareForward, ...]:
        if not self._is_tree:
            return (BareForward(1, k),)
        widths = self._trees[k].topology.inner_widths
        return (BareForward(1, 1), *(BareForward(width, 1) for width in widths))
