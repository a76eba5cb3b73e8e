"""A run on the nodes of a cluster. Its only store is here, and gets each record immediately.

Nodes have the same hardware, because the cells of a run are compared. A unit of work stays on one
node, which measures it like a local run and sends all records. If that node is lost, the unit
resumes on another one.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol, cast

from specbench.bench.budget import Deadline, spent_s
from specbench.bench.machine import NextUnit, ThisMachine, Unit, target_budget_s, unit_sources
from specbench.bench.plan import TargetPlan
from specbench.bench.units import RemoteReporter, Reporter, ReporterCall
from specbench.errors import DeviceLostError, SpecbenchError, UsageError
from specbench.inputs.address import Address
from specbench.inputs.pairing import Pairing, Target
from specbench.records import Environment, RunRecord, ServerRecord
from specbench.runs import RunStore, StoredRecord, create_run
from specbench.settings import RunSettings


class NodeInfo(NamedTuple):
    """The facts of a node that a plan needs: its environment, and the dtypes it would use."""

    environment: Environment
    dtypes: Mapping[str, str]  # by target


class LogMessage(NamedTuple):
    """The log of a server that has ended."""

    name: str  # relative to the run's folder
    text: bytes


class TaskRejected(NamedTuple):
    """A SpecbenchError of the node, as text."""

    text: str


Message = NodeInfo | LogMessage | ReporterCall | TaskRejected | StoredRecord
SendMessage = Callable[[Message], None]


def describe_node(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    command: Sequence[str],
    node: str,
    send: SendMessage,
) -> None:
    """Send this machine's NodeInfo, or TaskRejected if it cannot take part."""
    try:
        machine = ThisMachine(settings, pairings, _remote_reporter(send))
        targets = {pairing.target.name: pairing.target for pairing in pairings}
        environment = replace(machine.environment(command), node=node)
        dtypes = {name: machine.dtype_of(target) for name, target in targets.items()}
        send(NodeInfo(environment, dtypes))
    except SpecbenchError as error:
        send(TaskRejected(str(error)))


def measure_unit(
    unit: Unit,
    run: RunRecord,
    known: Sequence[StoredRecord],
    budget_s: float | None,
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
                spent = spent_s(store.stored, unit.plan.target.name)
                deadline = Deadline(budget_s, time.monotonic, spent_s=spent)
                machine.measure_unit(unit, store, deadline)
        except DeviceLostError:
            raise
        except SpecbenchError as error:
            send(TaskRejected(str(error)))


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


class Cluster(Protocol):
    """Machines that run tasks; on_ray.py implements it."""

    def slots(self) -> Mapping[str, int]:
        """The number of concurrent tasks per node, by the short id of each live node."""
        ...

    def start(self, node: str, task: Callable[[SendMessage], None]) -> int:
        """Start a task; returns the number that its events have.

        If a task raises DeviceLostError, its process ends, and its last event is WorkerLost.
        """
        ...

    def next_event(self) -> TaskEvent:
        """Wait for an event. Those of a task are in order; its last is TaskEnded or WorkerLost."""
        ...


def select_nodes(
    cluster: Cluster, settings: RunSettings, pairings: Sequence[Pairing], reporter: Reporter
) -> Mapping[str, NodeInfo]:
    """The nodes that take part, by id: the largest group of one kind; UsageError if there is
    none."""
    slots = cluster.slots()
    describe = partial(describe_node, settings, tuple(pairings), tuple(sys.argv))
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

    def __init__(
        self,
        cluster: Cluster,
        settings: RunSettings,
        pairings: Sequence[Pairing],
        reporter: Reporter,
    ) -> None:
        self._cluster, self._reporter = cluster, reporter
        reporter.stage("checking the nodes of the cluster")
        self._nodes = select_nodes(cluster, settings, pairings, reporter)
        self._running: dict[int, tuple[str, _Attempt]] = {}
        self._waiting: list[_Attempt] = []
        self._num_done = 0

    @property
    def environments(self) -> Sequence[Environment]:
        """The environments of the nodes, which are all of one kind."""
        return tuple(node.environment for node in self._nodes.values())

    def dtype_of(self, target: Target) -> str:
        """The dtype that the target will be decoded in."""
        return next(iter(self._nodes.values())).dtypes[target.name]

    def measure(
        self, plans: Sequence[TargetPlan], running: Sequence[Address], store: RunStore
    ) -> None:
        """Measure the planned units that are not stored yet. SpecbenchError if no node is left."""
        sources: list[NextUnit] = []
        for plan in plans:
            clock = partial(_stored_s, store, plan.target.name)
            deadline = Deadline(target_budget_s(plans), clock, spent_s=clock())
            sources += unit_sources(plan, running, store, deadline)
        self.keep_busy(sources, store, target_budget_s(plans))

    def keep_busy(
        self, sources: Sequence[NextUnit], store: RunStore, budget_s: float | None
    ) -> None:
        """Measure all units, several concurrently. SpecbenchError if no node is left."""
        while True:
            self._start_all(sources, store, budget_s)
            if not self._running:
                return
            event = self._cluster.next_event()
            node, attempt = self._running[event.task]
            if isinstance(event.message, TaskEnded | WorkerLost):
                del self._running[event.task]
            self._handle(node, attempt, event.message, store)

    def _start_all(
        self, sources: Sequence[NextUnit], store: RunStore, budget_s: float | None
    ) -> None:
        """Start units on all free slots."""
        while True:
            node = self._free_node()
            if node is None and not self._running:
                raise SpecbenchError(
                    "no node of the cluster is left; everything measured so far is stored, "
                    f"{store.resume_hint}"
                )
            attempt = self._next(sources) if node is not None else None
            if node is None or attempt is None:
                return
            run = replace(store.run, environment=self._nodes[node].environment)
            known = list(attempt.unit.records_to_resume(store.records))
            task = partial(measure_unit, attempt.unit, run, known, budget_s)
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


def _stored_s(store: RunStore, target: str) -> float:
    """Seconds that all nodes have spent on a target."""
    return spent_s(store.stored, target)
