"""The host: memory of this process, the host and its container (cgroup), and load by others.

Load is CPU time of other processes, stolen time, and load average. The limit of the CPU's clock is
also read, because the current clock of an idle CPU means nothing.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Generic, NamedTuple, TypeVar

import psutil

T = TypeVar("T")


class PeriodicReader(Generic[T]):
    """Calls `read` at once, every `interval_s` after that, and once more at the end."""

    def __init__(self, read: Callable[[], T], interval_s: float) -> None:
        self._read = read
        self._interval_s = interval_s
        self._samples: list[T] = []
        self._stopping = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start over; a start that was never stopped ends here and its samples are lost."""
        self.stop()
        self._stopping.clear()
        self._thread = Thread(target=self._run, name="specbench-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> list[T]:
        """End the thread and return its samples, oldest first; none without a start."""
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


LOAD_S = 0.3
SPARE = 0.25  # of a core that others may use before it is worth a word
STEAL = 0.02  # of the time
MOST_LOAD = 1.5  # per core, averaged over the last minute
LIMITED = 0.9  # of a CPU's highest clock: power saving, or heat
CPUS = Path("/sys/devices/system/cpu")
_BUSIEST = 3  # processes that are named
_NAME = 20  # letters of a name


class HostLoad(NamedTuple):
    """The host over a short while, this process left out; CPU time in cores."""

    num_cores: int  # that this process may use
    others_cores: float
    steal_share: float  # of the time, taken by other guests of the same machine
    load_average: float  # of the last minute, this process included
    busiest: tuple[tuple[str, float], ...] = ()  # other processes by name, and their cores
    clock_limit: tuple[int, int] | None = None  # MHz, of the highest; None if unknown


def host_load(sleep: Callable[[float], None] = time.sleep) -> HostLoad:
    """Watches for `LOAD_S`; processes that may not be seen have no name and still count."""
    each = _process_seconds()
    before, own_before, began_s = psutil.cpu_times(), time.process_time(), time.monotonic()
    sleep(LOAD_S)
    after, own_s = psutil.cpu_times(), time.process_time() - own_before
    seconds = max(time.monotonic() - began_s, 1e-3)
    idle = ("idle", "iowait", "steal", "guest", "guest_nice")  # guests are in user time already
    busy_s = sum(getattr(after, n) - getattr(before, n) for n in after._fields if n not in idle)
    stolen_s = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    used = ((name, (s - each.get(at, (name, s))[1]) / seconds) for at, (name, s) in _seconds(each))
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
    """Physical cores that a process may use; two hyperthreads are one core."""
    return min(psutil.cpu_count(logical=False) or num_allowed, num_allowed)


def idle_cores(load: HostLoad) -> int:
    """Physical cores that this process may use and that others leave idle; at least 1."""
    everywhere = psutil.cpu_count(logical=False) or load.num_cores
    return max(1, min(load.num_cores, int(everywhere - load.others_cores + SPARE)))


def busy_now(num_needed: int, threads: int | None = None) -> tuple[str, ...]:
    """Facts that would disturb a measurement now that keeps `num_needed` cores busy, in words."""
    return busy_facts(host_load(), num_needed, threads)


def others_fact(load: HostLoad) -> str:
    """How many cores other processes use, the busiest by name."""
    names = ", ".join(f"{name} {used:.1f}" for name, used in load.busiest)
    named = f" ({names})" if names else ""
    return f"other processes use {load.others_cores:.1f} of {_cores(load)}{named}"


def _cores(load: HostLoad) -> str:
    return "1 core" if load.num_cores == 1 else f"{load.num_cores} cores"


def busy_facts(load: HostLoad, num_needed: int, threads: int | None = None) -> tuple[str, ...]:
    """Facts that would disturb `num_needed` busy cores, in words.

    `threads` is the number that compute, if --threads can change it.
    """
    facts = []
    cores = _cores(load)
    if load.others_cores > max(0, load.num_cores - num_needed) + SPARE:
        facts.append(others_fact(load))
        if threads is not None and threads > (idle := idle_cores(load)):
            facts.append(f"{threads} threads wait for each other there, --threads {idle} does not")
    if load.steal_share > STEAL:
        facts.append(f"other guests of this host take {load.steal_share:.0%} of the CPU time")
    if facts or load.load_average > MOST_LOAD * load.num_cores:
        facts.append(f"load average {load.load_average:.1f} on {cores}")
    if load.clock_limit is not None and load.clock_limit[0] < LIMITED * load.clock_limit[1]:
        limit, most = load.clock_limit
        facts.append(f"CPU clocks are limited to {limit / 1e3:.1f} of {most / 1e3:.1f} GHz")
    return tuple(facts)


def _seconds(known: dict[int, tuple[str, float]]) -> list[tuple[int, tuple[str, float]]]:
    return [(at, process) for at, process in _process_seconds().items() if at in known]


def _process_seconds() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds of the other processes, by id."""
    seconds = {}
    for process in psutil.process_iter(("name", "cpu_times")):
        times = process.info["cpu_times"]
        if times is not None and process.pid != os.getpid():
            name = "".join(c for c in process.info["name"] or "" if c.isprintable())
            seconds[process.pid] = name[:_NAME], times.user + times.system
    return seconds


def num_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on every system
        return os.cpu_count() or 1
