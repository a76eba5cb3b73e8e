"""Compiles our kernels for GPUs that are absent, with what a launch there would pass.

A program, since a process that interprets kernels cannot compile them. It calls the operations with
tensors on the host; in place of a launch, the kernel is compiled for the arguments of that launch.
"""

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from specbench.forward.kernels import layer_steps, sampling, slot_attention


class Card(NamedTuple):
    """torch's properties of a card, and the most shared memory of a program there, in bytes."""

    name: str
    major: int
    multi_processor_count: int
    shared_memory_per_multiprocessor: int
    max_shared: int


# By compute capability. Source: CUDA programming guide, technical specifications; data sheets.
CARDS = {
    75: Card("T4", 7, 40, 64 << 10, 64 << 10),
    80: Card("A100", 8, 108, 164 << 10, 163 << 10),
    89: Card("L4", 8, 58, 100 << 10, 99 << 10),
    90: Card("H100", 9, 132, 228 << 10, 227 << 10),
    100: Card("B200", 10, 148, 228 << 10, 227 << 10),
    120: Card("RTX 5090", 12, 170, 100 << 10, 99 << 10),
}
HEADS = 8  # of keys and values


class FakeDriver(NamedTuple):
    """Triton's driver of a card with this compute capability, which numbers its device as well."""

    capability: int

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, _: int) -> int:
        return 0


def attend(
    dtype: torch.dtype,
    *,
    group: int = 4,
    head: int = 128,
    T: int = 16,
    is_tree: bool = False,
    window: int | None = None,
) -> None:
    """Attention of T tokens and `group` query heads per head of keys over 4,096 slots."""
    kv, num_slots = HEADS * head, 4096
    positions_BT = torch.zeros(1, T, dtype=torch.long)
    branches = positions_BT[:, 0], torch.ones(1, T, T, dtype=torch.bool), positions_BT
    slot_attention.attend(
        torch.zeros(T, group * kv, dtype=dtype),
        torch.zeros(T, (group + 2) * kv, dtype=dtype),
        torch.zeros(num_slots, 2 * kv, dtype=dtype),
        positions_BT[:, 0],
        positions_BT,
        head,
        num_slots,
        window,
        *(branches if is_tree else (None, None, None)),
    )


def run_other_kernels(dtype: torch.dtype) -> None:
    """Rotary embedding, gate, draws and top-p, as for an 8B with a vocabulary of 262,144."""
    places = torch.zeros(2, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long)
    slots_N = places[1].flatten()
    for head_norm in (None, torch.zeros(40 * 128, dtype=dtype)):
        layer_steps.turn_and_keep(
            torch.zeros(10, 48 * 128, dtype=dtype),
            torch.zeros(64, 16 * 128, dtype=dtype),
            torch.zeros(64, 2, 128, dtype=dtype),
            head_norm,
            *(slots_N, slots_N, 32, 128, 1e-6),
        )
    layer_steps.gate(torch.zeros(10, 28672, dtype=dtype))
    logits_BTV = torch.zeros(2, 5, 262_144)
    sampling.nucleus(logits_BTV[0], logits_BTV[0], 0.9)
    sampling.race(logits_BTV.to(dtype), *places, 0, 0.7)
    sampling.race(logits_BTV, *places, 0, None)
    sampling.uniform(*places, 0, None, 4)
    sampling.uniform(*places, 0, places[1][0], 4)
    sampling.exponential(*places, 0, 262_144)


# 64 queries fill the largest program: more tokens only need more programs.
WORKS: dict[str, Callable[[torch.dtype], None]] = {
    "one token": partial(attend, T=1),
    "small tree": partial(attend, T=5, is_tree=True),
    "no groups": partial(attend, group=1, head=80, T=5, window=100),
    "chain": attend,
    "tree": partial(attend, is_tree=True, window=4096),
    "wide chain": partial(attend, head=256),
    "wide tree": partial(attend, head=256, is_tree=True, window=4096),
    "others": run_other_kernels,
}


class Launch(NamedTuple):
    """A kernel as compiled for a launch, with its bytes of code and of shared memory."""

    capability: int
    kernel: str
    code: int
    shared: int
    num_programs: int
    was_compiled_before: bool  # to measure its shared memory


def main(dtype: torch.dtype, works: dict[str, Sequence[str]]) -> None:
    """Print the launches of the named works, by compute capability."""
    run, measured = JITFunction.run, set()

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        compiled = run(kernel, *args, grid=grid, warmup=True, **named)
        if warmup:
            measured.add(compiled.hash)
        else:
            launch = Launch(
                driver.active.capability,
                kernel.__name__,
                len(compiled.asm["cubin"]),
                compiled.metadata.shared,
                prod(grid),
                compiled.hash in measured,
            )
            print(json.dumps(launch))
        return compiled

    JITFunction.run = compile_only
    for capability, names in works.items():
        driver.set_active(FakeDriver(int(capability)))
        card = CARDS[int(capability)]
        torch.cuda.get_device_properties = lambda _, card=card: card
        slot_attention.program_sizes.cache_clear()
        for name in names or WORKS:
            WORKS[name](dtype)


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(getattr(torch, sys.argv[1]), json.loads(sys.argv[2]))
