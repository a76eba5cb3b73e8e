"""The step that EAGLE's heads share: a token's embedding and a state go in side by side.

Shape suffixes: B rows, T tokens, F hidden size, W what the first layer's attention reads.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from specbench.drafters.heads.layers import Embed, weights_of
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.forward.tree import Branches
from specbench.models.checkpoint import Checkpoint


class JoiningHead:
    """What a FeatureHead of this kind needs not say itself; every depth has the same layers."""

    layers: LayerStack
    num_depths = 1
    _weights: nn.Module
    _embed: Embed
    _target: Runner

    @property
    def module(self) -> nn.Module:
        """Its own weights, which training replaces."""
        return self._weights

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return weights_of(self._weights, self._embed)

    def files(
        self,
        checkpoint: Checkpoint,  # noqa: ARG002
        weights: Mapping[str, Tensor],
    ) -> Mapping[str, Tensor]:
        return weights

    def step(
        self,
        tokens_BT: Tensor,
        states_BTF: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        branches: Branches | None = None,
        depth: int = 0,  # noqa: ARG002
    ) -> Tensor:
        added_BTF, entry_BTW = self._enter(self._embed(tokens_BT), states_BTF)
        states_BTF = self.layers.forward(
            added_BTF,
            positions_BT,
            span,
            first_row=first_row,
            branches=branches,
            entry_BTW=entry_BTW,
        )
        return self._leave(states_BTF)

    def _enter(self, embedded_BTF: Tensor, states_BTF: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the layers are fed: states, and what the first reads if not them."""
        raise NotImplementedError

    def _leave(self, states_BTF: Tensor) -> Tensor:
        """What the next step is fed of the last layer's states."""
        return states_BTF
