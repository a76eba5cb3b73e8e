"""What the device ran and how long, by torch's profiler; kernels by class."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_suite.machine import Machine

GAPS = "gaps"
OTHER = "other small kernels"  # elementwise ones of torch, whatever they are for
# Triton's kernels have the names of their functions (specbench/forward/kernels/).
_OURS = {
    "_part": "attention",
    "_together": "attention",
    "_turn_and_keep": "norms and rotary",
    "_gated": "norms and rotary",
    "_race": "sampling",
    "_winner": "sampling",
    "_histogram": "sampling",
    "_narrow": "sampling",
    "_keep": "sampling",
}
# The first that fits: attention is made of products, too.
_PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("fmha", "flash", "attention", "sdpa"),
    "products": (
        *("gemm", "gemv", "cutlass", "nvjet", "xmma", "splitk", "cublas", "dot_kernel"),
        *("addmm", "aten::mm", "bmm", "matmul"),
    ),
    "norms and rotary": ("norm", "silu", "rotary"),
    "sampling": ("argmax", "reduce_kernel", "softmax", "sort", "topk", "scan", "cumsum"),
    "copies": ("memcpy", "memset", "copy", "index", "gather", "scatter", "catarray", "::cat"),
}


class Ran(NamedTuple):
    """One kernel, one copy; of a CPU one operation, which stands in for it."""

    name: str
    seconds: float


def ran_in(machine: Machine, work: Callable[[], object]) -> list[Ran]:
    """All that `work` did on the device, in any order."""
    gpu = (ProfilerActivity.CUDA,) if machine.is_cuda else ()
    with profile(activities=(ProfilerActivity.CPU, *gpu), acc_events=True) as profiled:
        work()
        machine.synchronize()
    events: Any = profiled.events()
    if machine.is_cuda:
        return [
            Ran(event.name, event.time_range.elapsed_us() / 1e6)
            for event in events
            if event.device_type.name == "CUDA"
        ]
    return [
        Ran(event.name, event.self_cpu_time_total / 1e6)
        for event in events
        if event.name.startswith(("aten::", "specbench::"))
    ]


def kind_of(name: str) -> str:
    """The class of a kernel by its name."""
    if name in _OURS:
        return _OURS[name]
    lower = name.lower()
    return next(
        (kind for kind, parts in _PARTS.items() if any(part in lower for part in parts)), OTHER
    )


def by_kind(ran: Iterable[Ran], num_rounds: int) -> dict[str, float]:
    """Seconds a round, by class."""
    seconds: dict[str, float] = defaultdict(float)
    for one in ran:
        seconds[kind_of(one.name)] += one.seconds / num_rounds
    return dict(seconds)


def longest(ran: Iterable[Ran], num_rounds: int, most: int = 12) -> list[dict[str, Any]]:
    """The kernels that take the most of a round, with how often they run in it."""
    seconds: dict[str, float] = defaultdict(float)
    times: Counter[str] = Counter()
    for one in ran:
        seconds[one.name] += one.seconds / num_rounds
        times[one.name] += 1
    return [
        {
            "name": name[:160],
            "kind": kind_of(name),
            "times": times[name] / num_rounds,
            "seconds": own,
        }
        for name, own in sorted(seconds.items(), key=lambda item: -item[1])[:most]
    ]
