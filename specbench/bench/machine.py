"""A run on this machine: target after target, engine after engine."""

import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from specbench.bench.budget import EXPLORE_SHARE, Deadline, spent_s
from specbench.bench.plan import TargetPlan
from specbench.bench.served.cycles import Cycle, CycleRun, ServedRun
from specbench.bench.served.host import host_of
from specbench.bench.served.race import explore_share
from specbench.bench.units import Reporter, WholeTarget
from specbench.inputs.address import Address
from specbench.inputs.pairing import Pairing
from specbench.probes.environment import describe_environment
from specbench.probes.gpu import Probe, has_gpu_driver, open_probe
from specbench.records import Environment
from specbench.runs import RunStore
from specbench.settings import RunSettings

if TYPE_CHECKING:
    from specbench.bench.this_process import ThisProcess

GPU, CPU, SERVER = "cuda:0", "cpu", "server"
# Cells that are compared with each other, K = 0 among them, and therefore measured on one machine;
# pickled for another one.
Unit = WholeTarget | Cycle
NextUnit = Callable[[int], Unit | None]  # such as ServedRun.next_unit


class ThisMachine:
    """This process and its servers. If only servers decode, torch is not imported."""

    def __init__(
        self, settings: RunSettings, pairings: Sequence[Pairing], reporter: Reporter
    ) -> None:
        self._settings, self._pairings, self._reporter = settings, pairings, reporter

    @cached_property
    def _process(self) -> "ThisProcess | None":
        """The engines in this process; None if only servers decode. UsageError without a device."""
        if not self._settings.load.in_process:
            return None
        from specbench.bench.this_process import ThisProcess  # noqa: PLC0415 - imports torch

        return ThisProcess(self._settings, self._pairings, self._reporter)

    @property
    def environments(self) -> Sequence[Environment]:
        """The environment of this machine."""
        return (self.environment(sys.argv),)

    def environment(self, command: Sequence[str]) -> Environment:
        """The environment of this machine, or of unknown hardware if servers run already."""
        if self._process is not None:
            return self._process.environment(command)
        if self._settings.servers.base_urls:
            no_probe = Probe("none (servers were running already)")
            return describe_environment(SERVER, None, command, no_probe)
        probe = open_probe(GPU)
        device = CPU if probe.reason and not has_gpu_driver() else GPU
        return describe_environment(device, self._settings.machine.threads, command, probe)

    def narrowed(self, plan: TargetPlan) -> TargetPlan:
        """The plan with what only this machine knows; as it is if only servers decode."""
        return plan if self._process is None else self._process.narrowed(plan)

    def measure(
        self, plans: Sequence[TargetPlan], running: Sequence[Address], store: RunStore
    ) -> None:
        """Measure the planned units that are not stored yet."""
        for plan in plans:
            for engine in plan.parts:  # a deadline begins when the previous part has ended
                spent = spent_s(store.stored, plan.target.name, engine)
                deadline = deadline_of(plan, engine, time.monotonic, spent)
                next_unit = source_of(plan, engine, running, store, deadline)
                while (unit := next_unit(0)) is not None:
                    self.measure_unit(unit, store, deadline)

    def measure_unit(self, unit: Unit, store: RunStore, deadline: Deadline) -> None:
        """Measure the cells that are not stored yet, until the deadline, and store each result."""
        if isinstance(unit, Cycle):
            host = host_of(unit.plan, unit.engine, unit.running, store.folder)
            CycleRun(unit, host, store, self._reporter, deadline).measure()
        else:
            assert self._process is not None, "an engine is in this process"
            self._process.measure(unit.plan, store, self._reporter, deadline)


def deadline_of(
    plan: TargetPlan, engine: str | None, clock: Callable[[], float], spent_s: float
) -> Deadline:
    """The deadline of one of a target's `parts`, which spent so many seconds already."""
    explored = EXPLORE_SHARE if engine is None else explore_share(plan, engine)
    return Deadline(plan.budget_s, clock, spent_s=spent_s, explore_share=explored)


def source_of(
    plan: TargetPlan,
    engine: str | None,
    running: Sequence[Address],
    store: RunStore,
    deadline: Deadline,
) -> NextUnit:
    """The source of the units of one of a target's `parts`."""
    if engine is not None:
        return ServedRun(plan, engine, running, store, deadline).next_unit
    assert plan.in_process is not None, "an engine is in this process"
    whole = iter([WholeTarget(plan=plan.in_process)])
    return lambda _: next(whole, None)
