"""Torch's own attention with an additive mask over the whole bucket.

Shape suffixes: B rows, T new tokens, S slots.
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from specbench.forward.attention.kernel import Case, Seen
from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.workspace import Kept, Workspace


class Masked:
    """Heads that share keys and values are packed along the query axis, so none is repeated.

    On CUDA `backend` names the kernel; a CPU has one of its own.
    """

    def __init__(self, name: str, backend: SDPBackend | None = None) -> None:
        self.name = name
        self._backend = backend

    def refusal(self, case: Case) -> str | None:
        if self._backend is not None and case.device.type != "cuda":
            return "a kernel for CUDA"
        return None

    def look(self, seen: Seen) -> Tensor:
        """Additive mask [B, 1, group * T, S]; that of a chain in as few operations as it takes."""
        positions_BT, slots_S, window = seen.positions_BT, seen.view.slots_S, seen.window
        if seen.branches is not None:
            seen_BTS = visible(positions_BT, slots_S, window=window, branches=seen.branches)
            return additive_mask(seen_BTS, seen.dtype, pack=seen.sizes.group)
        B, T = positions_BT.shape
        places = positions_BT[:, None].expand(B, seen.sizes.group, T).reshape(B, 1, -1, 1)
        is_seen = slots_S <= places
        if window is not None:
            is_seen &= slots_S > places - window
        return torch.where(is_seen, seen.view.shown, seen.view.hidden)

    def attend(self, work: Workspace, kept: Kept, look: Tensor) -> None:
        if work.packs:
            work.packed.copy_(work.unpacked)
        if self._backend is None:
            out = scaled_dot_product_attention(work.query, kept.keys, kept.values, look)
        else:
            with sdpa_kernel(self._backend):
                out = scaled_dot_product_attention(work.query, kept.keys, kept.values, look)
        work.spread.copy_(out.view_as(work.spread) if work.packs else out)
