"""Peaks of torch's CUDA allocator, and CUDA's own name for a device."""

from typing import NamedTuple

import torch


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
