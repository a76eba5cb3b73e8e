"""A run on the nodes of a Ray cluster. Its only store is here, and gets each record immediately.

Nodes have the same hardware, because the cells of a run are compared. A unit of work stays on one
node, which measures it like a local run and sends all records. If that node is lost, the unit
resumes on another one. Only `ray_cluster` imports Ray.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

from specbench.bench.budget import spent_s
from specbench.bench.machine import NextUnit, ThisMachine, Unit, deadline_of, source_of
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import RunPlan
from specbench.bench.served.cycles import Cycle
from specbench.bench.units import RemoteReporter, Reporter, ReporterCall
from specbench.errors import DeviceLostError, SpecbenchError, UsageError, first_line
from specbench.inputs.address import Address
from specbench.records import Environment, RunRecord, ServerRecord
from specbench.runs import RunStore, StoredRecord, create_run
from specbench.settings import MachineSettings

LOCAL = "local"
LOCAL_CPUS = 2
LOCAL_STORE_BYTES = 100 * 2**20  # messages are small
NUM_ID = 8  # digits of a short node id
THREADS = "OMP_NUM_THREADS"  # Ray sets it for its workers, but servers must start without it


class NodeInfo(NamedTuple):
    """The environment of a node, and the plans that it narrowed, by target."""

    environment: Environment
    plans: Mapping[str, TargetPlan]


class LogMessage(NamedTuple):
    """The log of a server that has ended."""

    name: str  # relative to the run's folder
    text: bytes


class TaskRejected(NamedTuple):
    """A SpecbenchError of the node, as text."""

    text: str


Message = NodeInfo | LogMessage | ReporterCall | TaskRejected | StoredRecord
SendMessage = Callable[[Message], None]


def describe_node(plan: RunPlan, command: Sequence[str], node: str, send: SendMessage) -> None:
    """Send this machine's NodeInfo, or TaskRejected if it cannot take part."""
    try:
        machine = ThisMachine(plan.settings, plan.pairings, _remote_reporter(send))
        environment = replace(machine.environment(command), node=node)
        plans = {target.target.name: machine.narrowed(target) for target in plan.targets}
        send(NodeInfo(environment, plans))
    except SpecbenchError as error:
        send(TaskRejected(str(error)))


def measure_unit(
    unit: Unit,
    run: RunRecord,
    known: Sequence[StoredRecord],
    send: SendMessage,
) -> None:
    """Measure a unit, and send each record as soon as it is stored.

    `run` has this machine's environment; `known` are its `records_to_resume`. Raises
    DeviceLostError, after which the cluster ends this process and resumes in another one.
    """
    with TemporaryDirectory(prefix="specbench-") as name:
        folder = Path(name)

        def send_record(record: StoredRecord) -> None:
            if isinstance(record, ServerRecord):  # a record of a server that has ended
                for log in (folder / run.run_id).glob("servers/*.log"):
                    send(LogMessage(f"{log.parent.name}/{log.name}", log.read_bytes()))
                    log.unlink()
            send(record)

        try:
            with create_run(folder, run, known, send_record) as store:
                machine = ThisMachine(run.settings, unit.plan.pairings, _remote_reporter(send))
                engine = unit.engine if isinstance(unit, Cycle) else None
                spent = spent_s(store.stored, unit.plan.target.name, engine)
                deadline = deadline_of(unit.plan, engine, time.monotonic, spent)
                machine.measure_unit(unit, store, deadline)
        except DeviceLostError:
            raise
        except SpecbenchError as error:
            send(TaskRejected(str(error)))


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


def _remote_reporter(send: SendMessage) -> Reporter:
    """A reporter of stages and warnings; blocks are not reported, since progress counts units."""
    return cast("Reporter", RemoteReporter(send, ("stage", "warn")))


MAX_ATTEMPTS = 3  # at a unit whose workers are lost


class TaskEnded(NamedTuple):
    """A task has ended."""


class WorkerLost(NamedTuple):
    """The worker process of a task, or its node, has ended."""

    reason: str


class TaskEvent(NamedTuple):
    """A message of a task, or its end."""

    task: int
    message: Message | TaskEnded | WorkerLost


@contextmanager
def ray_cluster(
    address: str, gpus_per_task: int | None, machine: MachineSettings
) -> Iterator["RayCluster"]:
    """The cluster at an address; `local` starts one on this machine. UsageError without Ray, or
    without a cluster.

    Its running tasks are ended when the block is left.
    """
    try:
        import ray  # noqa: PLC0415 - not installed for most runs
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UsageError("--ray needs Ray: python -m pip install ray") from error
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
        cluster = RayCluster(ray, address == LOCAL, gpus_per_task, machine)
        try:
            yield cluster
        finally:
            cluster.cancel()
    finally:
        ray.shutdown()


