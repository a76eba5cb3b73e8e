"""The protocol of an implementation of attention, the shape it is chosen for, and its inputs.

Shape suffixes: B rows, T new tokens, S slots.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.footprint import Sizes
from specbench.forward.tree import Branches
from specbench.forward.workspace import CacheView, LayerKV, Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """Device, dtype and sizes that one implementation is chosen for."""

    device: torch.device
    dtype: torch.dtype
    query_heads: int
    kv_heads: int
    head_size: int
    window: int | None  # a position sees this many tokens, itself included
    is_tree: bool

    def __str__(self) -> str:
        window = f", window {self.window}" if self.window else ""
        return ("tree" if self.is_tree else "chain") + window


class AttentionInputs(NamedTuple):
    """Positions, cache and mask of one forward, for the layers of one window."""

    positions_BT: Tensor
    view: CacheView
    sizes: Sizes
    dtype: torch.dtype
    window: int | None
    branches: Branches | None

    @property
    def span(self) -> int:
        """Slots of a row up to which there may be something."""
        return len(self.view.slots_S)


class Kernel(Protocol):
    """An implementation of attention over a fused forward's workspace and cache."""

    name: str

    def unsupported_reason(self, case: AttentionShape) -> str | None:
        """The reason why it cannot serve such a forward; None if it can."""
        ...

    def build_metadata(self, inputs: AttentionInputs) -> Any:
        """The metadata that `attend` needs, built once for the layers of a forward."""
        ...

    def attend(self, work: Workspace, kv: LayerKV, metadata: Any) -> None:
        """Write the output of each query of `work` to `work.joined`."""
