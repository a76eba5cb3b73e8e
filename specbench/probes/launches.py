"""Calls of the host to a GPU while a piece of code runs: kernels, graphs, waits."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

# Calls of the CUDA runtime (cuda...) and of the driver (cu..., which Triton uses) as the
# profiler names them, some with more behind (ExC, _v11060). Memory copies and sets are not
# kernels; torch ends a copy that blocks with a wait, which is counted.
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
    """How often the host started a kernel by itself, started a graph, waited for the device."""

    launches: int
    graph_launches: int
    syncs: int


def count_host_calls(work: Callable[[], object]) -> HostCalls | None:
    """Run `work` under the profiler and count.

    None if nothing was started: no GPU took part, or the driver does not permit profiling. The
    profiler's own wait at the end is counted too: compare two runs of different length.
    """
    gpu = (ProfilerActivity.CUDA,) if torch.cuda.is_available() else ()
    # Without acc_events, torch 2.11 warns of profiler cycles that do not exist.
    with profile(activities=(ProfilerActivity.CPU, *gpu), acc_events=True) as profiled:
        work()
    calls = calls_of(event.name for event in profiled.events())
    return calls if calls.launches + calls.graph_launches else None


def calls_of(names: Iterable[str]) -> HostCalls:
    """Counts among the names of a profile's events."""
    calls = tuple(names)
    return HostCalls(
        launches=sum(name.startswith(_KERNELS) for name in calls),
        graph_launches=sum(name.startswith(_GRAPHS) for name in calls),
        syncs=sum(name.startswith(_WAITS) for name in calls),
    )
