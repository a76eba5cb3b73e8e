"""Where a run is measured: on this machine, unit after unit, or on the nodes of a cluster."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from specbench.bench.backend import open_backend
from specbench.bench.deadline import Deadline
from specbench.bench.depth import headers_on_this_machine
from specbench.bench.plan import TargetPlan
from specbench.bench.served.served_run import ServedRun
from specbench.bench.spent import spent_s
from specbench.bench.spread import Cluster, Spread, surveyed
from specbench.bench.units import Job, WholeTargetJob
from specbench.bench.watch import Watch
from specbench.bench.worker import RunInputs
from specbench.files.head_files import HeadFiles
from specbench.files.model_spec import ModelSpec
from specbench.inputs.address import Address
from specbench.inputs.pairing import Pairing, Target
from specbench.records import Environment
from specbench.runs import Ledger
from specbench.settings import SERVED, RunSettings

Clock = Callable[[], float]


class Where(Protocol):
    """The machines of a run: what a plan needs to know of them, then their work."""

    @property
    def environments(self) -> Sequence[Environment]:
        """One per machine; all are of one kind, so the first stands for them."""
        ...

    def dtype_of(self, target: Target) -> str:
        """The dtype that the target will be decoded in."""
        ...

    def read_head(self, spec: ModelSpec) -> HeadFiles[Any]:
        """A head's config and shapes; ModelError."""
        ...

    def measure(
        self, plans: Sequence[TargetPlan], running: Sequence[Address], ledger: Ledger
    ) -> None:
        """Everything planned that is not stored yet."""
        ...


class Here:
    """This machine alone."""

    def __init__(self, settings: RunSettings, pairings: Sequence[Pairing], watch: Watch) -> None:
        self._backend, self._watch = open_backend(settings, pairings, watch), watch
        self.dtype_of, self.read_head = self._backend.dtype_of, self._backend.read_head
        self.environments = (self._backend.environment(sys.argv),)

    def measure(
        self, plans: Sequence[TargetPlan], running: Sequence[Address], ledger: Ledger
    ) -> None:
        for plan in plans:  # a target's deadline begins when the target before has ended
            for job in _jobs(plan, running, ledger, _budget_s(plans), time.monotonic):
                while (unit := job.next_unit(0)) is not None:
                    unit.measure(self._backend, ledger, self._watch, job.deadline)


class OnNodes:
    """The nodes of a cluster; nothing is decoded here. Nodes share one budget."""

    def __init__(
        self, cluster: Cluster, settings: RunSettings, pairings: Sequence[Pairing], watch: Watch
    ) -> None:
        self._cluster, self._settings, self._watch = cluster, settings, watch
        self._inputs = RunInputs(
            settings=settings, pairings=tuple(pairings), command=tuple(sys.argv)
        )
        watch.stage("checking the nodes of the cluster")
        self._nodes = surveyed(cluster, self._inputs, watch)
        self.environments = tuple(survey.environment for survey in self._nodes.values())

    def dtype_of(self, target: Target) -> str:
        return next(iter(self._nodes.values())).dtypes[target.name]

    def read_head(self, spec: ModelSpec) -> HeadFiles[Any]:
        if set(self._settings.load.engines) <= set(SERVED):
            return headers_on_this_machine(spec)
        from specbench.bench.this_process import read_shapes  # noqa: PLC0415 - imports torch

        return read_shapes(spec)

    def measure(
        self, plans: Sequence[TargetPlan], running: Sequence[Address], ledger: Ledger
    ) -> None:
        budget_s = _budget_s(plans)
        jobs: list[Job] = []
        for plan in plans:
            jobs += _jobs(plan, running, ledger, budget_s, partial(_stored_s, ledger, plan))
        Spread(self._cluster, self._nodes, self._inputs, budget_s, ledger, self._watch).measure(
            jobs
        )


def _stored_s(ledger: Ledger, plan: TargetPlan) -> float:
    """A clock of what all nodes have spent on a target, in seconds."""
    return spent_s(ledger.stored, plan)


def _budget_s(plans: Sequence[TargetPlan]) -> float | None:
    """Seconds for each target; None without a budget."""
    asked_s = plans[0].settings.effort.budget_s
    return None if asked_s is None else asked_s / len(plans)


def _jobs(
    plan: TargetPlan,
    running: Sequence[Address],
    ledger: Ledger,
    budget_s: float | None,
    clock: Clock,
) -> Iterator[Job]:
    deadline = Deadline(budget_s, clock, spent_s=spent_s(ledger.stored, plan))
    if (in_process := plan.in_process) is not None:
        yield WholeTargetJob(in_process, deadline)
    for engine in plan.served:
        yield ServedRun(plan, engine, running, ledger, deadline)
