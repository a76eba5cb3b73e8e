"""Runs tasks on a Ray cluster. No other file imports Ray."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from specbench.bench.cluster import Message, SendMessage, TaskEnded, TaskEvent, WorkerLost
from specbench.errors import DeviceLostError, UsageError, first_line
from specbench.settings import MachineSettings

AUTO, LOCAL = "auto", "local"
LOCAL_CPUS = 2
LOCAL_STORE_BYTES = 100 * 2**20  # messages are small
NUM_ID = 8  # digits of a short node id
THREADS = "OMP_NUM_THREADS"  # Ray sets it for its workers, but servers must start without it


@contextmanager
def ray_cluster(
    address: str, gpus_per_task: int | None, machine: MachineSettings
) -> Iterator["RayCluster"]:
    """The cluster at an address; `local` starts one on this machine. UsageError without a cluster.

    Its running tasks are ended when the block is left.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # only the cluster is contacted
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address == LOCAL:
            size = {"num_cpus": LOCAL_CPUS, "object_store_memory": LOCAL_STORE_BYTES}
            ray.init(address=LOCAL, include_dashboard=False, **size, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"--ray {address}: {first_line(error)}; start a cluster with `ray start --head`, or "
            f"use --ray {LOCAL}"
        ) from error
    try:
        cluster = RayCluster(address == LOCAL, gpus_per_task, machine)
        try:
            yield cluster
        finally:
            cluster.cancel()
    finally:
        ray.shutdown()


class RayCluster:
    """Tasks on Ray nodes: each has `gpus_per_task` GPUs, `--threads` cores, or a whole node."""

    def __init__(self, is_local: bool, gpus_per_task: int | None, machine: MachineSettings) -> None:
        self._is_local, self._threads = is_local, machine.threads
        most = max(_size(node, "GPU") for node in ray.nodes())
        self._num_gpus = (
            min(most, machine.device != "cpu") if gpus_per_task is None else gpus_per_task
        )
        if self._num_gpus > most:
            raise UsageError(
                f"--gpus-per-task {gpus_per_task}: no node of the cluster has more than {most} GPUs"
            )
        self._remote = ray.remote(num_returns="streaming", max_retries=0)(_messages)
        self._numbers = count()
        self._tasks: dict[Any, int] = {}  # stream -> number

    def slots(self) -> Mapping[str, int]:
        """The number of concurrent tasks per node, without nodes that have too few GPUs."""
        slots = {}
        for short, node in self._alive().items():
            size = (
                _size(node, "GPU") // self._num_gpus if self._num_gpus else self._num_by_cpu(node)
            )
            if size:
                slots[short] = size
        return slots

    def start(self, node: str, task: Callable[[SendMessage], None]) -> int:
        alive = self._alive()[node]
        stream = self._remote.options(
            num_gpus=self._num_gpus,
            num_cpus=1 if self._num_gpus else _size(alive, "CPU") // self._num_by_cpu(alive),
            scheduling_strategy=NodeAffinitySchedulingStrategy(alive["NodeID"], soft=False),
        ).remote(task, Path.cwd(), os.environ.get(THREADS))
        self._tasks[stream] = next(self._numbers)
        return self._tasks[stream]

    def next_event(self) -> TaskEvent:
        (stream, *_), _ = ray.wait([*self._tasks], num_returns=1)
        number = self._tasks[stream]
        try:
            return TaskEvent(number, ray.get(next(stream)))
        except RayTaskError:
            raise  # a bug, with its traceback
        except (StopIteration, RayError) as error:
            del self._tasks[stream]
            is_over = isinstance(error, StopIteration)
            return TaskEvent(number, TaskEnded() if is_over else WorkerLost(first_line(error)))

    def cancel(self) -> None:
        """End all tasks; supervisors end the servers of a worker that is killed."""
        for stream in self._tasks:
            with suppress(RayError):
                ray.cancel(stream, force=True)

    def _alive(self) -> dict[str, Any]:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return {LOCAL if self._is_local else node["NodeID"][:NUM_ID]: node for node in nodes}

    def _num_by_cpu(self, node: Any) -> int:
        return _size(node, "CPU") // self._threads if self._threads else 1


def _size(node: Any, resource: str) -> int:
    return int(node["Resources"].get(resource, 0))


def _messages(
    task: Callable[[SendMessage], None], folder: Path, num_threads: str | None
) -> Iterator[Message]:
    """Run the task on the node and yield its messages; a lost device ends the process."""
    with suppress(OSError):  # so that relative paths are valid if the disk is shared
        os.chdir(folder)
    os.environ.pop(THREADS, None)
    if num_threads is not None:
        os.environ[THREADS] = num_threads
    messages: SimpleQueue[Message | None] = SimpleQueue()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(task, messages.put)
        done.add_done_callback(lambda _: messages.put(None))
        while (message := messages.get()) is not None:
            yield message
        try:
            done.result()
        except DeviceLostError as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)  # Ray reuses its workers, and this one has lost its device
