"""Two real workers of Ray on this machine: needs specbench[ray].

Not collected by its name, because Ray is not installed for the tests: `python -m pytest
tests/real_engines/ray_cluster.py`.
"""

import os
import signal

import psutil
import pytest

from specbench.bench.cluster import TaskEnded, WorkerLost, ray_cluster
from specbench.bench.units import ReporterCall
from specbench.errors import DeviceLostError
from specbench.settings import MachineSettings
from tests.bench.fakes import RecordingWatch
from tests.bench.served.served_runs import measured, settings_for
from tests.bench.test_spread import Targets
from tests.stored_work import work_of

WORKER = "ray::_messages"
ONE_CORE = MachineSettings(threads=1)


class Killer(RecordingWatch):
    """Kills a worker when the second session of a cycle begins."""

    def __init__(self):
        super().__init__()
        self.killed = []

    def stage(self, text, part=""):
        super().stage(text, part)
        if "K=2" in text and not self.killed:
            self.killed = [p.pid for p in workers()][:1]
            os.kill(self.killed[0], signal.SIGKILL)


def workers():
    """Our processes that work on a task."""
    children = psutil.Process().children(recursive=True)
    return [p for p in children if p.is_running() and WORKER in " ".join(p.cmdline())]


@pytest.fixture
def settings(tmp_path):
    return settings_for(tmp_path, num_speculative_tokens=(0, 2), cycles=4, threads=1)


def test_a_store_of_two_workers_is_a_local_runs_but_for_times(tmp_path, settings):
    here = measured(tmp_path, settings)
    with ray_cluster("local", None, ONE_CORE) as cluster:
        assert cluster.slots() == {"local": 2}
        there = measured(tmp_path, settings, cluster=cluster)
    assert work_of(there, purpose="explore") == work_of(here, purpose="explore")
    assert there.is_complete
    assert {server.node for server in there.servers} == {"local"}


def test_a_worker_that_is_killed_loses_nothing(tmp_path, settings):
    here = measured(tmp_path, settings)
    watch = Killer()
    with ray_cluster("local", None, ONE_CORE) as cluster:
        there = measured(tmp_path, settings, watch, cluster=cluster)
    assert watch.killed
    assert any("is resumed from" in text for text in watch.warnings)
    assert work_of(there, purpose="explore") == work_of(here, purpose="explore")


@pytest.mark.parametrize("goes_on", ["here", "on ray"])
def test_an_interrupted_run_is_completed(tmp_path, settings, goes_on):
    here = measured(tmp_path, settings)

    def interrupt(_):
        raise KeyboardInterrupt

    watch = RecordingWatch(interrupt)
    with (
        pytest.raises(KeyboardInterrupt),
        ray_cluster("local", None, ONE_CORE) as cluster,
    ):
        measured(tmp_path, settings, watch, cluster=cluster)
    if goes_on == "here":
        whole = measured(tmp_path, settings, resume=watch.ids[0])
    else:
        with ray_cluster("local", None, ONE_CORE) as cluster:
            whole = measured(tmp_path, settings, resume=watch.ids[0], cluster=cluster)
    assert work_of(whole, purpose="explore") == work_of(here, purpose="explore")


def test_targets_in_processes_of_their_own_are_stored_as_from_one(tmp_path):
    targets = Targets(tmp_path)
    with ray_cluster("local", None, ONE_CORE) as cluster:
        there = targets.run(cluster=cluster)
    assert work_of(there, purpose="explore") == work_of(targets.here, purpose="explore")


def loses_its_device(send):
    send(ReporterCall("stage", (str(os.getpid()),)))
    raise DeviceLostError("the GPU fails at everything since")


def names_its_process(send):
    send(ReporterCall("stage", (str(os.getpid()),)))


def test_a_lost_device_ends_its_process_and_the_next_task_has_another():
    with ray_cluster("local", None, ONE_CORE) as cluster:
        cluster.start("local", loses_its_device)
        call, last = cluster.next_event().message, cluster.next_event().message
        assert isinstance(last, WorkerLost)
        cluster.start("local", names_its_process)
        assert isinstance(call, ReporterCall)
        assert cluster.next_event().message != call
        assert cluster.next_event().message == TaskEnded()
