"""Torch's FlexAttention: compiled for a forward's shapes, over the blocks of slots in use.

Shape suffixes: B rows, T new tokens, S slots.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from specbench.forward.attention.kernel import Case, Seen
from specbench.forward.attention.masks import visible
from specbench.forward.workspace import Kept, Workspace

_MAX_PROGRAMS = 256  # the compiler's own limit of 8 is against accidents
_BLOCK = 128  # slots and tokens that are looked at or passed over together


class Flex:
    """Chains, windows and trees; `compiled` is False where it is to be tried without a compiler."""

    name = "flex"

    def __init__(self, *, compiled: bool = True) -> None:
        self._attend = _compiled if compiled else lambda: flex_attention

    def refusal(self, case: Case) -> str | None:
        if case.device.type != "cuda":
            return "a kernel for CUDA"
        return "it has no float64" if case.dtype is torch.float64 else None

    def look(self, seen: Seen) -> BlockMask:
        positions_BT, branches = seen.positions_BT, seen.branches
        B, T = positions_BT.shape
        seen_BTS = visible(positions_BT, seen.view.slots_S, window=seen.window, branches=branches)
        used_B = positions_BT.amax(1) + 1
        if branches is not None:
            used_B = branches.base_B1[:, 0] + branches.seen_BTM.shape[2]
        num_blocks, num_tokens = -(-seen.span // _BLOCK), -(-T // _BLOCK)
        in_use_B11 = ((used_B + _BLOCK - 1) // _BLOCK).int()[:, None, None]
        blocks = torch.arange(num_blocks, dtype=torch.int32, device=positions_BT.device)

        def mask(b: Tensor, _: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return seen_BTS[b, q, kv]

        return BlockMask.from_kv_blocks(
            in_use_B11.expand(B, 1, num_tokens).contiguous(),
            blocks.expand(B, 1, num_tokens, num_blocks).contiguous(),
            BLOCK_SIZE=_BLOCK,
            mask_mod=mask,
            seq_lengths=(T, seen.span),
        )

    def attend(self, work: Workspace, kept: Kept, look: BlockMask) -> None:
        queries = work.unpacked.flatten(1, 2)
        out = self._attend()(
            queries,
            kept.keys,
            kept.values,
            block_mask=look,
            enable_gqa=queries.shape[1] != kept.keys.shape[1],
        )
        work.spread.copy_(out.reshape(work.spread.shape))


@cache
def _compiled() -> Any:
    """Once a shape; without it every score would be written to memory."""
    program = torch.compile(flex_attention, dynamic=False)

    def attend(*arguments: Any, **named: Any) -> Tensor:
        with torch._dynamo.config.patch(recompile_limit=_MAX_PROGRAMS):
            out: Tensor = program(*arguments, **named)
        return out

    return attend
