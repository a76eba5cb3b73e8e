"""The implementations of attention, and the inputs on which they are compared.

They run on the attention of one forward over random keys. Slots past a row's length have larger
numbers than the others, as rejected draft tokens might, so that an implementation that reads one of
them has a large error. Shape suffixes: B rows, T new tokens, N = B * T, K drafts.
"""

from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from specbench.errors import ModelError
from specbench.footprint import MOST_DRAFTS, Sizes, rounded_up
from specbench.forward.attention.implementations import (
    AttentionInputs,
    AttentionShape,
    FlashAttn,
    Kernel,
    MaskedAttention,
    PlainAttention,
    SplitKv,
    VarlenFlash,
)
from specbench.forward.autotune import Outcome, Results, Timing, Work, autotune
from specbench.forward.tree import Branches, ancestors_of
from specbench.forward.workspace import JoinedCache, Workspace

Kernels = MutableMapping[tuple[int | None, bool], Kernel]  # by window, and whether it is a tree

# Used before a choice is made: torch picks one of its kernels.
USUAL = MaskedAttention("torch")
# If several are equally fast, the first one is chosen.
KERNELS: tuple[Kernel, ...] = (
    SplitKv(),
    FlashAttn(),
    VarlenFlash(),
    MaskedAttention("efficient", SDPBackend.EFFICIENT_ATTENTION),
    MaskedAttention("cudnn", SDPBackend.CUDNN_ATTENTION),
    USUAL,
    PlainAttention(),
)
BY_NAME: Mapping[str, Kernel] = {kernel.name: kernel for kernel in KERNELS}

NUM_LAYERS = 32  # to spread the cost of metadata, built once per forward; negligible on a CPU
_STALE = 8.0  # factor of the numbers in slots past a row's length
# The largest error allowed, relative to the root mean square of the output.
_ALLOWED = {torch.float64: 1e-4, torch.float32: 2e-3, torch.float16: 0.02, torch.bfloat16: 0.1}


def usual_kernels() -> Kernels:
    """Torch's attention for every window, for chains and trees."""
    return defaultdict(lambda: USUAL)


class BatchShape(NamedTuple):
    """Rows of about `length` tokens in a bucket of `span` slots, with `num_tokens` new tokens
    each."""

    num_rows: int
    num_tokens: int
    length: int
    span: int


# A short and a long text, each in its bucket; one row and several; K = 0 and K = 4.
SHAPES = tuple(
    BatchShape(num_rows, num_tokens, length, span)
    for length, span in ((200, 1024), (2100, 4096))
    for num_rows in (1, 4)
    for num_tokens in (1, 5)
)
# The largest round, since a choice serves every K and every tree. Not timed: most rounds are small.
_LARGEST = BatchShape(1, MOST_DRAFTS + 1, 200, 1024)
_LONGEST_WINDOW = 100  # in the largest round; most windows are longer than the texts of all shapes


@torch.inference_mode()
def autotune_attention(
    case: AttentionShape,
    kernels: Sequence[Kernel],
    timing: Timing,
    shapes: Sequence[BatchShape] = SHAPES,
) -> Outcome:
    """The fastest of the kernels whose output is correct for this shape."""
    inputs = [Inputs(case, s) for s in shapes if s.num_tokens > 1 or not case.is_tree]
    is_cuda = case.device.type == "cuda"
    l2_bytes = torch.cuda.get_device_properties(case.device).L2_cache_size if is_cuda else 0
    placed = place_all(inputs, case, 2 * l2_bytes)
    cut_case = replace(case, window=case.window and min(case.window, _LONGEST_WINDOW))
    largest = Inputs(cut_case, _LARGEST)
    largest_placed, largest_expected = largest.placed(cut_case), largest.expected()

    def works(kernel: Kernel) -> list[Work]:
        if reason := kernel.unsupported_reason(case):
            raise ModelError(reason)
        largest_placed.work.joined.fill_(torch.nan)
        (got,) = largest_placed.attend(kernel)
        if reason := output_error(got.cpu(), largest_expected, case.dtype):
            raise ModelError(f"it is wrong: {reason}, with {_LARGEST.num_tokens} tokens")
        return [partial(tensors.attend, kernel) for tensors in placed]

    return autotune(
        {kernel.name: partial(works, kernel) for kernel in kernels},
        [(drawn.expected(),) for drawn in inputs],
        lambda results, expected: output_error(results[0].cpu(), expected[0], case.dtype),
        timing,
    )