class RayCluster:
    """Tasks on Ray nodes: each has `gpus_per_task` GPUs, `--threads` cores, or a whole node."""

    def __init__(
        self, ray: Any, is_local: bool, gpus_per_task: int | None, machine: MachineSettings
    ) -> None:
        """`ray`: the module, connected to the cluster."""
        self._ray, self._is_local, self._threads = ray, is_local, machine.threads
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
        """The number of concurrent tasks per node, by the short id of each live node that has
        enough GPUs."""
        slots = {}
        for short, node in self._alive().items():
            size = (
                _size(node, "GPU") // self._num_gpus if self._num_gpus else self._num_by_cpu(node)
            )
            if size:
                slots[short] = size
        return slots

    def start(self, node: str, task: Callable[[SendMessage], None]) -> int:
        """Start a task; returns the number that its events have.

        If a task raises DeviceLostError, its process ends, and its last event is WorkerLost.
        """
        alive = self._alive()[node]
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        stream = self._remote.options(
            num_gpus=self._num_gpus,
            num_cpus=1 if self._num_gpus else _size(alive, "CPU") // self._num_by_cpu(alive),
            scheduling_strategy=strategy(alive["NodeID"], soft=False),
        ).remote(task, Path.cwd(), os.environ.get(THREADS))
        self._tasks[stream] = next(self._numbers)
        return self._tasks[stream]

    def next_event(self) -> TaskEvent:
        """Wait for an event. Those of a task are in order; its last is TaskEnded or WorkerLost."""
        errors = self._ray.exceptions
        (stream, *_), _ = self._ray.wait([*self._tasks], num_returns=1)
        number = self._tasks[stream]
        try:
            return TaskEvent(number, self._ray.get(next(stream)))
        except errors.RayTaskError:
            raise  # a bug, with its traceback
        except (StopIteration, errors.RayError) as error:
            del self._tasks[stream]
            is_over = isinstance(error, StopIteration)
            return TaskEvent(number, TaskEnded() if is_over else WorkerLost(first_line(error)))

    def cancel(self) -> None:
        """End all tasks; supervisors end the servers of a worker that is killed."""
        for stream in self._tasks:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(stream, force=True)

    def _alive(self) -> dict[str, Any]:
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        return {LOCAL if self._is_local else node["NodeID"][:NUM_ID]: node for node in nodes}

    def _num_by_cpu(self, node: Any) -> int:
        return _size(node, "CPU") // self._threads if self._threads else 1


def _size(node: Any, resource: str) -> int:
    return int(node["Resources"].get(resource, 0))


def select_nodes(cluster: RayCluster, plan: RunPlan, reporter: Reporter) -> Mapping[str, NodeInfo]:
    """The nodes that take part, by id: the largest group of one kind; UsageError if there is
    none."""
    slots = cluster.slots()
    describe = partial(describe_node, plan, tuple(sys.argv))
    tasks = {cluster.start(node, partial(describe, node)): node for node in slots}
    nodes: dict[str, NodeInfo] = {}
    why = "no node of the cluster has the GPUs or cores that a cell needs"
    while tasks:
        event = cluster.next_event()
        node = tasks[event.task]
        match event.message:
            case NodeInfo():
                nodes[node] = event.message
            case TaskRejected(text) | WorkerLost(text):
                why = f"node {node} is left out: {text}"
                reporter.warn(why)
            case ReporterCall("warn", (text,)):
                reporter.warn(f"node {node}: {text}")
        if isinstance(event.message, TaskEnded | WorkerLost):
            del tasks[event.task]
    if not nodes:
        raise UsageError(f"--ray: {why}")
    kinds: dict[str, dict[str, NodeInfo]] = {}
    for node in sorted(nodes):
        kinds.setdefault(_kind(nodes[node].environment), {})[node] = nodes[node]
    best = max(kinds, key=lambda kind: sum(slots[node] for node in kinds[kind]))
    for kind in kinds.keys() - {best}:
        names = ", ".join(kinds[kind])
        reporter.warn(
            f"left out: {names}: a run needs machines of one kind; these have {kind}, most have "
            f"{best}"
        )
    return kinds[best]


