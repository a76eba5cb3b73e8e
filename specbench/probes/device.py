"""Torch devices: the one that a run uses, memory peaks, copy bandwidth, and calls by the host."""

import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from specbench.errors import UsageError
from specbench.probes.gpu import GpuFacts, open_probe
from specbench.settings.words import parse_device


class AllocatorPeaks(NamedTuple):
    """Peaks since the last reset; None on a device without torch's CUDA allocator."""

    allocated_bytes: int | None
    reserved_bytes: int | None


def reset_allocator_peaks(device: str) -> None:
    """Reset the peaks to the memory that is in use now."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def allocator_peaks(device: str) -> AllocatorPeaks:
    """Peaks of the memory of tensors, and of the memory that the allocator reserved."""
    if torch.device(device).type != "cuda":
        return AllocatorPeaks(None, None)
    return AllocatorPeaks(
        torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    )


def cuda_facts(device: torch.device) -> GpuFacts:
    """What torch reports about a CUDA device; nothing about any other device."""
    if device.type != "cuda":
        return GpuFacts()
    reported = torch.cuda.get_device_properties(device)
    return GpuFacts(
        name=reported.name,
        memory_bytes=reported.total_memory,
        compute_capability=(reported.major, reported.minor),
        uuid=str(reported.uuid),
    )


def find_device(name: str) -> torch.device:
    """The torch device of this name; `auto` is the first GPU, or else the CPU.

    UsageError if the device does not exist, or is a GPU that torch cannot use.
    """
    if name == "cpu":
        return torch.device("cpu")
    has_cuda = torch.cuda.is_available()
    if name.startswith(("auto", "cuda")) and not has_cuda and (reason := _unusable_gpu_reason()):
        raise UsageError(f"--device {name}: {reason}, or measure on the CPU with --device cpu")
    if name == "auto" and not has_cuda:
        return torch.device("cpu")
    index = int(parse_device(name).partition(":")[2] or 0)
    count = torch.cuda.device_count()
    if index >= count:
        raise UsageError(f"--device {name}: this machine has {count} CUDA devices; try cpu")
    device = torch.device("cuda", index)
    if reason := _missing_code_reason(device):
        raise UsageError(f"--device {name}: {reason}, or measure on the CPU with --device cpu")
    return device


def open_device(name: str) -> torch.device:
    """The device that `find_device` finds; a GPU becomes the current one of this process.

    Events, streams, graphs and Triton kernels use the current GPU.
    """
    device = find_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


# The oldest NVIDIA driver for each CUDA version (CUDA compatibility guide).
_DRIVERS = {"12": 525, "13": 580}


def _unusable_gpu_reason() -> str | None:
    """The reason why torch cannot use the GPU that the driver reports; None if it reports none."""
    gpu = open_probe("cuda:0").gpu_facts()
    if gpu.name is None:
        return None
    built = torch.version.cuda
    needed = _DRIVERS.get((built or "").partition(".")[0])
    needs = f", which needs driver {needed} or newer" if needed else ""
    return (
        f"{gpu.name} is here with driver {gpu.driver or 'unknown'}, and torch {torch.__version__} "
        f"cannot use it: it is built {f'for CUDA {built}{needs}' if built else 'without CUDA'}; "
        "install a build of torch for this driver"
    )


# Below it, PyTorch's builds for CUDA 13 have no code for a GPU, but those for CUDA 12.6 do.
_OLDEST_WITH_CUDA_13 = (7, 5)


def _missing_code_reason(device: torch.device) -> str | None:
    """The reason why torch's build cannot run on this GPU; None if it can, or if it is not built
    for CUDA."""
    built = torch.cuda.get_arch_list()
    if not any(map(_ARCH.fullmatch, built)):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says the same in many lines
        gpu = cuda_facts(device)
    major, minor = capability = gpu.compute_capability or (0, 0)
    if any(_runs_on(arch, capability) for arch in built):
        return None
    newer = f"one for a newer CUDA than {torch.version.cuda}"
    return (
        f"{gpu.name} has compute capability {major}.{minor}, and torch {torch.__version__} has no "
        f"code for it, only for {', '.join(built)}; install a build with sm_{major}{minor}, such "
        f"as {'that for CUDA 12.6' if capability < _OLDEST_WITH_CUDA_13 else newer}"
    )


_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def _runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether code for an architecture, such as `sm_86` or `compute_90`, runs on a GPU.

    Binaries run on the same major version from their minor version on, PTX on every newer version.
    With the suffix `a` both run on one version only, and PTX with `f` runs as binaries do. Source:
    NVIDIA's CUDA programming guide, compute capabilities.
    """
    if (match := _ARCH.fullmatch(arch)) is None:
        return False
    kind, suffix, built = match[1], match[4], (int(match[2]), int(match[3]))
    if suffix == "a":
        return built == capability
    return built <= capability and (built[0] == capability[0] or kind + suffix == "compute")


