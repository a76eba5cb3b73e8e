"""A run over the nodes of a cluster, with one store, here, that gets each record at once.

Nodes have the same hardware, because the cells of a run are compared. A unit of work stays on one
node; if that node is lost, the unit begins again on another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from specbench.bench.units import Job, Unit
from specbench.bench.watch import Watch
from specbench.bench.worker import (
    Log,
    Message,
    Refused,
    RunInputs,
    Stage,
    Survey,
    Tell,
    Warned,
    survey,
    work,
)
from specbench.errors import SpecbenchError, UsageError
from specbench.runs import Ledger

MOST_TRIES = 3  # at a unit whose workers are lost


class Ended(NamedTuple):
    """A task has ended."""


class Lost(NamedTuple):
    """The worker of a task, or its node, is gone."""

    reason: str


class Event(NamedTuple):
    """One thing that a task reported."""

    task: int
    what: Message | Ended | Lost


class Cluster(Protocol):
    """Machines that take tasks. Only on_ray.py knows what they are."""

    def slots(self) -> Mapping[str, int]:
        """How many tasks each node takes at once, by the short id of each node now alive."""
        ...

    def start(self, node: str, task: Callable[[Tell], None]) -> int:
        """Begin a task; returns the number that its events carry.

        The process of a task that raises DeviceLostError ends, and the task with Lost.
        """
        ...

    def next_event(self) -> Event:
        """Wait for one. A task's events come in order; Ended or Lost is its last."""
        ...


def surveyed(cluster: Cluster, inputs: RunInputs, watch: Watch) -> Mapping[str, Survey]:
    """The nodes that take part, by id: the largest group of one kind; UsageError if there is
    none."""
    slots = cluster.slots()
    tasks = {cluster.start(node, partial(survey, node, inputs)): node for node in slots}
    found: dict[str, Survey] = {}
    why = "no node of the cluster has the GPUs or cores that a cell needs"
    while tasks:
        event = cluster.next_event()
        node = tasks[event.task]
        match event.what:
            case Survey():
                found[node] = event.what
            case Refused(text) | Lost(text):
                why = f"node {node} is left out: {text}"
                watch.warn(why)
            case Warned(text):
                watch.warn(f"node {node}: {text}")
        if isinstance(event.what, Ended | Lost):
            del tasks[event.task]
    if not found:
        raise UsageError(f"--ray: {why}")
    kinds: dict[str, dict[str, Survey]] = {}
    for node in sorted(found):
        kinds.setdefault(_kind(found[node]), {})[node] = found[node]
    best = max(kinds, key=lambda kind: sum(slots[node] for node in kinds[kind]))
    for kind in kinds.keys() - {best}:
        names = ", ".join(kinds[kind])
        watch.warn(
            f"left out: {names}: a run needs machines of one kind; these have {kind}, most have "
            f"{best}"
        )
    return kinds[best]


def _kind(found: Survey) -> str:
    """What nodes must have in common, in words."""
    own = found.environment
    hardware = (f"{name} {value}" for name, value in own.hardware.items())
    return ", ".join((*hardware, f"specbench {own.specbench_version}"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Try:
    """A unit, and which attempt at it this is."""

    job: Job
    unit: Unit
    number: int = 1


class Spread:
    """Keeps every slot of every node at work until all jobs are done."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Mapping[str, Survey],
        inputs: RunInputs,
        budget_s: float | None,
        ledger: Ledger,
        watch: Watch,
    ) -> None:
        self._cluster, self._nodes, self._inputs = cluster, nodes, inputs
        self._budget_s, self._ledger, self._watch = budget_s, ledger, watch
        self._slots = cluster.slots()
        self._running: dict[int, tuple[str, _Try]] = {}
        self._waiting: list[_Try] = []  # lost, and to be begun again
        self._num_done = 0

    def measure(self, jobs: Sequence[Job]) -> None:
        """All units of all jobs, several at once. SpecbenchError if no node is left."""
        while True:
            self._start_all(jobs)
            if not self._running:
                return
            event = self._cluster.next_event()
            node, one = self._running[event.task]
            if isinstance(event.what, Ended | Lost):
                del self._running[event.task]
            self._take(node, one, event.what)

    def _start_all(self, jobs: Sequence[Job]) -> None:
        """As many as there are free slots."""
        while True:
            node = self._free_node()
            if node is None and not self._running:
                raise SpecbenchError(
                    "no node of the cluster is left; everything measured so far is stored, "
                    f"{self._ledger.how_to_go_on}"
                )
            one = self._next(jobs) if node is not None else None
            if node is None or one is None:
                return
            run = replace(self._ledger.run, environment=self._nodes[node].environment)
            known = list(one.unit.known(self._ledger.records))
            task = partial(work, one.unit, self._inputs, run, known, self._budget_s)
            self._running[self._cluster.start(node, task)] = node, one
            self._watch.stage(f"{one.unit.label} (node {node})")

    def _free_node(self) -> str | None:
        """The one with the most free slots, of those that are still there."""
        self._slots = self._cluster.slots()
        free = {node: self._slots.get(node, 0) for node in self._nodes}
        for node, _ in self._running.values():
            free[node] -= 1
        node = max(free, key=lambda name: free[name])
        return node if free[node] > 0 else None

    def _next(self, jobs: Sequence[Job]) -> _Try | None:
        if self._waiting:
            return self._waiting.pop(0)
        for job in jobs:
            num_running = sum(one.job is job for _, one in self._running.values())
            unit = job.next_unit(num_running)
            if unit is not None:
                return _Try(job=job, unit=unit)
        return None

    def _take(self, node: str, one: _Try, what: Message | Ended | Lost) -> None:
        match what:
            case Lost(reason):
                self._again(one, f"its worker on node {node} was lost ({reason})")
            case Ended():
                self._num_done += 1
                self._watch.advance(self._num_done, self._num_done + len(self._running), None)
            case Log(name, text):
                path = self._ledger.folder / name
                path.parent.mkdir(exist_ok=True)
                with path.open("ab") as file:
                    file.write(text)
            case Stage(text):
                self._watch.stage(f"{text} (node {node})")
            case Warned(text):
                self._watch.warn(f"node {node}: {text}")
            case Refused(text):
                raise SpecbenchError(f"node {node}: {text}")
            case Survey():
                raise AssertionError("nodes were surveyed before")
            case record:
                self._ledger.append(record)

    def _again(self, one: _Try, why: str) -> None:
        if one.number < MOST_TRIES:
            self._watch.warn(f"{one.unit.label}: {why}; it begins again; what is stored stays")
            self._waiting.append(replace(one, number=one.number + 1))
            return
        reason = f"given up after {MOST_TRIES} tries: {why}"
        self._watch.warn(f"{one.unit.label}: {reason}")
        for record in one.unit.lost(self._ledger.stored, reason):
            self._ledger.append(record)
