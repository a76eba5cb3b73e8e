"""Memory of this process, of its host, and of the container (cgroup) that both are in."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from specbench.probes.sampler import PeriodicReader

INTERVAL_S = 0.02
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class HostSample(NamedTuple):
    """Peaks over the samples between start and stop."""

    num_samples: int
    process_peak_bytes: int  # resident set of this process
    host_peak_bytes: int  # memory in use on the host, by everyone


class HostProbe:
    """Watches host memory while code runs; a spike shorter than the interval can be missed.

    Its thread takes CPU time: use it around memory measurements, not around timed ones.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._sampler = PeriodicReader(_read, interval_s)

    def start(self) -> None:
        """Start over: earlier peaks are forgotten."""
        self._sampler.start()

    def stop(self) -> HostSample:
        """Peaks since `start`, which must have been called."""
        readings = self._sampler.stop()
        process, host = zip(*readings, strict=True)
        return HostSample(len(readings), max(process), max(host))


def process_used_bytes() -> int:
    """Resident set of this process now."""
    return psutil.Process().memory_info().rss


def host_used_bytes() -> int:
    """Memory in use on the host now: what no process could have without swapping."""
    memory = psutil.virtual_memory()
    return memory.total - memory.available


def host_available_bytes() -> int:
    """Memory that processes can still have now without swapping, on the host and in its cgroup."""
    available = psutil.virtual_memory().available
    left = cgroup_available_bytes()
    return available if left is None else min(available, left)


def cgroup_available_bytes(root: Path = CGROUPS, memberships: Path = OWN_CGROUPS) -> int | None:
    """Memory that the limits of this process's cgroups leave; None without a limit.

    The limits of all parent cgroups count as well. Inactive pages of files count as free: the
    kernel frees them before it kills a process.
    """
    free = map(_free_bytes, _cgroups(root, memberships))
    smallest = min((num_bytes for num_bytes in free if num_bytes is not None), default=None)
    return None if smallest is None else max(smallest, 0)


def _cgroups(root: Path, memberships: Path) -> Iterator[Path]:
    """Folders of version 2 and of version 1's memory controller, up to the root of each.

    In a container the paths may be those of the host, of which only the root is seen.
    """
    for line in _text(memberships).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "memory" not in controllers.split(","):
            continue
        top = root if number == "0" else root / "memory"
        folder = top / path.lstrip("/")
        yield from (parent for parent in (folder, *folder.parents) if parent.is_relative_to(top))


def _free_bytes(group: Path) -> int | None:
    for limit, used, files in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = _text(group / limit).strip(), _text(group / used).strip()
        if most.isdigit() and now.isdigit():  # version 2 writes "max" for no limit
            facts = dict(line.split() for line in _text(group / "memory.stat").splitlines())
            return int(most) - int(now) + int(facts.get(files, 0))
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _read() -> tuple[int, int]:
    return process_used_bytes(), host_used_bytes()
