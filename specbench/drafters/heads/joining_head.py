"""The step that EAGLE's heads share: a token's embedding and a state go in side by side.

Shape suffixes: B rows, T tokens, F hidden size.
"""

import torch
from torch import Tensor, nn

from specbench.drafters.heads.layers import Embed, weights_of
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.forward.tree import Branches


class JoiningHead:
    """What a FeatureHead of this kind needs not say itself; every depth has the same layers."""

    layers: LayerStack
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
        joined = torch.cat([self._embed(tokens_BT), states_BTF], -1)
        states_BTF = self.layers.forward(
            self._enter(joined), positions_BT, span, first_row=first_row, branches=branches
        )
        return self._leave(states_BTF)

    def _enter(self, joined: Tensor) -> Tensor:
        """What the first layer is fed."""
        return joined

    def _leave(self, states_BTF: Tensor) -> Tensor:
        """What the next step is fed of the last layer's states."""
        return states_BTF
