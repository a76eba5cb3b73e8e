"""Flash attention that is told how far each row has got, and reads no further.

Every token is a sequence of its own with one query, which sees the slots up to its position: so
a round of several drafts fills more of a GPU. Shape suffixes: B rows, T new tokens, N = B * T,
D head size.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from specbench.forward.attention.kernel import Case, Seen
from specbench.forward.workspace import Kept, Workspace

_LARGEST_HEAD = 256


class VarlenLook(NamedTuple):
    """Sequences as torch's kernel wants them, all int32."""

    queries_N1: Tensor  # where each one's queries begin, and an end
    keys_N1: Tensor  # where its row's slots begin
    used_N: Tensor
    span: int
    window: int | None


class VarlenFlash:
    """Torch's variable-length flash attention over chains, on CUDA in half precision."""

    name = "flash"

    def refusal(self, case: Case) -> str | None:
        if case.device.type != "cuda":
            return "a kernel for CUDA"
        if case.dtype not in (torch.float16, torch.bfloat16):
            return f"it takes half precision, not {str(case.dtype).removeprefix('torch.')}"
        if case.head_size > _LARGEST_HEAD or case.head_size % 8:
            return f"heads of {case.head_size}; it takes multiples of 8 up to {_LARGEST_HEAD}"
        return "it has no mask for trees" if case.is_tree else None

    def look(self, seen: Seen) -> VarlenLook:
        positions_BT = seen.positions_BT
        B, T = positions_BT.shape
        first_N = seen.view.first_slot_B1.expand(B, T).reshape(-1)
        ends = torch.arange(B * T + 1, dtype=torch.int32, device=positions_BT.device)
        return VarlenLook(
            queries_N1=ends,
            keys_N1=torch.cat([first_N, first_N[-1:]]).int(),
            used_N=(positions_BT + 1).flatten().int(),
            span=seen.span,
            window=seen.window,
        )

    def attend(self, work: Workspace, kept: Kept, look: VarlenLook) -> None:
        D = work.heads.shape[-1]
        N, heads = len(work.joined), work.joined.shape[1] // D
        keys, values = kept.buffer.view(len(kept.buffer), 2, -1, D).unbind(1)
        out = torch.ops.aten._flash_attention_forward(
            work.qkv[:, : heads * D].view(N, heads, D),
            keys,
            values,
            look.queries_N1,
            look.keys_N1,
            1,
            look.span,
            0.0,
            False,
            False,
            window_size_left=None if look.window is None else look.window - 1,
            window_size_right=None if look.window is None else 0,
            seqused_k=look.used_N,
        )[0]
        work.joined.view(N, heads, D).copy_(out)
