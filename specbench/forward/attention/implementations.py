"""Attention over a fused forward's workspace: the protocol of implementations, the shape that one
is chosen for, and the implementations: in plain operations, torch's, flash-attn's, and our Triton.

Shape suffixes: B rows, T new tokens, N = B * T, S slots, H query heads, D head size.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from specbench.errors import first_line
from specbench.footprint import Sizes
from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.kernels.availability import triton_failure
from specbench.forward.tree import Branches
from specbench.forward.workspace import CacheView, LayerKV, Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """The device, dtype and sizes for which one implementation is chosen."""

    device: torch.device
    dtype: torch.dtype
    query_heads: int
    kv_heads: int
    head_size: int
    window: int | None  # tokens that a position attends to, including itself; None: all
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
        """Number of slots of a row that may be in use."""
        return len(self.view.slots_S)


class Kernel(Protocol):
    """An implementation of attention over a fused forward's workspace and cache."""

    name: str

    def unsupported_reason(self, case: AttentionShape) -> str | None:
        """The reason why it cannot compute such a forward; None if it can."""
        ...

    def build_metadata(self, inputs: AttentionInputs) -> Any:
        """The metadata that `attend` needs, built once per forward for all layers of a window."""
        ...

    def attend(self, work: Workspace, kv: LayerKV, metadata: Any) -> None:
        """Write the output of each query of `work` to `work.joined`."""


_LARGEST_HEAD = 256
_MODULES = ("flash_attn_interface", "flash_attn")  # of version 3 and version 2


class PlainAttention:
    """Two products and a softmax in float32: runs anywhere, and is the reference for the others."""

    name = "plain"

    def unsupported_reason(self, case: AttentionShape) -> str | None:  # noqa: ARG002 - supports all
        return None

    def build_metadata(self, inputs: AttentionInputs) -> Tensor:
        """The slots that each packed query attends to, bool [B, 1, group * T, S]."""
        seen_BTS = visible(
            inputs.positions_BT, inputs.view.slots_S, window=inputs.window, branches=inputs.branches
        )
        return seen_BTS.repeat(1, inputs.sizes.group, 1)[:, None]

    def attend(self, work: Workspace, kv: LayerKV, metadata: Tensor) -> None:
        exact = torch.promote_types(work.qkv.dtype, torch.float32)
        query, keys, values = (
            part.to(exact) for part in (work.unpacked.flatten(2, 3), kv.keys, kv.values)
        )
        scores = query @ keys.transpose(-1, -2) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~metadata, -torch.inf).softmax(-1)
        out = weights.nan_to_num(0.0) @ values  # 0 for a token that attends to no slot
        work.spread.copy_(out.view_as(work.spread))


class MaskedAttention:
    """Torch's own attention with an additive mask over the whole bucket.

    Heads that share keys and values are packed along the query axis, so that keys and values are
    not repeated. On CUDA `backend` selects the kernel; a CPU has only one.
    """

    def __init__(self, name: str, backend: SDPBackend | None = None) -> None:
        self.name = name
        self._backend = backend

    def unsupported_reason(self, case: AttentionShape) -> str | None:
        if self._backend is not None and case.device.type != "cuda":
            return "a kernel for CUDA"
        return None

    def build_metadata(self, inputs: AttentionInputs) -> Tensor:
        """Additive mask [B, 1, group * T, S]; chains need fewer operations than trees."""
        positions_BT, slots_S, window = inputs.positions_BT, inputs.view.slots_S, inputs.window
        if inputs.branches is not None:
            seen_BTS = visible(positions_BT, slots_S, window=window, branches=inputs.branches)
            return additive_mask(seen_BTS, inputs.dtype, pack=inputs.sizes.group)
        B, T = positions_BT.shape
        positions = positions_BT[:, None].expand(B, inputs.sizes.group, T).reshape(B, 1, -1, 1)
        is_seen = slots_S <= positions
        if window is not None:
            is_seen &= slots_S > positions - window
        return torch.where(is_seen, inputs.view.shown, inputs.view.hidden)

    def attend(self, work: Workspace, kv: LayerKV, metadata: Tensor) -> None:
        if work.packs:
            work.packed.copy_(work.unpacked)
        if self._backend is None:
            out = scaled_dot_product_attention(work.query, kv.keys, kv.values, metadata)
        else:
            with sdpa_kernel(self._backend):
                out = scaled_dot_product_attention(work.query, kv.keys, kv.values, metadata)
        work.spread.copy_(out.view_as(work.spread) if work.packs else out)


class VarlenMetadata(NamedTuple):
    """The sequences, in the form that torch's kernel takes; all tensors are int32.

    Shape suffix N1: N + 1 entries.
    """

    queries_N1: Tensor  # the start of the queries of each sequence, and the end of the last
    keys_N1: Tensor  # the start of the slots of its row
    used_N: Tensor  # how many of these slots it attends to
    span: int
    window: int | None


