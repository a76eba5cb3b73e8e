import mmap
import threading
import time

import psutil

from specbench.probes.host import (
    HostProbe,
    host_available_bytes,
    host_used_bytes,
    process_used_bytes,
)

BALLAST_BYTES = 64 * 2**20
TOLERANCE_BYTES = 16 * 2**20  # what else a test process may take or give back meanwhile


def hold_ballast() -> None:
    # A mapping of its own: the heap may hold resident free memory that would serve this size.
    with mmap.mmap(-1, BALLAST_BYTES) as ballast:
        for page in range(0, BALLAST_BYTES, mmap.PAGESIZE):
            ballast[page] = 1
        time.sleep(0.05)


def test_the_peak_includes_memory_that_is_gone_at_the_end():
    probe = HostProbe(interval_s=0.002)
    before = process_used_bytes()

    probe.start()
    hold_ballast()
    sample = probe.stop()

    assert sample.num_samples >= 2
    assert sample.process_peak_bytes > before + BALLAST_BYTES - TOLERANCE_BYTES
    assert sample.host_peak_bytes >= sample.process_peak_bytes - TOLERANCE_BYTES


def test_a_new_start_forgets_the_peak_before_it():
    probe = HostProbe(interval_s=0.002)
    probe.start()
    hold_ballast()
    first = probe.stop()

    probe.start()
    second = probe.stop()

    assert second.process_peak_bytes < first.process_peak_bytes - BALLAST_BYTES + TOLERANCE_BYTES


def test_the_thread_ends_with_the_sample():
    probe = HostProbe()
    probe.start()
    probe.stop()

    assert not [t for t in threading.enumerate() if t.name == "specbench-sampler"]


def test_memory_in_use_now_is_never_nothing():
    assert process_used_bytes() > 2**20
    assert host_used_bytes() > 2**20
    total = psutil.virtual_memory().total
    assert abs(host_used_bytes() + host_available_bytes() - total) < 2**28  # read one by one
