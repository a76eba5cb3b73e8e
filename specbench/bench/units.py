"""A run as units of work, each measured on one machine; several may run at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench.bench.backend import Backend, LocalBackend
from specbench.bench.deadline import Deadline
from specbench.bench.plan import TargetPlan
from specbench.bench.watch import Watch
from specbench.records import BlockRecord, Environment, FailureRecord
from specbench.runs import Ledger, StoredRecord, StoredRun


class Unit(Protocol):
    """Cells that are compared with each other, K = 0 among them. Units are pickled."""

    @property
    def plan(self) -> TargetPlan: ...

    @property
    def label(self) -> str: ...

    def measure(self, backend: Backend, ledger: Ledger, watch: Watch, deadline: Deadline) -> None:
        """Measure what is not stored yet, until the deadline; stored as it comes."""

    def known(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """The records that another machine needs to resume this unit."""
        ...

    def lost(self, stored: StoredRun, reason: str) -> Iterator[StoredRecord]:
        """Records that say why the unit was given up, for what is not stored of it."""
        ...


class Job(Protocol):
    """Units that belong together; what is stored so far decides the next one."""

    @property
    def deadline(self) -> Deadline: ...

    def next_unit(self, num_running: int) -> Unit | None:
        """A unit that may begin beside `num_running` others; None: not now, or with none running
        never."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeTarget:
    """Everything about a target that engines in one process measure."""

    plan: TargetPlan

    @property
    def label(self) -> str:
        return self.plan.target.name

    def measure(self, backend: Backend, ledger: Ledger, watch: Watch, deadline: Deadline) -> None:
        assert isinstance(backend, LocalBackend), "servers measure no whole target"
        backend.measure(self.plan, ledger, watch, deadline)

    def known(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """All but other targets' blocks, and this machine's environment."""
        own = {cell.key.id for cell in self.plan.all_cells}
        for record in records:
            is_foreign = isinstance(record, BlockRecord) and record.order[0] not in own
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


class WholeTargetJob:
    """The job of a target's engines in one process: a single unit."""

    def __init__(self, plan: TargetPlan, deadline: Deadline) -> None:
        self.plan, self.deadline = plan, deadline
        self._left: WholeTarget | None = WholeTarget(plan=plan)

    def next_unit(self, num_running: int) -> WholeTarget | None:  # noqa: ARG002
        unit, self._left = self._left, None
        return unit
