"""Attention and matrix products of an 8B's shapes alone, each against what memory could do."""

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_suite.autotuning import make_timing
from benchmarks.gpu_suite.machine import Json, Machine, in_a_line
from benchmarks.gpu_suite.models import make_model, shape
from benchmarks.gpu_suite.timing import read_bandwidth
from specbench.footprint import Sizes
from specbench.forward.attention.candidates import KERNELS
from specbench.forward.attention.implementations import AttentionInputs, AttentionShape, Kernel
from specbench.forward.autotune import Timing
from specbench.forward.fused_weights import FusedWeights, fuse
from specbench.forward.workspace import JoinedCache, Workspace

LENGTHS = {256: 200, 4096: 2100, 32_768: 32_000}  # tokens before the new ones, by bucket
NEW_TOKENS = (1, 5, 9, 33)
ROWS = (1, 4, 16)
PRODUCT_TOKENS = tuple(range(1, 10))
# Layers in turn, so that no cache of the device holds what the next call reads.
CACHE_BYTES, MOST_LAYERS = 256 * 2**20, 64
REPEATS = 5
MOST_S = 30.0  # of one implementation, in all


@torch.inference_mode()
def attention_table(machine: Machine) -> Json:
    """Microseconds a layer of each implementation, by new tokens, bucket and rows, chains."""
    case = _case(machine)
    timing, bytes_per_s = make_timing(machine), read_bandwidth(machine)
    refused = {
        kernel.name: reason for kernel in KERNELS if (reason := kernel.unsupported_reason(case))
    }
    kernels = [kernel for kernel in KERNELS if kernel.name not in refused]
    found: list[Json] = []
    left_out, spent = [], _Spent()
    for span, length in ({64: 40} if machine.small else LENGTHS).items():
        for num_rows in (1, 2) if machine.small else ROWS:
            for num_tokens in (1, 5) if machine.small else NEW_TOKENS:
                name = f"T={num_tokens}, span {span}, {num_rows} rows"
                if not machine.has_time():
                    left_out.append(name)
                    continue
                shapes = _Shapes(case, num_rows, num_tokens, length, span)
                cells = {kernel.name: spent.seconds(kernel, shapes, timing) for kernel in kernels}
                found.append(
                    {
                        "num_tokens": num_tokens,
                        "span": span,
                        "num_rows": num_rows,
                        "read_bytes": shapes.read_bytes,
                        "cells": cells,
                    }
                )
    names = [kernel.name for kernel in kernels]
    columns = ["T", "span", "rows", *(f"{name}, us" for name in names), "best, of read bandwidth"]
    rows = [
        [
            one["num_tokens"],
            one["span"],
            one["num_rows"],
            *(_us(one["cells"][name]) for name in names),
            _best_share(one, bytes_per_s),
        ]
        for one in found
    ]
    return {
        "read_bytes_per_s": bytes_per_s,
        "refused": refused,
        "measured": found,
        "left_out_for_time": left_out,
        "table": {"columns": columns, "rows": rows},
    }


@torch.inference_mode()
def product_table(machine: Machine) -> Json:
    """Each matrix of a layer and the head, over 1 to 9 tokens: microseconds, and the share of
    read bandwidth at which its weights come in."""
    config = shape("llama-8b", machine)
    config.num_hidden_layers = machine.pick(8, 2)
    model = make_model(config, torch.bfloat16, machine.device)
    weights = fuse(model, mirrored=not machine.is_cuda)
    timing, bytes_per_s = make_timing(machine), read_bandwidth(machine)
    found = {
        name: {
            num_tokens: _product_s(matrices, num_tokens, timing)
            for num_tokens in PRODUCT_TOKENS
            if machine.has_time()
        }
        for name, matrices in _matrices(weights).items()
    }
    rows = []
    for name, matrices in _matrices(weights).items():
        shares = [matrices[0].nbytes / bytes_per_s / seconds for seconds in found[name].values()]
        shape_ = "x".join(map(str, matrices[0].shape))
        rows.append([name, shape_, *(round(100 * share, 1) for share in shares)])
        rows[-1] += [None] * (len(PRODUCT_TOKENS) - len(shares))
    columns = ["% of read bandwidth", "shape", *(f"{n} tokens" for n in PRODUCT_TOKENS)]
    return {
        "read_bytes_per_s": bytes_per_s,
        "product_s": found,
        "left_out_for_time": [
            f"{name}, {num_tokens} tokens"
            for name, of_matrix in found.items()
            for num_tokens in PRODUCT_TOKENS
            if num_tokens not in of_matrix
        ],
        "table": {"columns": columns, "rows": rows},
    }


