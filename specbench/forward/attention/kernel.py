"""What an implementation of attention is: the protocol, what it is chosen for, what it is told.

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
    """What one implementation is chosen for."""

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
    """What the tokens of one forward look at, in the layers of one window."""

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

    def refusal(self, case: AttentionShape) -> str | None:
        """Why it cannot serve such a forward; None where it says it can."""
        ...

    def build_metadata(self, inputs: AttentionInputs) -> Any:
        """What `attend` needs to know, made once for the layers of a forward."""
        ...

    def attend(self, work: Workspace, kv: LayerKV, metadata: Any) -> None:
        """Write what each query of `work` gets to `work.joined`."""
