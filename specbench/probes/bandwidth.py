"""How fast a device's memory really is: a large copy, timed on the spot."""

import time
from functools import cache

import torch
from torch import Tensor

NUM_BYTES = {"cuda": 512 * 2**20, "cpu": 64 * 2**20}
REPEATS = 8


def measure_copy_bandwidth(
    device: torch.device, *, num_bytes: int | None = None, repeats: int = REPEATS
) -> float:
    """Bytes read + written per second by the best of `repeats` copies of `num_bytes`.

    It takes twice `num_bytes` of memory and gives them back. A copy that fits a cache measures
    the cache; on a host as many threads copy as torch has.
    """
    size = num_bytes or NUM_BYTES[device.type]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    destination = source.clone()  # touched already: no page of it is mapped while time counts
    copy_s = _cuda_copy_s if device.type == "cuda" else _host_copy_s
    seconds = min(copy_s(source, destination) for _ in range(repeats))
    del source, destination
    if device.type == "cuda":
        torch.cuda.empty_cache()  # else the run's own reserved memory would include them
    return 2 * size / seconds


def copy_bandwidth(device: torch.device) -> float:
    """The copy bandwidth, measured once per process for each number of threads."""
    return _measured(device, torch.get_num_threads())


@cache
def _measured(device: torch.device, _num_threads: int) -> float:
    return measure_copy_bandwidth(device)


def _host_copy_s(source: Tensor, destination: Tensor) -> float:
    began = time.perf_counter()
    destination.copy_(source)
    return time.perf_counter() - began


def _cuda_copy_s(source: Tensor, destination: Tensor) -> float:
    began, ended = (torch.Event(source.device, enable_timing=True) for _ in range(2))
    began.record()
    destination.copy_(source)
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1000
