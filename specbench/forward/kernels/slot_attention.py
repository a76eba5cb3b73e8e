"""Attention of a few new tokens over only the used slots of a row.

The used slots of a row are split over programs (split-KV), each for all query heads that share a
key/value head; a second kernel combines the parts. So a round of even one row uses the whole GPU,
and does not read the unused end of the bucket. Source: Dao et al. 2023, Flash-Decoding; the running
softmax is that of Milakov and Gimelshein 2018 (arXiv:1805.02867).

Shape suffixes: B rows, T new tokens of a row, N = B * T, Q query heads, H key/value heads,
G = Q / H, D head size, S slots, M slots of branches, P parts of a row.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.forward.kernels import ARITHMETIC

LAUNCHES = 2
_SMALLEST = 16  # side of a block in a product
_RESERVED_BYTES = 1024  # CUDA's own part of a program's shared memory
# Programs at once on a multiprocessor: one computes while another reads. Its 65,536 registers
# always suffice for two, of 128 threads with at most 255 registers each.
_MOST_RESIDENT = 2


# One compiled program for every T: the one that the autotuner tried is the one that runs.
@triton.jit(do_not_specialize=["T", "M", "P", "window"])
def _part(
    query, kept, first_slots, positions, base, seen, branch_positions, sums, maxima, totals,
    scale, query_stride, kept_stride, T, M, P, window,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr,
    QUERIES: tl.constexpr, SLOTS: tl.constexpr, IS_TREE: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // H
    head = tl.program_id(0) % H
    q = tl.program_id(1) * QUERIES + tl.arange(
        0, QUERIES
    )  # all heads of one token, then of the next
    token = q // G
    at = row * T + token
    is_query = token < T
    place = tl.load(positions + at, is_query, -1)
    d = tl.arange(0, PAD)
    is_d = d < D
    address = query + at.to(tl.int64)[:, None] * query_stride + (head * G + q % G)[:, None] * D
    x = tl.load(address + d, is_query[:, None] & is_d, 0.0)

    if IS_TREE:
        before = tl.load(base + row)
        used = before + M
    else:
        before = 0
        used = tl.max(tl.load(positions + row * T + tl.arange(0, QUERIES) % T), 0) + 1
        for t in range(QUERIES, T):
            used = tl.maximum(used, tl.load(positions + row * T + t) + 1)
    steps = tl.cdiv(tl.cdiv(used, SLOTS), P)
    begin = tl.program_id(2) * steps * SLOTS
    end = tl.minimum(begin + steps * SLOTS, used)

    highest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, PAD], tl.float32)
    keys = kept + tl.load(first_slots + row).to(tl.int64) * kept_stride + head * D
    for start in range(begin, end, SLOTS):
        s = start + tl.arange(0, SLOTS)
        is_slot = s < end
        slot_address = keys + s.to(tl.int64)[:, None] * kept_stride + d
        k = tl.load(slot_address, is_slot[:, None] & is_d, 0.0)
        v = tl.load(slot_address + H * D, is_slot[:, None] & is_d, 0.0)
        scores = tl.dot(x, tl.trans(k), input_precision="ieee") * scale
        if IS_TREE:
            node = s - before
            is_branch = (node >= 0) & is_slot
            mask_address = seen + at.to(tl.int64)[:, None] * M + node
            is_seen = tl.load(mask_address, is_query[:, None] & is_branch, 0) != 0
            is_seen = is_seen | (node < 0)
            slot_position = tl.load(branch_positions + row * M + node, is_branch, 0)
            slot_position = tl.where(is_branch, slot_position, s)
        else:
            is_seen = s <= place[:, None]
            slot_position = s
        if HAS_WINDOW:
            is_seen = is_seen & (slot_position > place[:, None] - window)
        scores = tl.where(is_seen & is_slot & is_query[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # no visible slot yet
        weights = tl.exp(scores - shift[:, None])
        faded = tl.exp(highest - shift)
        total = total * faded + tl.sum(weights, 1)
        summed = summed * faded[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = higher
    part = (at * H * G + head * G + q % G) * P + tl.program_id(2)
    tl.store(maxima + part, highest, is_query)
    tl.store(totals + part, total, is_query)
    tl.store(sums + part.to(tl.int64)[:, None] * D + d, summed, is_query[:, None] & is_d)


@triton.jit(do_not_specialize=["P"])
def _together(
    sums, maxima, totals, out, out_stride, P,
    Q: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = (token * Q + head) * P
    highest = float("-inf")
    for i in range(P):
        highest = tl.maximum(highest, tl.load(maxima + first + i))
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    d = tl.arange(0, PAD)
    summed = tl.zeros([PAD], tl.float32)
    total = 0.0
    for i in range(P):
        weight = tl.exp(tl.load(maxima + first + i) - shift)
        total += weight * tl.load(totals + first + i)
        summed += weight * tl.load(sums + (first + i) * D + d, d < D, 0.0)
    seen = tl.where(total > 0, total, 1.0)  # a token that attends to no slot gets zeros
    address = out + token * out_stride + head * D + d
    tl.store(address, (summed / seen).to(out.dtype.element_ty), d < D)


@cache
def program_sizes(
    device: torch.device,
    dtype: torch.dtype,
    query_stride: int,
    kept_stride: int,
    num_queries: int,
    **constants: int,
) -> tuple[int, int, int]:
    """The queries of a program, the slots of its step, and how many programs the device runs at
    once.

    They are those of the largest program, of at most `num_queries` queries, that fits into the
    shared memory of the device: kernels are compiled until one does.
    """
    card = torch.cuda.get_device_properties(device)
    if dtype.itemsize < 4 and card.major >= 8:
        slots, queries = 64, 64
    else:  # Triton multiplies these without tensor cores; larger blocks exceed the registers
        slots, queries = _SMALLEST, 64 if constants["PAD"] <= 128 else _SMALLEST
    queries = min(max(triton.next_power_of_2(num_queries), _SMALLEST), queries)
    branches = (torch.int64, torch.bool, torch.int64) if constants["IS_TREE"] else (None,) * 3
    while True:
        program = _part.warmup(
            dtype, dtype, torch.int64, torch.int64, *branches, *(torch.float32,) * 3,
            1.0, query_stride, kept_stride, 1, 1, 1, 1, QUERIES=queries, SLOTS=slots,
            **constants, **ARITHMETIC, grid=(1,),
        )  # fmt: skip
        resident = card.shared_memory_per_multiprocessor // (
            program.metadata.shared + _RESERVED_BYTES
        )
        if resident or slots == queries == _SMALLEST:
            return queries, slots, card.multi_processor_count * min(resident, _MOST_RESIDENT)
        if slots > _SMALLEST:
            slots //= 2
        else:
            queries //= 2


@torch.library.custom_op("specbench::slot_attention", mutates_args=("out_NW",))
def attend(
    out_NW: Tensor,
    query_NW: Tensor,
    kept_SW: Tensor,
    first_slots_B: Tensor,
    positions_BT: Tensor,
    head_size: int,
    span: int,
    window: int | None,
    base_B: Tensor | None,
    seen_BTM: Tensor | None,
    branch_positions_BM: Tensor | None,
) -> None:
    """Write the attention of T tokens of each row, queries [N, Q D], to `out` [N, Q D].

    `kept` [slots, 2 H D] has keys and values side by side; those of row b begin at
    `first_slots[b]`. A token attends to the slots up to its position, at most `window` of them. In
    a tree it attends to all slots before `base` and, of the M slots from there on, to those in
    `seen`, which have the positions `branch_positions`. `span`, the most slots that a row may have
    used, affects only the number of parts.
    """
    B, T = positions_BT.shape
    Q, H = out_NW.shape[1] // head_size, kept_SW.shape[1] // head_size // 2
    G = Q // H
    pad = max(triton.next_power_of_2(head_size), _SMALLEST)
    constants = {
        "H": H, "G": G, "D": head_size, "PAD": pad,
        "IS_TREE": seen_BTM is not None, "HAS_WINDOW": window is not None,
    }  # fmt: skip
    strides = query_NW.stride(0), kept_SW.stride(0)
    queries, slots, programs = program_sizes(
        kept_SW.device, kept_SW.dtype, *strides, G * T, **constants
    )
    blocks = triton.cdiv(G * T, queries)
    parts = max(min(programs // (B * H * blocks), triton.cdiv(span, slots)), 1)
    sums = out_NW.new_empty(B * T * Q * parts, head_size, dtype=torch.float32)
    maxima, totals = (out_NW.new_empty(B * T * Q * parts, dtype=torch.float32) for _ in range(2))
    _part[B * H, blocks, parts](
        query_NW, kept_SW, first_slots_B, positions_BT, base_B, seen_BTM, branch_positions_BM,
        sums, maxima, totals,
        head_size**-0.5, *strides, T, seen_BTM.shape[2] if seen_BTM is not None else 0, parts,
        window or 0, QUERIES=queries, SLOTS=slots, **constants, **ARITHMETIC,
    )  # fmt: skip
    _together[B * T, Q](
        sums, maxima, totals, out_NW, out_NW.stride(0), parts, Q=Q, D=head_size, PAD=pad,
        **ARITHMETIC,
    )  # fmt: skip


@attend.register_fake
def _(*_: object) -> None: ...
