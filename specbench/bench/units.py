"""The units of a run: cells that are compared with each other, measured on one machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench.bench.budget import Deadline
from specbench.bench.plan import TargetPlan
from specbench.bench.progress import Reporter
from specbench.records import BlockRecord, Environment, FailureRecord
from specbench.runs import RunStore, StoredRecord, StoredRun


class Machine(Protocol):
    """A machine that measures units."""

    @property
    def reporter(self) -> Reporter: ...

    def measure_target(self, plan: TargetPlan, store: RunStore, deadline: Deadline) -> None:
        """Measure a target with engines in a process of the machine."""


class Unit(Protocol):
    """Cells that are compared with each other, K = 0 among them. Units are pickled."""

    @property
    def plan(self) -> TargetPlan: ...

    @property
    def label(self) -> str: ...

    def measure(self, machine: Machine, store: RunStore, deadline: Deadline) -> None:
        """Measure the cells that are not stored yet, until the deadline, and store each result."""

    def known(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """The records that another machine needs to resume this unit."""
        ...

    def lost(self, stored: StoredRun, reason: str) -> Iterator[StoredRecord]:
        """Failure records, with the reason, for the parts of the unit that are not stored."""
        ...


class UnitSource(Protocol):
    """The remaining units of an engine, which may depend on the results so far."""

    def next_unit(self, num_running: int) -> Unit | None:
        """The next unit; None if there is none until one of `num_running` units ends, or no more
        at all if `num_running` is 0."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeTarget:
    """All cells of a target that engines in one process measure."""

    plan: TargetPlan

    @property
    def label(self) -> str:
        return self.plan.target.name

    def measure(self, machine: Machine, store: RunStore, deadline: Deadline) -> None:
        machine.measure_target(self.plan, store, deadline)

    def known(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """All records except blocks of other targets and environments of other machines."""
        cell_ids = {cell.key.id for cell in self.plan.all_cells}
        for record in records:
            is_foreign = isinstance(record, BlockRecord) and record.order[0] not in cell_ids
            if not is_foreign and not isinstance(record, Environment):
                yield record

    def lost(self, stored: StoredRun, reason: str) -> Iterator[StoredRecord]:  # noqa: ARG002
        yield FailureRecord(
            pairing=self.plan.target.name,
            workload="",
            stage="load",
            reason=reason,
            cell_ids=tuple(cell.key.id for cell in self.plan.all_cells),
        )


class Once:
    """The source of a single unit."""

    def __init__(self, unit: Unit) -> None:
        self._units = [unit]

    def next_unit(self, num_running: int) -> Unit | None:  # noqa: ARG002
        return self._units.pop() if self._units else None
