"""A forward's attention over made-up keys, to try an implementation on.

Slots past a row's length hold larger numbers than the others, as rejected drafts might, so that
whoever looks at one of them is far off. Shape suffixes: B rows, T new tokens, N = B * T, K drafts.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.footprint import Sizes
from specbench.forward.attention.kernel import Case, Kernel, Seen
from specbench.forward.attention.plain import Plain
from specbench.forward.tree import Branches, ancestors_of
from specbench.forward.workspace import JoinedCache, Workspace

_STALE = 8.0
_CACHE_BYTES = 64 * 2**20  # more than a GPU's L2: each layer is read from memory, as in decoding


class Shape(NamedTuple):
    """Rows of about `length` tokens in a bucket of `span` slots, and T new tokens of each."""

    num_rows: int
    num_tokens: int
    length: int
    span: int


class Trial:
    """One layer's keys and values, the queries of a forward, and what it sees."""

    def __init__(self, case: Case, shape: Shape, *, seed: int = 0) -> None:
        B, T = shape.num_rows, shape.num_tokens
        self._case = case
        self._sizes = Sizes(
            hidden=1,
            query_heads=case.query_heads,
            kv_heads=case.kv_heads,
            head=case.head_size,
            mlp=1,
        )
        generator = torch.Generator().manual_seed(seed)
        width = 2 * case.kv_heads * case.head_size
        kept = torch.randn(B, shape.span, width, generator=generator)
        # Ragged: a row is a little shorter than the one before it.
        lengths_B1 = (shape.length - torch.arange(B)[:, None] * 3).clamp(min=1)
        is_stale = torch.arange(shape.span) >= lengths_B1 + T
        kept[is_stale] *= _STALE
        self._kept = kept.flatten(0, 1)
        self._query = torch.randn(B * T, case.query_heads * case.head_size, generator=generator)
        self._positions_BT, self._branches = lengths_B1 + torch.arange(T), None
        if case.is_tree:
            parents_BK = torch.stack(
                [torch.randint(0, i + 1, (B,), generator=generator) for i in range(T - 1)], 1
            )
            seen_BNN, depths_BN = ancestors_of(parents_BK, T)
            self._positions_BT = lengths_B1 + depths_BN
            slots_BN = lengths_B1 + torch.arange(T)
            self._branches = Branches(lengths_B1, slots_BN, seen_BNN, self._positions_BT)
        self._span = shape.span

    def expected(self) -> Tensor:
        """What the queries get [N, H D], by the plain implementation in float32 on the host."""
        reference = replace(self._case, device=torch.device("cpu"), dtype=torch.float32)
        return self.run(Plain(), reference)

    def run(self, kernel: Kernel, case: Case | None = None) -> Tensor:
        """What they get of a kernel [N, H D]."""
        placed = self.placed(case or self._case)
        placed.attend(kernel)
        return placed.work.joined

    def placed(self, case: Case, num_layers: int = 1) -> "Placed":
        """The same numbers on the case's device, in its dtype, for each of so many layers.

        Layers share buffers beyond _CACHE_BYTES.
        """
        B, T = self._positions_BT.shape
        device, dtype = case.device, case.dtype
        scratch = torch.zeros(
            B * T * sum(self._sizes.widths(mirrored=False)), device=device, dtype=dtype
        )
        work = Workspace(self._sizes, scratch, B, T, mirrored=False)
        work.qkv[:, : self._query.shape[1]] = self._query.to(self._case.dtype).to(device, dtype)
        kept = self._kept.to(self._case.dtype).to(device, dtype)  # as rounded as the cache is
        num_buffers = min(num_layers, -(-_CACHE_BYTES // kept.nbytes))
        buffers = [kept, *(kept.clone() for _ in range(num_buffers - 1))]
        layers = [buffers[i % num_buffers] for i in range(num_layers)]
        cache = JoinedCache(B, self._span, layers)
        view = cache.view(B, self._span, 0, self._sizes)
        branches = self._branches and Branches(*(part.to(device) for part in self._branches))
        positions_BT = self._positions_BT.to(device)
        seen = Seen(positions_BT, view, self._sizes, dtype, case.window, branches)
        return Placed(work, seen)


class Placed(NamedTuple):
    """A trial's tensors where they are computed with."""

    work: Workspace
    seen: Seen

    def attend(self, kernel: Kernel) -> None:
        """As a forward does: looks once for all of its layers."""
        look = kernel.look(self.seen)
        for kept in self.seen.view.layers:
            kernel.attend(self.work, kept, look)