def _kind(environment: Environment) -> str:
    """The facts that nodes must have in common, in words."""
    hardware = (f"{name} {value}" for name, value in environment.hardware.items())
    return ", ".join((*hardware, f"specbench {environment.specbench_version}"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attempt:
    """An attempt at a unit."""

    unit: Unit
    source: NextUnit
    number: int = 1


class ClusterScheduler:
    """Runs units on all slots of all nodes until the run is complete. The nodes share a budget."""

    def __init__(self, cluster: RayCluster, plan: RunPlan, reporter: Reporter) -> None:
        self._cluster, self._reporter = cluster, reporter
        reporter.stage("checking the nodes of the cluster")
        self._nodes = select_nodes(cluster, plan, reporter)
        self._running: dict[int, tuple[str, _Attempt]] = {}
        self._waiting: list[_Attempt] = []
        self._num_done = 0

    @property
    def environments(self) -> Sequence[Environment]:
        """The environments of the nodes, which are all of one kind."""
        return tuple(node.environment for node in self._nodes.values())

    def narrowed(self, plan: TargetPlan) -> TargetPlan:
        """The plan with what only the nodes know, which are all of one kind."""
        return next(iter(self._nodes.values())).plans[plan.target.name]

    def measure(
        self, plans: Sequence[TargetPlan], running: Sequence[Address], store: RunStore
    ) -> None:
        """Measure the planned units that are not stored yet. SpecbenchError if no node is left."""
        sources: list[NextUnit] = []
        for plan in plans:
            for engine in plan.parts:
                clock = partial(_stored_s, store, plan.target.name, engine)
                deadline = deadline_of(plan, engine, clock, clock())
                sources.append(source_of(plan, engine, running, store, deadline))
        self.keep_busy(sources, store)

    def keep_busy(self, sources: Sequence[NextUnit], store: RunStore) -> None:
        """Measure all units, several concurrently. SpecbenchError if no node is left."""
        while True:
            self._start_all(sources, store)
            if not self._running:
                return
            event = self._cluster.next_event()
            node, attempt = self._running[event.task]
            if isinstance(event.message, TaskEnded | WorkerLost):
                del self._running[event.task]
            self._handle(node, attempt, event.message, store)

    def _start_all(self, sources: Sequence[NextUnit], store: RunStore) -> None:
        """Start units on all free slots."""
        while True:
            node = self._free_node()
            if node is None and self._running:
                return
            attempt = self._next(sources)
            if attempt is None:
                return
            if node is None:
                raise SpecbenchError(
                    "no node of the cluster is left; everything measured so far is stored, "
                    f"{store.resume_hint}"
                )
            run = replace(store.run, environment=self._nodes[node].environment)
            known = list(attempt.unit.records_to_resume(store.records))
            task = partial(measure_unit, attempt.unit, run, known)
            self._running[self._cluster.start(node, task)] = node, attempt
            self._reporter.stage(f"{attempt.unit.label} (node {node})")

    def _free_node(self) -> str | None:
        """The live node with the most free slots; None if all slots are taken."""
        slots = self._cluster.slots()
        free = {node: slots.get(node, 0) for node in self._nodes}
        for node, _ in self._running.values():
            free[node] -= 1
        node = max(free, key=lambda name: free[name])
        return node if free[node] > 0 else None

    def _next(self, sources: Sequence[NextUnit]) -> _Attempt | None:
        if self._waiting:
            return self._waiting.pop(0)
        for source in sources:
            num_running = sum(attempt.source is source for _, attempt in self._running.values())
            unit = source(num_running)
            if unit is not None:
                return _Attempt(unit=unit, source=source)
        return None

    def _handle(
        self,
        node: str,
        attempt: _Attempt,
        message: Message | TaskEnded | WorkerLost,
        store: RunStore,
    ) -> None:
        match message:
            case WorkerLost(reason):
                self._retry(attempt, f"its worker on node {node} was lost ({reason})", store)
            case TaskEnded():
                self._num_done += 1
                self._reporter.advance(self._num_done, self._num_done + len(self._running), None)
            case LogMessage(name, text):
                path = store.folder / name
                path.parent.mkdir(exist_ok=True)
                with path.open("ab") as file:
                    file.write(text)
            case ReporterCall("stage", (text, *part)):
                self._reporter.stage(f"{text} (node {node})", *part)
            case ReporterCall("warn", (text,)):
                self._reporter.warn(f"node {node}: {text}")
            case TaskRejected(text):
                raise SpecbenchError(f"node {node}: {text}")
            case NodeInfo() | ReporterCall():
                raise AssertionError(f"a unit sends no {message!r}")
            case record:
                store.append(record)

    def _retry(self, attempt: _Attempt, why: str, store: RunStore) -> None:
        label = attempt.unit.label
        if attempt.number < MAX_ATTEMPTS:
            self._reporter.warn(f"{label}: {why}; it is resumed from the stored records")
            self._waiting.append(replace(attempt, number=attempt.number + 1))
            return
        reason = f"failed {MAX_ATTEMPTS} times: {why}"
        self._reporter.warn(f"{label}: {reason}")
        for record in attempt.unit.failure_records(store.stored, reason):
            store.append(record)


def _stored_s(store: RunStore, target: str, engine: str | None) -> float:
    """Seconds that all nodes have spent on one of a target's `parts`."""
    return spent_s(store.stored, target, engine)
