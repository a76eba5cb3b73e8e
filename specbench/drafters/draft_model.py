"""A small model of the same vocabulary guesses the next tokens, one after the other or as a tree.

Shape suffixes: B rows, T tokens, K drafts, W nodes of a level, V the target's vocabulary.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.decoding.drafter import BareForward, Chunk, Outcome, Proposal, Repeatability
from specbench.decoding.growth import Frontier, grow_chain, grow_static
from specbench.decoding.head_part import HeadPart
from specbench.decoding.runner import Runner
from specbench.decoding.sampling import Sampler
from specbench.decoding.state import State
from specbench.decoding.topology import StaticTrees, Topology
from specbench.decoding.tree import Branches
from specbench.drafters.registry import Parts, drafter


@drafter("draft_model", model="required", draws=True)
class DraftModel:
    """Chain or tree drafting with a KV cache of its own (Leviathan et al. 2023, arXiv:2211.17192).

    `tree` says how many children the nodes of each level have, 1 past its end; K is its depth.
    """

    features: tuple[int, ...] = ()
    needs_host = False
    max_k: int | None = None
    keeps_prefix = True
    chains_nest = True
    repeatability: Repeatability = "exact"
    weights: tuple[Tensor, ...] = ()
    head_parts: Mapping[str, HeadPart] = MappingProxyType({})

    def __init__(self, parts: Parts, *, tree: tuple[int, ...] = ()) -> None:
        self.runner: Runner = parts.draft_runner()
        self._target_vocab_size = parts.target.vocab_size
        self._trees = StaticTrees(partial(Topology.of_widths, tree), parts.target.device)
        self._is_tree = bool(tree)

    @property
    def kv_bytes_per_token(self) -> int:
        return self.runner.cache.bytes_per_token

    @property
    def buffers(self) -> tuple[object, ...]:
        return (self.runner.cache,)

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.runner.allocate(num_rows, max_len)

    def num_drafts(self, k: int) -> int:
        return self._trees[k].topology.num_drafts if self._is_tree else k

    def begin(self, state: State, predictions: Sequence[Sequence[int]]) -> None:
        """A prompt overwrites what was in its row's cache."""

    def prefill(self, state: State, chunk: Chunk) -> None:
        self._see(chunk.tokens_BT, chunk.positions_BT, chunk.span, state.first_row, chunk.start)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        # The token before the current one is fed again: after a round in which every draft
        # was accepted it is the one the draft model has not seen, and else it costs nothing.
        positions_B2 = state.positions(-1, 2)
        logits_of = partial(self._logits, span=span, first_row=state.first_row)
        logits_BV = logits_of(state.tokens_at(positions_B2), positions_B2)[:, -1]

        def feed(nodes: Frontier) -> Tensor:
            return logits_of(nodes.tokens_BW, nodes.positions_BW, branches=nodes.branches)

        if self._is_tree:
            return grow_static(self._trees[k], state, logits_BV, feed, sampler)
        return grow_chain(state, logits_BV, logits_of, k, sampler)

    def whole_answer(self, state: State, most: int) -> Proposal | None:  # noqa: ARG002
        return None

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        positions_BT, tokens_BT = state.last(num_tokens)
        self._see(tokens_BT, positions_BT, span, state.first_row)

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        self.runner.copy_row(source, destination, num_tokens)

    def forwards(self, k: int) -> tuple[BareForward, ...]:
        if self._is_tree:
            widths = self._trees[k].topology.inner_widths
            return (BareForward(2, 1), *(BareForward(width, 1) for width in widths))
        return (BareForward(2, 1), BareForward(1, k - 1)) if k > 1 else (BareForward(2, 1),)

    def observe(self, state: State, outcome: Outcome) -> None:
        """A tree's kept path moves to its positions, as in the target's cache.

        What was rejected is overwritten before it is seen again.
        """
        if outcome.path_BT is not None:
            positions_BT = outcome.positions_BT
            sources_BT = positions_BT[:, :1] + outcome.path_BT[:, 1:]
            self.runner.move_slots(sources_BT, positions_BT[:, 1:], state.first_row)

    def _see(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        first_row: int,
        start: int | None = None,
    ) -> None:
        last_1 = torch.full_like(tokens_BT[0, :1], tokens_BT.shape[1] - 1)
        self.runner.forward(
            self._known(tokens_BT),
            positions_BT,
            span,
            first_row=first_row,
            last_B=last_1,
            start=start,
        )

    def _logits(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        *,
        span: int,
        first_row: int,
        branches: Branches | None = None,
    ) -> Tensor:
        """Over the target's vocabulary [B, T, V]; tokens the draft model lacks are impossible."""
        out = self.runner.forward(
            self._known(tokens_BT), positions_BT, span, first_row=first_row, branches=branches
        )
        missing = self._target_vocab_size - out.logits.shape[-1]
        if missing < 0:
            return out.logits[..., :missing]
        if missing > 0:
            return pad(out.logits, (0, missing), value=-torch.inf)
        return out.logits

    def _known(self, tokens: Tensor) -> Tensor:
        """Ids past the draft's vocabulary are padding of the target's; any id will do."""
        if self.runner.vocab_size >= self._target_vocab_size:
            return tokens
        return tokens.clamp(max=self.runner.vocab_size - 1)
