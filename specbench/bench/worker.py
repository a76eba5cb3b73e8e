"""What a worker on another machine does: the same as a run here, reporting everything it finds."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from specbench.bench.backend import open_backend
from specbench.bench.blocks import Block
from specbench.bench.deadline import Deadline
from specbench.bench.spent import spent_s
from specbench.bench.units import Unit
from specbench.errors import DeviceLostError, SpecbenchError
from specbench.inputs.pairing import Pairing
from specbench.records import BlockRecord, Environment, RunRecord, ServerRecord
from specbench.runs import StoredRecord, create_run
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


def survey(node: str, inputs: RunInputs, tell: Tell) -> None:
    """Report this machine, as a Survey; as Refused where it cannot take part."""
    try:
        backend = open_backend(inputs.settings, inputs.pairings, _Telling(tell))
        targets = {pairing.target.name: pairing.target for pairing in inputs.pairings}
        environment = replace(backend.environment(inputs.command), node=node)
        dtypes = {name: backend.dtype_of(target) for name, target in targets.items()}
        tell(Survey(environment, dtypes))
    except SpecbenchError as error:
        tell(Refused(str(error)))


def work(
    unit: Unit,
    inputs: RunInputs,
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
            backend = open_backend(inputs.settings, inputs.pairings, watch)
            with create_run(folder, run, known, tell_record) as ledger:
                spent = spent_s(ledger.stored, unit.plan)
                deadline = Deadline(budget_s, time.monotonic, spent_s=spent)
                unit.measure(backend, ledger, watch, deadline)
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
