"""The host: memory of this process, of the host and of the container (cgroup), and load by other
processes.

Load has the CPU time of other processes, stolen time, and the load average. It also has the limit
of the CPU's clock, because the current clock of an idle CPU is meaningless.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Generic, NamedTuple, TypeVar

import psutil

from specbench.records import Kind, Reason

T = TypeVar("T")


class PeriodicReader(Generic[T]):
    """Calls `read` in a thread: immediately, then every `interval_s`, and once more at the end."""

    def __init__(self, read: Callable[[], T], interval_s: float) -> None:
        self._read = read
        self._interval_s = interval_s
        self._samples: list[T] = []
        self._stopping = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start a new series of samples; those of an earlier start without a stop are dropped."""
        self.stop()
        self._stopping.clear()
        self._thread = Thread(target=self._run, name="specbench-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> list[T]:
        """Stop the thread and return its samples, oldest first; empty without a start."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None
        samples, self._samples = self._samples, []
        return samples

    def _run(self) -> None:
        self._samples.append(self._read())
        while not self._stopping.wait(self._interval_s):
            self._samples.append(self._read())
        self._samples.append(self._read())


INTERVAL_S = 0.02
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class HostSample(NamedTuple):
    """Peaks over the samples between start and stop."""

    num_samples: int
    process_peak_bytes: int  # resident set of this process
    host_peak_bytes: int  # memory in use on the host, by all processes


class HostProbe:
    """Samples host memory while code runs; it may miss spikes shorter than the interval.

    Its thread uses CPU time, so do not use it during timed measurements.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._sampler = PeriodicReader(_read, interval_s)

    def start(self) -> None:
        """Start sampling; earlier peaks are dropped."""
        self._sampler.start()

    def stop(self) -> HostSample:
        """Stop sampling, and return the peaks since `start`, which must have been called."""
        readings = self._sampler.stop()
        process, host = zip(*readings, strict=True)
        return HostSample(len(readings), max(process), max(host))


def process_used_bytes() -> int:
    """The resident set size of this process now."""
    return psutil.Process().memory_info().rss


def host_used_bytes() -> int:
    """Memory in use on the host now: the part that is not available without swapping."""
    memory = psutil.virtual_memory()
    return memory.total - memory.available


def host_available_bytes() -> int:
    """Memory that this process can allocate now without swapping, also within its cgroup."""
    available = psutil.virtual_memory().available
    left = cgroup_available_bytes()
    return available if left is None else min(available, left)


def cgroup_available_bytes(root: Path = CGROUPS, memberships: Path = OWN_CGROUPS) -> int | None:
    """Memory below the limits of this process's cgroups and their parents; None without a limit.

    Inactive file pages count as free, because the kernel frees them before it kills a process.
    """
    free = map(_free_bytes, _cgroups(root, memberships))
    smallest = min((num_bytes for num_bytes in free if num_bytes is not None), default=None)
    return None if smallest is None else max(smallest, 0)


def _cgroups(root: Path, memberships: Path) -> Iterator[Path]:
    """The folders of this process's cgroups (version 2, and version 1's memory controller), each
    with its parents up to the root.

    In a container these may be paths on the host, of which only the root exists.
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


LOAD_S = 0.3
SPARE = 0.25  # of a core that other processes may use without a warning
STEAL = 0.02  # of the time
MOST_LOAD = 1.5  # per core, averaged over the last minute
LIMITED = 0.9  # share of a CPU's highest clock; a limit below it means power saving, or heat
CPUS = Path("/sys/devices/system/cpu")
_BUSIEST = 3  # processes that are named
_MAX_NAME = 20  # letters of a name


class HostLoad(NamedTuple):
    """The load of the host over a short time, without this process; CPU time in cores."""

    num_cores: int  # that this process may use
    others_cores: float  # used by other processes
    steal_share: float  # share of CPU time taken by other guests of the same machine
    load_average: float  # of the last minute, this process included
    busiest: tuple[tuple[str, float], ...] = ()  # names of other processes, with their cores
    clock_limit: tuple[int, int] | None = None  # MHz: the limit, the highest clock; None: unknown


def host_load(sleep: Callable[[float], None] = time.sleep) -> HostLoad:
    """Measure the load for `LOAD_S`. Processes whose names are not visible still count."""
    seconds_before = _process_seconds()
    before, own_before, began_s = psutil.cpu_times(), time.process_time(), time.monotonic()
    sleep(LOAD_S)
    after, own_s = psutil.cpu_times(), time.process_time() - own_before
    seconds = max(time.monotonic() - began_s, 1e-3)
    idle = ("idle", "iowait", "steal", "guest", "guest_nice")  # guests are in user time already
    busy_s = sum(getattr(after, n) - getattr(before, n) for n in after._fields if n not in idle)
    stolen_s = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    used = (
        (name, (cpu_s - seconds_before[pid][1]) / seconds)
        for pid, (name, cpu_s) in _process_seconds().items()
        if pid in seconds_before
    )
    busiest = sorted(
        (process for process in used if process[1] >= 0.05), key=lambda process: -process[1]
    )
    return HostLoad(
        num_cores=num_cores(),
        others_cores=min(max(0.0, busy_s - own_s) / seconds, psutil.cpu_count() or 1),
        steal_share=max(0.0, stolen_s) / (seconds * (psutil.cpu_count() or 1)),
        load_average=os.getloadavg()[0],
        busiest=tuple(busiest[:_BUSIEST]),
        clock_limit=clock_limit(CPUS),
    )


def clock_limit(cpus: Path) -> tuple[int, int] | None:
    """The lowest clock limit of any CPU and the highest clock it supports, in MHz."""
    limits = []
    for folder in cpus.glob("cpu[0-9]*/cpufreq"):
        try:
            limit, most = (
                int((folder / f"{name}_max_freq").read_text()) // 1000
                for name in ("scaling", "cpuinfo")
            )
        except (OSError, ValueError):  # of a core that was switched off
            continue
        if most > 0:
            limits.append((limit, most))
    return min(limits, key=lambda pair: pair[0] / pair[1], default=None)


def physical_cores(num_allowed: int) -> int:
    """The physical cores among `num_allowed` logical ones; two hyperthreads are one core."""
    return min(psutil.cpu_count(logical=False) or num_allowed, num_allowed)


def idle_cores(load: HostLoad) -> int:
    """Physical cores that this process may use and that other processes leave idle; at least 1."""
    num_physical = psutil.cpu_count(logical=False) or load.num_cores
    return max(1, min(load.num_cores, int(num_physical - load.others_cores + SPARE)))


def others_fact(load: HostLoad) -> Reason:
    """The cores that other processes use, and the names of the busiest."""
    return Kind.OTHER_PROCESSES(
        used=load.others_cores,
        cores=(load.num_cores, "core"),
        busiest=tuple(f"{name} {used:.1f}" for name, used in load.busiest),
    )


def busy_facts(load: HostLoad, num_needed: int, threads: int | None = None) -> tuple[Reason, ...]:
    """Signs of a load that would disturb a measurement on `num_needed` cores.

    `threads` is the number of computing threads, if --threads can change it.
    """
    facts = []
    if load.others_cores > max(0, load.num_cores - num_needed) + SPARE:
        facts.append(others_fact(load))
        if threads is not None and threads > (idle := idle_cores(load)):
            facts.append(Kind.THREADS_WAIT(threads=threads, fewer=idle))
    if load.steal_share > STEAL:
        facts.append(Kind.GUESTS(share=load.steal_share))
    if facts or load.load_average > MOST_LOAD * load.num_cores:
        facts.append(Kind.LOAD(load=load.load_average, cores=(load.num_cores, "core")))
    if load.clock_limit is not None and load.clock_limit[0] < LIMITED * load.clock_limit[1]:
        limit, most = load.clock_limit
        facts.append(Kind.CLOCKS_LIMITED(limit=limit / 1e3, most=most / 1e3))
    return tuple(facts)


def _process_seconds() -> dict[int, tuple[str, float]]:
    """The name and CPU seconds of each other process, by pid."""
    seconds = {}
    for process in psutil.process_iter(("name", "cpu_times")):
        times = process.info["cpu_times"]
        if times is not None and process.pid != os.getpid():
            name = "".join(c for c in process.info["name"] or "" if c.isprintable())
            seconds[process.pid] = name[:_MAX_NAME], times.user + times.system
    return seconds


def num_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not available on every system
        return os.cpu_count() or 1
