"""The layers that a target was trained with to look further ahead than one token.

Shape suffixes: B rows, T tokens, W tokens of one step, L MTP layers, F hidden size.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specbench.decode.drafter import Chunk, Outcome, OwnForward, Proposal
from specbench.decode.growth import grow_chain
from specbench.decode.head_part import HeadPart
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.heads.feature_drafter import FeatureDrafter, TreePlan, blank_states
from specbench.drafters.heads.mtp import MtpHead, new_mtp_checkpoint
from specbench.drafters.registry import Parts, drafter
from specbench.models.checkpoint import Checkpoint


@drafter("mtp")
class Mtp(FeatureDrafter):
    """Drafts with the target's MTP layers, each over its own keys and values.

    They come from the target's own files, or from those of `model:`. Layer i makes its state at
    a position from the token after it and the state that the layer before it (the target
    before the first) had one position back (at the same position), over keys and values of its
    own. Each layer sees every known token once, with the states that training would have
    given it there; drafts are seen anew in each round, by layer i the first i of them. Deeper
    than there are layers the first layer goes on from the last one's states, and so on.
    """

    open_head = MtpHead

    def __init__(self, parts: Parts) -> None:
        head = self.open_head(parts.checkpoint(), parts.target)
        super().__init__(head, TreePlan())
        self._mtp = head
        # A later layer goes on from the states of the one before it, which only a row's end has.
        self.traits = replace(self.traits, keeps_prefix=head.num_layers == 1)

    @staticmethod
    def new_checkpoint(config: Any, seed: int, *, num_layers: int = 1) -> Checkpoint:
        """Random MTP layers for a target with this transformers config, named as in its files."""
        return new_mtp_checkpoint(config, seed, num_layers=num_layers)

    def prefill(self, state: State, chunk: Chunk) -> None:
        states_BTF = self._see(
            chunk.following_BT,
            chunk.features,
            chunk.positions_BT,
            chunk.span,
            before_BLF=self._kept(state),
            first_row=state.first_row,
        )
        # What `observe` goes on from: the states before the prompt's last token.
        at_B1 = state.length_B1 - 2 - chunk.positions_BT[:, :1]
        index_B1F = at_B1.clamp(0, states_BTF.shape[1] - 1)[..., None].expand(
            -1, 1, states_BTF.shape[2]
        )
        kept_BF = state.rows_of(self._last_RF)
        kept_BF.copy_(torch.where(at_B1 >= 0, states_BTF.gather(1, index_B1F)[:, 0], kept_BF))

    def observe(self, state: State, outcome: Outcome) -> None:
        states_BTF = self._see(
            outcome.following_BT,
            outcome.features,
            outcome.positions_BT,
            outcome.span,
            before_BLF=self._kept(state),
            first_row=state.first_row,
        )
        outcome.keep_last(states_BTF, state.rows_of(self._last_RF))

    def _see(
        self,
        tokens_BT: Tensor,
        features: tuple[Tensor, ...],
        positions_BT: Tensor,
        span: int,
        *,
        before_BLF: Tensor,
        first_row: int = 0,
    ) -> Tensor:
        """All layers' states after known tokens [B, T, L * F]; they follow those `before`."""
        head = self._mtp
        states_BTF, made = head.fuse(features), []
        for i in range(head.num_layers):
            states_BTF = head.step(
                tokens_BT, states_BTF, positions_BT, span, first_row=first_row, depth=i
            )
            made.append(states_BTF)
            states_BTF = torch.cat([before_BLF[:, i : i + 1], states_BTF[:, :-1]], 1)
        return torch.cat(made, -1)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        head, kept_BLF = self._mtp, self._kept(state)
        depth, tokens_BW, states_BWF = 0, state.tokens_BC[:, :0], kept_BLF[:, :0]

        def follow(tokens_B1: Tensor, positions_B1: Tensor) -> Tensor:  # noqa: ARG001
            """The drafts that this depth's layer has not seen since its last known token."""
            nonlocal depth, tokens_BW, states_BWF
            if depth < head.num_layers:
                states_BWF = torch.cat([kept_BLF[:, depth : depth + 1], states_BWF], 1)
            depth += 1
            W = min(depth, head.num_layers)
            tokens_BW = torch.cat([tokens_BW, tokens_B1], 1)[:, -W:]
            places_BW = state.positions(depth - W, W)
            states_BWF = head.step(
                tokens_BW, states_BWF, places_BW, span, first_row=state.first_row, depth=depth
            )
            return head.logits(states_BWF[:, -1:], depth)

        logits_BV = head.logits(kept_BLF[:, :1])[:, 0]
        return grow_chain(state, logits_BV, follow, k, sampler)

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """`observe` is all layers over known tokens, `layer i` that one over drafts."""
        head, L = self._mtp, self._mtp.num_layers
        (state_11F,) = blank_states(head, head.feature_size)

        def observe(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:
            features = (state_11F.expand(-1, tokens_1T.shape[1], -1),)
            before_1LF = state_11F.expand(-1, L, -1)
            made = self._see(tokens_1T, features, positions_1T, span, before_BLF=before_1LF)
            return head.logits(made[:, -1:, : head.feature_size])

        def draft(tokens_1T: Tensor, positions_1T: Tensor, span: int, *, depth: int) -> Tensor:
            states_1TF = state_11F.expand(-1, tokens_1T.shape[1], -1)
            states_1TF = head.step(tokens_1T, states_1TF, positions_1T, span, depth=depth)
            return head.logits(states_1TF[:, -1:], depth)

        reads = [head.reads(i) for i in range(L)]
        known = (*(weight for layer in reads for weight in layer.step), *reads[0].logits)
        parts = {
            "observe": HeadPart(run=observe, weights=known, layers=head.layers, num_attending=L)
        }
        for i, layer in enumerate(reads):
            parts[f"layer {i}"] = HeadPart(
                run=partial(draft, depth=i),
                weights=(*layer.step, *layer.logits),
                layers=head.layers,
                num_attending=1,
            )
        return parts

    def _forwards(self, k: int) -> tuple[OwnForward, ...]:
        L = self._mtp.num_layers
        drafts = (OwnForward(min(depth, L), 1, f"layer {depth % L}") for depth in range(1, k))
        return (OwnForward(k + 1, 1, "observe"), *drafts)

    def _kept(self, state: State) -> Tensor:
        """Each layer's state after the row's last token [B, L, F]."""
        return state.rows_of(self._last_RF).view(state.num_rows, self._mtp.num_layers, -1)
