"""A head's layers over whole texts at once, as they are trained: no slots, gradients flow.

Shape suffixes: B rows, T tokens, S keys.
"""

from typing import Any

import torch
from torch import Tensor


class WholeTexts:
    """Keys and values of every pass over the same texts so far, one after the other.

    The first pass reads the target's states. Pass u reads states that the head made in u passes
    of its own, so its token at t follows a context that ends at t - u: it sees the first pass up
    to there, and of each later pass the one token that led to it, which is what a draft at depth
    u sees. Source: training-time test, Li et al. 2025 (EAGLE-3, arXiv:2503.01840), section 3.2.
    """

    def __init__(self, num_layers: int) -> None:
        self._keys: list[list[Tensor]] = [[] for _ in range(num_layers)]
        self._values: list[list[Tensor]] = [[] for _ in range(num_layers)]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """As transformers' caches have it; [B, H, T, D] of this pass and all before it."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.append(key_states)
        values.append(value_states)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def seen(self, positions_BT: Tensor, layer: int, first: int) -> Tensor:
        """What the next pass of a layer may attend to, bool [1, T, S].

        Before position `first` there is nothing.
        """
        T, passes = positions_BT.shape[1], len(self._keys[layer])
        at_T = torch.arange(T, device=positions_BT.device)
        behind_TT = at_T[:, None] - at_T
        blocks = [(behind_TT >= passes) & (at_T >= first)]
        blocks += [behind_TT == passes - j for j in range(1, passes + 1)]
        return torch.cat(blocks, 1)[None]