NUM_BYTES = {"cuda": 512 * 2**20, "cpu": 64 * 2**20}
REPEATS = 8


def measure_copy_bandwidth(
    device: torch.device, *, num_bytes: int | None = None, repeats: int = REPEATS
) -> float:
    """Bytes read + written per second, by the fastest of `repeats` copies of `num_bytes`.

    It needs twice `num_bytes` of memory, and frees it. A copy that fits into a cache measures the
    cache. On the CPU, all of torch's threads copy.
    """
    size = num_bytes or NUM_BYTES[device.type]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    destination = source.clone()  # pages are mapped now, not during the timed copy
    copies_s = _cuda_copies_s if device.type == "cuda" else _host_copies_s
    seconds = min(copies_s(source, destination, repeats))
    del source, destination
    if device.type == "cuda":
        torch.cuda.empty_cache()  # otherwise the run's reserved memory would include them
    return 2 * size / seconds


@cache
def copy_bandwidth(device: torch.device, num_threads: int) -> float:  # noqa: ARG001
    """The copy bandwidth, measured once per process for each number of torch's threads."""
    return measure_copy_bandwidth(device)


def _host_copies_s(source: Tensor, destination: Tensor, repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        began = time.perf_counter()
        destination.copy_(source)
        yield time.perf_counter() - began


def _cuda_copies_s(source: Tensor, destination: Tensor, repeats: int) -> list[float]:
    """Seconds of copies that are queued after another; on an idle GPU their launch would count."""
    events = [torch.Event(source.device, enable_timing=True) for _ in range(repeats + 1)]
    for event in events:
        destination.copy_(source)
        event.record()
    events[-1].synchronize()
    return [began.elapsed_time(ended) / 1000 for began, ended in pairwise(events)]


# Calls of the CUDA runtime (cuda...) and the driver (cu..., which Triton uses) by their names in
# the profiler, some of which have suffixes (ExC, _v11060). Memory copies and sets are not kernels.
# Torch ends a blocking copy with a wait, which is counted.
_KERNELS = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchKernel")
_GRAPHS = ("cudaGraphLaunch", "cuGraphLaunch")
_WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
)


class HostCalls(NamedTuple):
    """Counts of calls by the host."""

    launches: int  # of single kernels
    graph_launches: int
    syncs: int  # waits for the device


def count_host_calls(work: Callable[[], object]) -> HostCalls | None:
    """Run `work` under the profiler and count the host's calls.

    None if there was no launch: no GPU was used, or the driver does not allow profiling. The count
    includes the profiler's own wait at the end, so compare two runs of different lengths.
    """
    gpu = (ProfilerActivity.CUDA,) if torch.cuda.is_available() else ()
    # Without acc_events, torch 2.11 warns about profiler cycles that do not exist.
    with profile(activities=(ProfilerActivity.CPU, *gpu), acc_events=True) as profiled:
        work()
    calls = calls_of(event.name for event in profiled.events())
    return calls if calls.launches + calls.graph_launches else None


def calls_of(names: Iterable[str]) -> HostCalls:
    """The counts of calls, from the names of a profile's events."""
    calls = tuple(names)
    return HostCalls(
        launches=sum(name.startswith(_KERNELS) for name in calls),
        graph_launches=sum(name.startswith(_GRAPHS) for name in calls),
        syncs=sum(name.startswith(_WAITS) for name in calls),
    )
