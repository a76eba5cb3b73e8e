"""The work of a cluster node: it measures units like a local run and sends all records."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

from specbench.bench.budget import Deadline, spent_s
from specbench.bench.machine import ThisMachine
from specbench.bench.progress import RemoteReporter, Reporter, ReporterCall
from specbench.bench.units import Unit
from specbench.errors import DeviceLostError, SpecbenchError
from specbench.inputs.pairing import Pairing
from specbench.records import Environment, RunRecord, ServerRecord
from specbench.runs import StoredRecord, create_run
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

    `run` has this machine's environment; `known` are the records of `Unit.known`. Raises
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
                unit.measure(machine, store, Deadline(budget_s, time.monotonic, spent_s=spent))
        except DeviceLostError:
            raise
        except SpecbenchError as error:
            send(TaskRejected(str(error)))


def _remote_reporter(send: SendMessage) -> Reporter:
    """A reporter of stages and warnings; blocks are not reported, since progress counts units."""
    return cast("Reporter", RemoteReporter(send, ("stage", "warn")))
