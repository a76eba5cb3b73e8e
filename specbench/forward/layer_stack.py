"""Decoder layers of a head over their own slots, fed with states instead of tokens. They run fused
if that is possible, as a target's do. Shape suffixes: B rows, T tokens, F hidden size, W what the
first layer's attention reads.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from specbench.forward.fused_layers import FusedLayers, is_mirrored
from specbench.forward.fused_weights import can_fuse_layers, fuse_layers
from specbench.forward.runner import FUSED_TRITON, Runner
from specbench.forward.slot_cache import KvCache
from specbench.forward.stock_layers import StockLayers
from specbench.forward.tree import Branches


class LayerStack:
    """Layers as StockLayers takes them, and who runs them; `windows` are one for each layer.

    Fused ones take their small operations from the target, and are made when first wanted: a
    head that is trained runs its modules.
    """

    def __init__(
        self,
        config: Any,
        layers: Sequence[nn.Module],
        rotary: nn.Module,
        target: Runner,
        windows: Sequence[int | None] = (),
    ) -> None:
        self.layers, self.windows = layers, tuple(windows) or (None,) * len(layers)
        self._config, self._rotary, self._target = config, rotary, target
        self._stock = StockLayers(config, layers, rotary, self.windows)
        self._fused: FusedLayers | None = None
        self.reason = can_fuse_layers(config, layers, rotary)  # None: they run fused

    @property
    def fused(self) -> FusedLayers | None:
        """The fused layers that run; None if transformers' own code runs instead."""
        if self._fused is None and self.reason is None:
            target, mirrored = self._target, is_mirrored(self._target.device)
            joined = fuse_layers(self._config, self.layers, self.windows, mirrored=mirrored)
            fused = FusedLayers(joined, self._config, self._rotary, mirrored=mirrored)
            self._fused = fused.with_triton() if target.kind == FUSED_TRITON else fused
        return self._fused

    def run_stock(self, reason: str) -> None:
        """From now on, and why."""
        self.reason, self._fused = reason, None

    def as_stock(self) -> "LayerStack":
        """The same layers over other slots, in transformers' own code."""
        stock = LayerStack(self._config, self.layers, self._rotary, self._target, self.windows)
        stock.run_stock("what fused layers are compared with")
        return stock

    @property
    def cache(self) -> KvCache:
        """Another one after an `allocate` that had to grow it."""
        return (self.fused or self._stock).cache

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Allocate; a larger cache is kept, for stale slots are masked."""
        (self.fused or self._stock).allocate(num_rows, max_len)

    def release(self) -> None:
        """Give the memory of all rows back."""
        (self.fused or self._stock).release()

    def whole_texts(self) -> AbstractContextManager[None]:
        """Inside, forwards are over whole texts, for training; see StockLayers.whole_texts."""
        return self._stock.whole_texts()

    def forward(
        self,
        states_BTF: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        branches: Branches | None = None,
        only: int | None = None,
        first_slot: int = 0,
        entry_BTW: Tensor | None = None,
        windows_from_BT: Tensor | None = None,
    ) -> Tensor:
        """The last layer's states [B, T, F]; rows, slots and masks as in Runner.forward.

        `only` runs just that layer. Slots before `first_slot` hold nothing and are not seen.
        `entry_BTW` is what the first layer's attention reads instead of the normed states. Among
        branches, windows count back from `windows_from_BT`, if given, else from each token's own
        position.
        """
        fused = None if self._stock.is_over_texts else self.fused
        if fused is None:
            return self._stock.forward(
                states_BTF,
                positions_BT,
                span,
                first_row=first_row,
                branches=branches,
                only=only,
                first_slot=first_slot,
                entry_BTW=entry_BTW,
                windows_from_BT=windows_from_BT,
            )
        assert not first_slot, "fused layers see a row from its first slot on"
        B, T = positions_BT.shape
        states = fused.forward(
            fused.workspace(B, T),
            states_BTF.reshape(B * T, -1),
            positions_BT,
            span,
            first_row=first_row,
            branches=branches,
            entry_NW=None if entry_BTW is None else entry_BTW.reshape(B * T, -1),
            only=only,
            windows_from_BT=None if windows_from_BT is None else windows_from_BT.expand(B, T),
            is_kept=True,
        )
        return states[len(self.layers) if only is None else only + 1].view(B, T, -1)

    def keep(self, x_BTF: Tensor, positions_BT: Tensor, span: int, *, first_row: int = 0) -> None:
        """Write the keys and values that every layer makes of the same states, as they are."""
        if self.fused is None:
            self._stock.keep(x_BTF, positions_BT, span, first_row=first_row)
        else:
            x_NF = x_BTF.reshape(positions_BT.numel(), -1)
            self.fused.keep(x_NF, positions_BT, span, first_row=first_row)