class VarlenFlash:
    """Torch's variable-length flash attention over chains, on CUDA in half precision.

    It reads only the used slots of each row. Every token is a sequence with one query that attends
    to the slots up to its position, so a round with several draft tokens uses more of a GPU.
    """

    name = "flash"

    def unsupported_reason(self, case: AttentionShape) -> str | None:
        if case.device.type != "cuda":
            return "a kernel for CUDA"
        if case.dtype not in (torch.float16, torch.bfloat16):
            return f"it takes half precision, not {str(case.dtype).removeprefix('torch.')}"
        if case.head_size > _LARGEST_HEAD or case.head_size % 8:
            return f"heads of {case.head_size}; it takes multiples of 8 up to {_LARGEST_HEAD}"
        return "it has no mask for trees" if case.is_tree else None

    def build_metadata(self, inputs: AttentionInputs) -> VarlenMetadata:
        positions_BT = inputs.positions_BT
        B, T = positions_BT.shape
        first_N = inputs.view.first_slot_B1.expand(B, T).reshape(-1)
        ends = torch.arange(B * T + 1, dtype=torch.int32, device=positions_BT.device)
        return VarlenMetadata(
            queries_N1=ends,
            keys_N1=torch.cat([first_N, first_N[-1:]]).int(),
            used_N=(positions_BT + 1).flatten().int(),
            span=inputs.span,
            window=inputs.window,
        )

    def attend(self, work: Workspace, kv: LayerKV, metadata: VarlenMetadata) -> None:
        D = work.heads.shape[-1]
        N, heads = len(work.joined), work.joined.shape[1] // D
        keys, values = kv.buffer.view(len(kv.buffer), 2, -1, D).unbind(1)
        out = torch.ops.aten._flash_attention_forward(
            work.qkv[:, : heads * D].view(N, heads, D),
            keys,
            values,
            metadata.queries_N1,
            metadata.keys_N1,
            1,
            metadata.span,
            0.0,
            False,
            False,
            window_size_left=None if metadata.window is None else metadata.window - 1,
            window_size_right=None if metadata.window is None else 0,
            seqused_k=metadata.used_N,
        )[0]
        work.joined.view(N, heads, D).copy_(out)


class FlashAttnMetadata(NamedTuple):
    """The lengths of the rows, new tokens included, int32."""

    lengths_B: Tensor
    window: int | None


class FlashAttn:
    """The flash-attn package, if installed: chains over a cache, with the slots of a row split.

    Its function for decoding supports lengths, windows and grouped heads, but not trees.
    """

    name = "flash_attn"

    def unsupported_reason(self, case: AttentionShape) -> str | None:
        if reason := VarlenFlash().unsupported_reason(
            case
        ):  # torch's kernel is an older version of it
            return reason
        return import_failure()

    def build_metadata(self, inputs: AttentionInputs) -> FlashAttnMetadata:
        return FlashAttnMetadata((inputs.positions_BT[:, -1] + 1).int(), inputs.window)

    def attend(self, work: Workspace, kv: LayerKV, metadata: FlashAttnMetadata) -> None:
        B, D = len(metadata.lengths_B), work.heads.shape[-1]
        T, H = len(work.joined) // B, work.joined.shape[1] // D
        attend: Any = import_module(_module() or "flash_attn").flash_attn_with_kvcache
        out = attend(
            work.qkv[:, : H * D].view(B, T, H, D),
            kv.keys.transpose(1, 2),
            kv.values.transpose(1, 2),
            cache_seqlens=metadata.lengths_B,
            causal=True,
            window_size=(-1, -1) if metadata.window is None else (metadata.window - 1, 0),
        )
        work.joined.view(B, T, H, D).copy_(out)


def import_failure() -> str | None:
    """The reason why the flash-attn package cannot be used at all; None if it can."""
    if not (name := _module()):
        return "not installed"
    try:
        import_module(name)
    except Exception as error:  # built for another torch, say
        return f"{name} cannot be imported: {first_line(error)}"
    return None


def _module() -> str | None:
    return next((name for name in _MODULES if find_spec(name) is not None), None)


class SplitKvMetadata(NamedTuple):
    """The slots that tokens attend to, as contiguous tensors; the last three are only for trees."""

    positions_BT: Tensor
    first_slots_B: Tensor
    span: int
    window: int | None
    base_B: Tensor | None
    seen_BTM: Tensor | None
    branch_positions_BM: Tensor | None


class SplitKv:
    """Our kernel in kernels/slot_attention.py: chains, windows and trees, over only the used slots.

    The slots of a row are split over several programs.
    """

    name = "triton"

    def unsupported_reason(self, case: AttentionShape) -> str | None:
        if reason := triton_failure(case.device):
            return reason
        if case.dtype is torch.float64:
            return "it has no float64"
        if case.head_size > _LARGEST_HEAD:
            return f"heads of {case.head_size}; it takes up to {_LARGEST_HEAD}"
        return None

    def build_metadata(self, inputs: AttentionInputs) -> SplitKvMetadata:
        branches = inputs.branches
        return SplitKvMetadata(
            positions_BT=inputs.positions_BT.contiguous(),
            first_slots_B=inputs.view.first_slot_B1[:, 0],
            span=inputs.span,
            window=inputs.window,
            base_B=None if branches is None else branches.base_B1[:, 0].contiguous(),
            seen_BTM=None if branches is None else branches.seen_BTM.contiguous(),
            branch_positions_BM=None if branches is None else branches.positions_BM.contiguous(),
        )

    def attend(self, work: Workspace, kv: LayerKV, metadata: SplitKvMetadata) -> None:
        import_module("specbench.forward.kernels.slot_attention").attend(
            work.joined,
            work.qkv,
            kv.buffer,
            metadata.first_slots_B,
            metadata.positions_BT,
            work.heads.shape[-1],
            metadata.span,
            metadata.window,
            metadata.base_B,
            metadata.seen_BTM,
            metadata.branch_positions_BM,
        )
