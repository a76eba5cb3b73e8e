"""Our own split-KV kernel: chains, windows and trees, over the slots in use and no others.

See forward/kernels/slot_attention.py.
"""

from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.forward.attention.kernel import Case, Seen
from specbench.forward.kernels.availability import why_not
from specbench.forward.workspace import Kept, Workspace

_LARGEST_HEAD = 256


class SplitKvLook(NamedTuple):
    """What a forward's tokens see, laid out without gaps; the last three of a tree alone."""

    positions_BT: Tensor
    first_slots_B: Tensor
    span: int
    window: int | None
    base_B: Tensor | None
    seen_BTM: Tensor | None
    branch_positions_BM: Tensor | None


class SplitKv:
    """Attention in Triton, each row's slots shared out among programs."""

    name = "triton"

    def refusal(self, case: Case) -> str | None:
        if reason := why_not(case.device):
            return reason
        if case.dtype is torch.float64:
            return "it has no float64"
        if case.head_size > _LARGEST_HEAD:
            return f"heads of {case.head_size}; it takes up to {_LARGEST_HEAD}"
        return None

    def look(self, seen: Seen) -> SplitKvLook:
        branches = seen.branches
        return SplitKvLook(
            positions_BT=seen.positions_BT.contiguous(),
            first_slots_B=seen.view.first_slot_B1[:, 0],
            span=seen.span,
            window=seen.window,
            base_B=None if branches is None else branches.base_B1[:, 0].contiguous(),
            seen_BTM=None if branches is None else branches.seen_BTM.contiguous(),
            branch_positions_BM=None if branches is None else branches.positions_BM.contiguous(),
        )

    def attend(self, work: Workspace, kept: Kept, look: SplitKvLook) -> None:
        import_module("specbench.forward.kernels.slot_attention").attend(
            work.joined,
            work.qkv,
            kept.buffer,
            look.first_slots_B,
            look.positions_BT,
            work.heads.shape[-1],
            look.span,
            look.window,
            look.base_B,
            look.seen_BTM,
            look.branch_positions_BM,
        )
