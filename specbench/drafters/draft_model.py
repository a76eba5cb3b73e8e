"""A draft model with the target's vocabulary drafts the next tokens as a chain or a tree.

Shape suffixes: B rows, T tokens, W nodes of a level, V the target's vocabulary.
"""

from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.decode.drafter import (
    Capabilities,
    Chunk,
    Drafter,
    DrafterForward,
    Outcome,
    Proposal,
    Resources,
    RowBuffer,
)
from specbench.decode.growth import Frontier, grow_chain, grow_static
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.forward.runner import Runner
from specbench.forward.tree import Branches, StaticTrees
from specbench.topology import Topology


class ModelDrafter(Drafter):
    """The common part of drafters that run a language model with the target's vocabulary.

    A round first feeds `runner` the last `num_fed` tokens of the text, up to the current one.
    `tree` is the number of children of a node at each level, 1 past its end; K is the depth.
    """

    capabilities = Capabilities(chains_nest=True)

    def __init__(
        self, runner: Runner, target: Runner, tree: tuple[int, ...], *, num_fed: int = 1
    ) -> None:
        self.runner: Runner = runner
        self._target_vocab_size = target.vocab_size
        self._trees = StaticTrees(partial(Topology.of_widths, tree), target.device)
        self._is_tree = bool(tree)
        self._num_fed = num_fed

    @cached_property
    def resources(self) -> Resources:
        trees = self._trees if self._is_tree else None
        num_fed = self._num_fed

        def forwards(k: int) -> tuple[DrafterForward, ...]:
            widths = (1,) * (k - 1) if trees is None else trees[k].topology.inner_widths
            return (DrafterForward(num_fed), *(DrafterForward(width) for width in widths))

        return Resources(runner=self.runner, forwards=forwards)

    def num_drafts(self, k: int) -> int:
        return self._trees[k].topology.num_drafts if self._is_tree else k

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        positions_BT = state.positions(1 - self._num_fed, self._num_fed)
        logits_of = partial(self._logits, span=span, first_row=state.first_row)
        logits_BV = logits_of(state.tokens_at(positions_BT), positions_BT)[:, -1]

        def feed(nodes: Frontier) -> Tensor:
            return logits_of(nodes.tokens_BW, nodes.positions_BW, branches=nodes.branches)

        if self._is_tree:
            return grow_static(self._trees[k], state, logits_BV, feed, sampler)
        return grow_chain(state, logits_BV, logits_of, k, sampler, self.p_min)

    def _logits(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        *,
        span: int,
        first_row: int,
        branches: Branches | None = None,
    ) -> Tensor:
        """Logits over the target's vocabulary [B, T, V]; -inf for tokens that the model lacks."""
        out = self.runner.forward(
            self._known_ids(tokens_BT), positions_BT, span, first_row=first_row, branches=branches
        )
        missing = self._target_vocab_size - out.logits.shape[-1]
        if missing < 0:
            return out.logits[..., :missing]
        if missing > 0:
            return pad(out.logits, (0, missing), value=-torch.inf)
        return out.logits

    def _known_ids(self, tokens: Tensor) -> Tensor:
        """The tokens, clamped to the model's vocabulary: larger ids are the target's padding."""
        if self.runner.vocab_size >= self._target_vocab_size:
            return tokens
        return tokens.clamp(max=self.runner.vocab_size - 1)


@drafter("draft_model")
class DraftModel(ModelDrafter):
    """Drafts with a draft model, whose own KV cache contains the committed text."""

    def __init__(self, parts: Parts, *, tree: tuple[int, ...]) -> None:
        # The token before the current one is fed again, because the draft model has not processed
        # it if all draft tokens were accepted. In other rounds this costs nothing.
        super().__init__(parts.draft_runner(), parts.target, tree, num_fed=2)

    @cached_property
    def resources(self) -> Resources:
        return replace(super().resources, cached_layers=self.runner)

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        return (self.runner.cache,)

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.runner.allocate(num_rows, max_len)

    def prefill(self, state: State, chunk: Chunk) -> None:
        self._feed(chunk.tokens_BT, chunk.positions_BT, chunk.span, state.first_row, chunk.start)

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        positions_BT, tokens_BT = state.last(num_tokens)
        self._feed(tokens_BT, positions_BT, span, state.first_row)

    def observe(self, state: State, outcome: Outcome) -> None:
        """Move the slots of a tree's accepted path to the path's positions, as the target does.

        Slots of rejected draft tokens are overwritten before they are read.
        """
        if outcome.path_BT is not None:
            positions_BT = outcome.positions_BT
            sources_BT = positions_BT[:, :1] + outcome.path_BT[:, 1:]
            self.runner.move_slots(sources_BT, positions_BT[:, 1:], state.first_row)

    def _feed(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        first_row: int,
        start: int | None = None,
    ) -> None:
        last_1 = torch.full_like(tokens_BT[0, :1], tokens_BT.shape[1] - 1)
        self.runner.forward(
            self._known_ids(tokens_BT),
            positions_BT,
            span,
            first_row=first_row,
            last_B=last_1,
            start=start,
        )
