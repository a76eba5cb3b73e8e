"""A run over the nodes of a cluster, with one store, here, that gets each record at once.

Nodes have the same hardware, because the cells of a run are compared. A unit of work stays on one
node; if that node is lost, the unit begins again on another.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from specbench.bench.deadline import Deadline
from specbench.bench.machine import target_budget_s
from specbench.bench.plan import TargetPlan
from specbench.bench.served.served_run import ServedRun
from specbench.bench.spent import spent_s
from specbench.bench.watch import Watch
from specbench.bench.worker import (
    Log,
    Message,
    Refused,
    RunInputs,
    Stage,
    Survey,
    Tell,
    Unit,
    Warned,
    WholeTarget,
    survey,
    work,
)
from specbench.errors import SpecbenchError, UsageError
from specbench.inputs.address import Address
from specbench.inputs.pairing import Pairing, Target
from specbench.records import Environment
from specbench.runs import Ledger
from specbench.settings import RunSettings

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

    unit: Unit
    served: ServedRun | None = None  # that the unit is a cycle of
    number: int = 1


class Spread:
    """Keeps every slot of every node at work until all is measured; nothing is decoded here.

    The nodes share one budget.
    """

    def __init__(
        self, cluster: Cluster, settings: RunSettings, pairings: Sequence[Pairing], watch: Watch
    ) -> None:
        self._cluster, self._watch = cluster, watch
        inputs = RunInputs(settings=settings, pairings=tuple(pairings), command=tuple(sys.argv))
        watch.stage("checking the nodes of the cluster")
        self._nodes = surveyed(cluster, inputs, watch)
        self._slots = cluster.slots()
        self._running: dict[int, tuple[str, _Try]] = {}
        self._waiting: list[_Try] = []
        self._num_done = 0

    @property
    def environments(self) -> Sequence[Environment]:
        """One per node; all are of one kind, so the first stands for them."""
        return tuple(survey.environment for survey in self._nodes.values())

    def dtype_of(self, target: Target) -> str:
        """The dtype that the target will be decoded in."""
        return next(iter(self._nodes.values())).dtypes[target.name]

    def measure(
        self, plans: Sequence[TargetPlan], running: Sequence[Address], ledger: Ledger
    ) -> None:
        """Everything planned that is not stored yet. SpecbenchError if no node is left."""
        budget_s = target_budget_s(plans)
        targets = [WholeTarget(plan=own) for plan in plans if (own := plan.in_process) is not None]
        served = []
        for plan in plans:
            clock = partial(_stored_s, ledger, plan)
            deadline = Deadline(budget_s, clock, spent_s=clock())
            served += [ServedRun(plan, name, running, ledger, deadline) for name in plan.served]
        self.keep_busy(targets, served, ledger, budget_s)

    def keep_busy(
        self,
        units: Sequence[Unit],
        served: Sequence[ServedRun],
        ledger: Ledger,
        budget_s: float | None,
    ) -> None:
        """All units and all cycles, several at once. SpecbenchError if no node is left."""
        self._waiting += [_Try(unit=unit) for unit in units]
        while True:
            self._start_all(served, ledger, budget_s)
            if not self._running:
                return
            event = self._cluster.next_event()
            node, attempt = self._running[event.task]
            if isinstance(event.what, Ended | Lost):
                del self._running[event.task]
            self._take(node, attempt, event.what, ledger)

    def _start_all(
        self, served: Sequence[ServedRun], ledger: Ledger, budget_s: float | None
    ) -> None:
        """As many as there are free slots."""
        while True:
            node = self._free_node()
            if node is None and not self._running:
                raise SpecbenchError(
                    "no node of the cluster is left; everything measured so far is stored, "
                    f"{ledger.how_to_go_on}"
                )
            attempt = self._next(served) if node is not None else None
            if node is None or attempt is None:
                return
            run = replace(ledger.run, environment=self._nodes[node].environment)
            known = list(attempt.unit.known(ledger.records))
            task = partial(work, attempt.unit, run, known, budget_s)
            self._running[self._cluster.start(node, task)] = node, attempt
            self._watch.stage(f"{attempt.unit.label} (node {node})")

    def _free_node(self) -> str | None:
        """The one with the most free slots, of those that are still there."""
        self._slots = self._cluster.slots()
        free = {node: self._slots.get(node, 0) for node in self._nodes}
        for node, _ in self._running.values():
            free[node] -= 1
        node = max(free, key=lambda name: free[name])
        return node if free[node] > 0 else None

    def _next(self, served: Sequence[ServedRun]) -> _Try | None:
        if self._waiting:
            return self._waiting.pop(0)
        for run in served:
            num_running = sum(attempt.served is run for _, attempt in self._running.values())
            cycle = run.next_cycle(num_running)
            if cycle is not None:
                return _Try(unit=cycle, served=run)
        return None

    def _take(self, node: str, attempt: _Try, what: Message | Ended | Lost, ledger: Ledger) -> None:
        match what:
            case Lost(reason):
                self._again(attempt, f"its worker on node {node} was lost ({reason})", ledger)
            case Ended():
                self._num_done += 1
                self._watch.advance(self._num_done, self._num_done + len(self._running), None)
            case Log(name, text):
                path = ledger.folder / name
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
                ledger.append(record)

    def _again(self, attempt: _Try, why: str, ledger: Ledger) -> None:
        label = attempt.unit.label
        if attempt.number < MOST_TRIES:
            self._watch.warn(f"{label}: {why}; it begins again; what is stored stays")
            self._waiting.append(replace(attempt, number=attempt.number + 1))
            return
        reason = f"given up after {MOST_TRIES} tries: {why}"
        self._watch.warn(f"{label}: {reason}")
        for record in attempt.unit.lost(ledger.stored, reason):
            ledger.append(record)


def _stored_s(ledger: Ledger, plan: TargetPlan) -> float:
    """A clock of what all nodes have spent on a target, in seconds."""
    return spent_s(ledger.stored, plan)