class _Shapes:
    """Queries, layers of keys and values, and what is seen, of one kind of round."""

    def __init__(
        self, case: AttentionShape, num_rows: int, num_tokens: int, length: int, span: int
    ) -> None:
        sizes = Sizes(
            hidden=1,
            query_heads=case.query_heads,
            kv_heads=case.kv_heads,
            head=case.head_size,
            mlp=1,
        )
        drawn: dict[str, Any] = {"device": case.device, "dtype": case.dtype}
        width = 2 * case.kv_heads * case.head_size
        nbytes = num_rows * span * width * case.dtype.itemsize
        most = MOST_LAYERS if case.device.type == "cuda" else 2
        layers = [
            torch.randn(num_rows * span, width, **drawn)
            for _ in range(min(-(-CACHE_BYTES // nbytes), most))
        ]
        cache = JoinedCache(num_rows, span, layers)
        num_elements = num_rows * num_tokens * sum(sizes.widths(mirrored=False))
        scratch = torch.randn(num_elements, **drawn)
        self._work = Workspace(sizes, scratch, num_rows, num_tokens, mirrored=False)
        self._view = cache.view(num_rows, span, 0, sizes)
        at_T = torch.arange(length, length + num_tokens, device=case.device)
        self._inputs = AttentionInputs(
            at_T.repeat(num_rows, 1), self._view, sizes, case.dtype, case.window, None
        )
        self.read_bytes = num_rows * (length + num_tokens) * width * case.dtype.itemsize

    def seconds(self, kernel: Kernel, timing: Timing) -> float | str:
        """Of one layer; what it says where it cannot."""
        try:
            metadata = kernel.build_metadata(self._inputs)

            def run() -> None:
                for kv in self._view.layers:
                    kernel.attend(self._work, kv, metadata)

            return _seconds(run, timing) / len(self._view.layers)
        except Exception as error:
            return in_a_line(error)


class _Spent:
    """Leaves out what took its time already: one may be compiled anew for every shape."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def seconds(self, kernel: Kernel, shapes: _Shapes, timing: Timing) -> float | str:
        if self._seconds[kernel.name] > MOST_S:
            return f"it took more than {MOST_S:g} s for the shapes before"
        began_s = time.monotonic()
        cell = shapes.seconds(kernel, timing)
        self._seconds[kernel.name] += time.monotonic() - began_s
        return cell


def _case(machine: Machine) -> AttentionShape:
    config = shape("llama-8b", machine)
    return AttentionShape(
        device=machine.device,
        dtype=torch.bfloat16,
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        window=None,
        is_tree=False,
    )


def _seconds(run: Callable[[], object], timing: Timing) -> float:
    """Median, replayed where rounds are captured."""
    work = run if timing.captured is None else timing.captured(run)
    work()
    return median(timing.seconds(work) for _ in range(REPEATS))


def _us(cell: float | str) -> float | None:
    return None if isinstance(cell, str) else cell * 1e6


def _best_share(one: Json, bytes_per_s: float) -> float | None:
    taken = [cell for cell in one["cells"].values() if not isinstance(cell, str)]
    return one["read_bytes"] / bytes_per_s / min(taken) if taken else None


def _matrices(weights: FusedWeights) -> dict[str, list[torch.Tensor]]:
    """By name, of all layers."""
    layers = weights.layers
    return {
        "queries, keys, values": [layer.qkv for layer in layers],
        "output": [layer.output for layer in layers],
        "gate and up": [layer.gate_up for layer in layers],
        "down": [layer.down for layer in layers],
        "head": [weights.head],
    }


def _product_s(matrices: list[torch.Tensor], num_tokens: int, timing: Timing) -> float:
    first = matrices[0]
    x = torch.randn(num_tokens, first.shape[0], dtype=first.dtype, device=first.device)
    out = torch.empty(num_tokens, first.shape[1], dtype=first.dtype, device=first.device)

    def run() -> None:
        for matrix in matrices:
            torch.mm(x, matrix, out=out)

    return _seconds(run, timing) / len(matrices)
