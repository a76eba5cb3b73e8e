import mmap
import threading
from collections.abc import Callable

import psutil
import pytest

from specbench.probes import host
from specbench.probes.host import (
    HostProbe,
    cgroup_available_bytes,
    host_available_bytes,
    host_used_bytes,
    process_used_bytes,
)

BALLAST_BYTES = 256 * 2**20
# Memory that a test process may take or free meanwhile; a host that is short of memory takes
# the pages of libraries back.
TOLERANCE_BYTES = 96 * 2**20
PATIENCE_S = 300.0  # a thread that never runs would hang the test


class Readings:
    """Counts the readings of a probe's thread, so that a test can wait for a busy machine."""

    def __init__(self, read: Callable[[], tuple[int, int]]) -> None:
        self._read = read
        self._num_begun = 0
        self._num_done = 0
        self._changed = threading.Condition()

    def __call__(self) -> tuple[int, int]:
        with self._changed:
            self._num_begun += 1
        reading = self._read()
        with self._changed:
            self._num_done += 1
            self._changed.notify_all()
        return reading

    def wait(self) -> None:
        """Wait for a reading that begins after now."""
        with self._changed:
            next_one = self._num_begun + 1
            assert self._changed.wait_for(lambda: self._num_done >= next_one, PATIENCE_S)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    readings = Readings(host._read)
    monkeypatch.setattr(host, "_read", readings)
    return readings


def hold_ballast(readings: Readings) -> None:
    # A separate mapping: the heap may hold resident free memory that would serve this size.
    with mmap.mmap(-1, BALLAST_BYTES) as ballast:
        for page in range(0, BALLAST_BYTES, mmap.PAGESIZE):
            ballast[page] = 1
        readings.wait()


def test_the_peak_includes_memory_freed_before_the_end(readings):
    probe = HostProbe(interval_s=0.002)
    before = process_used_bytes()

    probe.start()
    hold_ballast(readings)
    sample = probe.stop()

    assert sample.num_samples >= 3  # at the start, while it was held, and at the end
    assert sample.process_peak_bytes > before + BALLAST_BYTES - TOLERANCE_BYTES
    # Not all of a process is the host's loss: pages of files can be had without swapping.
    assert sample.host_peak_bytes >= BALLAST_BYTES


def test_restarting_the_host_probe_resets_its_peak(readings):
    probe = HostProbe(interval_s=0.002)
    probe.start()
    hold_ballast(readings)
    first = probe.stop()

    probe.start()
    second = probe.stop()

    assert second.process_peak_bytes < first.process_peak_bytes - BALLAST_BYTES + TOLERANCE_BYTES


def test_each_peak_is_the_maximum_of_its_own_process(monkeypatch):
    seen = iter([(10, 400), (30, 200)])  # at the start and at the end
    monkeypatch.setattr(host, "_read", lambda: next(seen))
    probe = HostProbe(interval_s=3_600)
    probe.start()
    assert probe.stop() == (2, 30, 400)


def test_the_thread_ends_with_the_sample():
    probe = HostProbe()
    probe.start()
    probe.stop()

    assert not [t for t in threading.enumerate() if t.name == "specbench-sampler"]


def test_used_process_and_host_memory_exceed_a_mebibyte():
    assert process_used_bytes() > 2**20
    assert host_used_bytes() > 2**20


def test_used_and_available_host_memory_sum_to_the_total(monkeypatch):
    at_once = psutil.virtual_memory()  # other processes take and give between two readings
    monkeypatch.setattr(psutil, "virtual_memory", lambda: at_once)
    assert host_used_bytes() + host_available_bytes() == at_once.total
    assert host_available_bytes() == at_once.available


def test_available_cgroup_memory_is_the_rest_of_its_limit(tmp_path):
    path = tmp_path / "own"

    def write(folder, **files):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name.replace("__", ".")).write_text(f"{text}\n")

    path.write_text("0::/a/b\n")
    assert cgroup_available_bytes(tmp_path, path) is None
    write("a/b", memory__max="max", memory__current=5)
    assert cgroup_available_bytes(tmp_path, path) is None
    write("a", memory__max=1000, memory__current=700, memory__stat="anon 9\ninactive_file 200")
    assert cgroup_available_bytes(tmp_path, path) == 500  # the limit above holds below
    write("a/b", memory__max=300, memory__current=400)
    assert cgroup_available_bytes(tmp_path, path) == 0

    path.write_text("9:name=systemd:/\n4:memory:/of/the/host\n0::/\n")  # a container's root
    write("memory", memory__limit_in_bytes=900, memory__usage_in_bytes=100)
    assert cgroup_available_bytes(tmp_path, path) == 800
