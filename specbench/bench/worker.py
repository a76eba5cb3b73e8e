"""What a node of a cluster does: the same as a run here, reporting everything it finds."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

from specbench.bench.blocks import Block
from specbench.bench.deadline import Deadline
from specbench.bench.machine import ThisMachine
from specbench.bench.plan import TargetPlan
from specbench.bench.spent import spent_s
from specbench.bench.watch import Watch
from specbench.errors import DeviceLostError, SpecbenchError
from specbench.inputs.pairing import Pairing
from specbench.records import BlockRecord, Environment, FailureRecord, RunRecord, ServerRecord
from specbench.runs import Ledger, StoredRecord, StoredRun, create_run
from specbench.settings import RunSettings


class Survey(NamedTuple):
    """What a node says about itself before anything is planned."""

    environment: Environment
    dtypes: Mapping[str, str]  # in which each target would be decoded there


class Log(NamedTuple):
    """The output of a server that has ended."""

    name: str  # below the folder of the run
    text: bytes


class Stage(NamedTuple):
    text: str


class Warned(NamedTuple):
    text: str


class Refused(NamedTuple):
    """The text of a SpecbenchError: what cannot be done there."""

    text: str


Message = Survey | Log | Stage | Warned | Refused | StoredRecord
Tell = Callable[[Message], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInputs:
    """What every worker of a run is given."""

    settings: RunSettings
    pairings: tuple[Pairing, ...]
    command: tuple[str, ...]


class Unit(Protocol):
    """Cells that are compared with each other, K = 0 among them. Units are pickled."""

    @property
    def plan(self) -> TargetPlan: ...

    @property
    def label(self) -> str: ...

    def measure(self, ledger: Ledger, watch: Watch, deadline: Deadline) -> None:
        """Measure what is not stored yet, until the deadline; stored as it comes."""

    def known(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """The records that another machine needs to resume this unit."""
        ...

    def lost(self, stored: StoredRun, reason: str) -> Iterator[StoredRecord]:
        """Records that say why the unit was given up, for what is not stored of it."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeTarget:
    """Everything about a target that engines in one process measure."""

    plan: TargetPlan

    @property
    def label(self) -> str:
        return self.plan.target.name

    def measure(self, ledger: Ledger, watch: Watch, deadline: Deadline) -> None:
        from specbench.bench.this_process import ThisProcess  # noqa: PLC0415 - imports torch

        process = ThisProcess(self.plan.settings, self.plan.pairings, watch)
        process.measure(self.plan, ledger, watch, deadline)

    def known(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """All but other targets' blocks, and this machine's environment."""
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


def survey(node: str, inputs: RunInputs, tell: Tell) -> None:
    """Report this machine, as a Survey; as Refused where it cannot take part."""
    try:
        machine = ThisMachine(inputs.settings, inputs.pairings, _Telling(tell))
        targets = {pairing.target.name: pairing.target for pairing in inputs.pairings}
        environment = replace(machine.environment(inputs.command), node=node)
        dtypes = {name: machine.dtype_of(target) for name, target in targets.items()}
        tell(Survey(environment, dtypes))
    except SpecbenchError as error:
        tell(Refused(str(error)))


def work(
    unit: Unit,
    run: RunRecord,
    known: Sequence[StoredRecord],
    budget_s: float | None,
    tell: Tell,
) -> None:
    """Measure a unit, and report each record as soon as it is stored.

    `run` has this machine's environment; `known` is what `Unit.known` picked for it. Raises
    DeviceLostError, which is for the cluster: it ends this process, and another one resumes.
    """
    watch = _Telling(tell)
    with TemporaryDirectory(prefix="specbench-") as name:
        folder = Path(name)

        def tell_record(record: StoredRecord) -> None:
            if isinstance(record, ServerRecord):  # its server has ended
                for log in (folder / run.run_id).glob("servers/*.log"):
                    tell(Log(f"{log.parent.name}/{log.name}", log.read_bytes()))
                    log.unlink()
            tell(record)

        try:
            with create_run(folder, run, known, tell_record) as ledger:
                spent = spent_s(ledger.stored, unit.plan)
                deadline = Deadline(budget_s, time.monotonic, spent_s=spent)
                unit.measure(ledger, watch, deadline)
        except DeviceLostError:
            raise
        except SpecbenchError as error:
            tell(Refused(str(error)))


class _Telling:
    """A Watch that reports to the machine where the run is stored."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def run_id(self, run_id: str) -> None:
        """That machine knows it."""

    def stage(self, text: str) -> None:
        self._tell(Stage(text))

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:
        """That machine counts whole units only."""

    def measured(self, block: Block, record: BlockRecord) -> None:
        """That machine counts whole units only."""

    def tell(self, text: str) -> None:
        """Said before a run is spread; nodes say nothing more."""

    def warn(self, text: str) -> None:
        self._tell(Warned(text))
