"""Disturbances of a measurement are reported before it begins."""

from types import SimpleNamespace

import psutil
import pytest

from specbench.probes import host as load
from specbench.probes.host import (
    HostLoad,
    busy_facts,
    clock_limit,
    idle_cores,
    physical_cores,
)
from specbench.records import Kind
from tests.conftest import host_load

QUIET = HostLoad(num_cores=2, others_cores=0.1, steal_share=0.0, load_average=1.1)


def test_a_quiet_machine_gets_no_warning():
    assert busy_facts(QUIET, num_needed=2) == ()


def test_other_processes_are_listed_only_if_too_few_cores_are_left():
    busy = QUIET._replace(others_cores=1.2, busiest=(("cc1plus", 0.8), ("chrome", 0.4)))
    assert busy_facts(busy, num_needed=1) == ()
    cores = (2, "core")
    assert busy_facts(busy, num_needed=2) == (
        Kind.OTHER_PROCESSES(used=1.2, cores=cores, busiest=("cc1plus 0.8", "chrome 0.4")),
        Kind.LOAD(load=1.1, cores=cores),
    )


def test_more_threads_than_idle_cores_are_advised_against(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    busy = QUIET._replace(num_cores=8, others_cores=2.4)
    assert idle_cores(busy) == 1
    assert idle_cores(busy._replace(others_cores=0.2)) == 4  # cores, not hyperthreads
    assert idle_cores(busy._replace(others_cores=7.0)) == 1
    assert idle_cores(busy._replace(num_cores=3, others_cores=0.0)) == 3  # of the allowed ones
    assert (physical_cores(8), physical_cores(2)) == (4, 2)
    assert Kind.THREADS_WAIT(threads=4, fewer=1) in busy_facts(busy, 8, threads=4)
    for threads in (1, None):
        kinds = {fact.kind for fact in busy_facts(busy, 8, threads)}
        assert kinds == {Kind.OTHER_PROCESSES, Kind.LOAD}
    assert busy_facts(busy._replace(others_cores=0.1), 8, threads=4) == ()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"steal_share": 0.12}, Kind.GUESTS(share=0.12)),
        ({"load_average": 5.2}, Kind.LOAD(load=5.2, cores=(2, "core"))),
        ({"load_average": 5.2, "num_cores": 1}, Kind.LOAD(load=5.2, cores=(1, "core"))),
        ({"clock_limit": (2600, 3000)}, Kind.CLOCKS_LIMITED(limit=2.6, most=3.0)),
    ],
)
def test_stolen_cpu_time_and_load_are_reported(changed, expected):
    assert expected in busy_facts(QUIET._replace(**changed), num_needed=1)


@pytest.mark.parametrize("limit", [None, (2700, 3000), (3000, 3000)])
def test_a_barely_limited_clock_is_not_mentioned(limit):
    assert busy_facts(QUIET._replace(clock_limit=limit), num_needed=2) == ()


def test_the_most_limited_core_is_reported_if_known(tmp_path):
    assert clock_limit(tmp_path / "nowhere") is None
    clocks = {"cpu0": (3_000_000, 4_000_000), "cpu1": (2_000_000, 2_500_000), "cpu10": (1, 0)}
    for name, (limit, most) in clocks.items():
        folder = tmp_path / name / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_max_freq").write_text(f"{limit}\n")
        (folder / "cpuinfo_max_freq").write_text(f"{most}\n")
    (tmp_path / "cpu2" / "cpufreq").mkdir(parents=True)  # switched off
    assert clock_limit(tmp_path) == (3000, 4000)


def test_host_load_excludes_this_process(monkeypatch):
    """Counted by hand: of 4 s of CPU time in 2 s this process took 1, another one 2."""
    clock = iter((10.0, 12.0))
    process_s, times = iter((5.0, 6.0)), iter((100.0, 104.0))

    class Times:
        _fields = ("user", "idle")

        def __init__(self, user):
            self.user, self.idle = user, 0.0

    class Other:
        pid = -1

        def __init__(self, user):
            self.info = {
                "name": "other\x1b[31m" + "x" * 99,
                "cpu_times": SimpleNamespace(user=user, system=0.0),
            }

    other_times = iter((1.0, 3.0))
    times_told = {"monotonic": lambda: next(clock), "process_time": lambda: next(process_s)}
    monkeypatch.setattr(load, "time", SimpleNamespace(**times_told))
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(next(times)))
    monkeypatch.setattr(psutil, "process_iter", lambda _: [Other(next(other_times))])
    measured = host_load(lambda _: None)
    assert measured.others_cores == pytest.approx(1.5)
    assert measured.busiest == (("other[31mxxxxxxxxxxx", 1.0),)  # inert, and cut
