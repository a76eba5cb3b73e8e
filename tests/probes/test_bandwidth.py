import time

import torch

from specbench.probes.bandwidth import measure_copy_bandwidth

MIB = 2**20
CPU = torch.device("cpu")


def read_and_written_per_s(num_bytes: int) -> float:
    """A copy timed by hand, the best of eight."""
    source = torch.ones(num_bytes, dtype=torch.uint8)
    destination = source.clone()
    seconds = []
    for _ in range(8):
        began = time.perf_counter()
        destination[:] = source
        seconds.append(time.perf_counter() - began)
    return 2 * num_bytes / min(seconds)


def test_bytes_read_and_bytes_written_both_count():
    size = 16 * MIB
    pairs = [
        (measure_copy_bandwidth(CPU, num_bytes=size), read_and_written_per_s(size))
        for _ in range(5)
    ]

    # The best of interleaved tries; counting one side only would give 0.5.
    measured, by_hand = (max(side) for side in zip(*pairs, strict=True))
    assert 0.7 < measured / by_hand < 1.4
