"""Devices as torch sees them: the one that a run takes, its name in CUDA, its allocator's peaks."""

from typing import NamedTuple

import torch

from specbench.errors import UsageError
from specbench.probes.nvml import open_probe


class AllocatorPeaks(NamedTuple):
    """Highest values since the last reset; None on a device without this allocator."""

    allocated_bytes: int | None
    reserved_bytes: int | None


def reset_allocator_peaks(device: str) -> None:
    """Forget the peaks so far: they start again from what is in use now."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def allocator_peaks(device: str) -> AllocatorPeaks:
    """Peaks of tensors' memory and of what the allocator took from the device."""
    if torch.device(device).type != "cuda":
        return AllocatorPeaks(None, None)
    return AllocatorPeaks(
        torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    )


def cuda_uuid(device: str) -> str | None:
    """UUID of a CUDA device as NVML writes it, less its `GPU-`; None on any other device."""
    if torch.device(device).type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def find_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one; UsageError for what is not there, and for a GPU that
    torch cannot use."""
    if name == "cpu":
        return torch.device("cpu")
    has_cuda = torch.cuda.is_available()
    if name.startswith(("auto", "cuda")) and not has_cuda and (reason := _unusable_gpu_reason()):
        raise UsageError(f"--device {name}: {reason}, or measure on the CPU with --device cpu")
    if name == "auto":
        return torch.device("cuda:0" if has_cuda else "cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise UsageError(f"--device {name!r}: allowed are auto, cpu, cuda and cuda:N")
    count = torch.cuda.device_count()
    if int(index or 0) >= count:
        raise UsageError(f"--device {name}: this machine has {count} CUDA devices; try cpu")
    return torch.device("cuda", int(index or 0))


# NVIDIA's minimal driver of a CUDA version (CUDA compatibility guide).
_DRIVERS = {"12": 525, "13": 580}


def _unusable_gpu_reason() -> str | None:
    """Why torch cannot use the GPU that the driver shows; None if it shows none."""
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