def output_error(got: Tensor, expected: Tensor, dtype: torch.dtype) -> str | None:
    """The error of an output computed in `dtype`, as text; None if it is rounding."""
    error = (got.float() - expected.float()).abs().max() / expected.float().square().mean().sqrt()
    allowed = _ALLOWED[dtype]
    if error <= allowed:  # which NaN is not
        return None
    return f"off by {float(error):.2g} of the output's size ({allowed:g} is rounding)"


class Inputs:
    """Random keys and values of one layer, queries of a forward, and its mask."""

    def __init__(self, case: AttentionShape, shape: BatchShape, *, seed: int = 0) -> None:
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
        self._num_used = int((lengths_B1 + T).sum())
        self.num_slots = B * shape.span

    def expected(self) -> Tensor:
        """The output [N, H D] of PlainAttention for the queries, in float32 on the host."""
        reference = replace(self._case, device=torch.device("cpu"), dtype=torch.float32)
        return self.run(PlainAttention(), reference)

    def run(self, kernel: Kernel, case: AttentionShape | None = None) -> Tensor:
        """The output [N, H D] of a kernel for the queries."""
        return self.placed(case or self._case).attend(kernel)[0]

    def num_buffers(self, num_bytes: int) -> int:
        """How many buffers of such a layer have used slots of `num_bytes`."""
        return -(-num_bytes // (self._num_used * self._kept.shape[1] * self._case.dtype.itemsize))

    def placed(self, case: AttentionShape, others: Sequence[Tensor] = ()) -> "DeviceInputs":
        """The same numbers on the device and in the dtype of `case`, for the last layer; `others`
        are the buffers of those before it."""
        B, T = self._positions_BT.shape
        device, dtype = case.device, case.dtype
        scratch = torch.zeros(
            B * T * sum(self._sizes.widths(mirrored=False)), device=device, dtype=dtype
        )
        work = Workspace(self._sizes, scratch, B, T, mirrored=False)
        work.qkv[:, : self._query.shape[1]] = self._query.to(self._case.dtype).to(device, dtype)
        kept = self._kept.to(self._case.dtype).to(device, dtype)  # rounded as in the cache
        cache = JoinedCache(B, self._span, [*others, kept])
        view = cache.view(B, self._span, 0, self._sizes)
        branches = self._branches and Branches(*(part.to(device) for part in self._branches))
        positions_BT = self._positions_BT.to(device)
        inputs = AttentionInputs(positions_BT, view, self._sizes, dtype, case.window, branches)
        return DeviceInputs(work, inputs)


class DeviceInputs(NamedTuple):
    """Inputs on the device of the kernel."""

    work: Workspace
    inputs: AttentionInputs

    def attend(self, kernel: Kernel) -> Results:
        """Run forward after forward, each with its metadata; the last output [N, H D]."""
        for i, kv in enumerate(self.inputs.view.layers):
            if i % NUM_LAYERS == 0:
                metadata = kernel.build_metadata(self.inputs)
            kernel.attend(self.work, kv, metadata)
        return (self.work.joined,)


def place_all(inputs: Sequence[Inputs], case: AttentionShape, num_bytes: int) -> list[DeviceInputs]:
    """The inputs on the device, over so many layers that the used slots of each have `num_bytes`;
    over one layer if that is 0.

    With more bytes than the L2 cache has, each layer is read from memory, as in decoding. All
    inputs have equally many layers, because their seconds are added. They share the memory of all
    layers but the last, whose output is compared.
    """
    counts = [drawn.num_buffers(num_bytes) for drawn in inputs]
    num_others = rounded_up(max(counts), NUM_LAYERS) - 1 if num_bytes else 0
    num_slots = max(drawn.num_slots * count for drawn, count in zip(inputs, counts, strict=True))
    width = 2 * case.kv_heads * case.head_size
    shared = torch.randn(num_slots, width, device=case.device, dtype=case.dtype)
    return [
        drawn.placed(
            case, list(islice(cycle(torch.split(shared, drawn.num_slots)[:count]), num_others))
        )
        for drawn, count in zip(inputs, counts, strict=True)
    ]
