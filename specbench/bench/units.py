"""The reporter of a run, the unit of engines in one process, and the loop: blocks run one after
another, and each is stored and reported before the next one starts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from specbench.bench.blocks import Block
from specbench.bench.budget import Deadline
from specbench.bench.plan import TargetPlan
from specbench.records import BlockRecord, Environment, FailureRecord
from specbench.runs import RunStore, StoredRecord, StoredRun


class Reporter(Protocol):
    """Receives stages, finished blocks and warnings."""

    def run_id(self, run_id: str) -> None:
        """The run began, or was resumed."""

    def stage(self, text: str, part: str = "") -> None:
        """A new stage began: loading, warming up, measuring; `part`: which part of it."""

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:
        """`done` of about `total` blocks of this stage are stored."""

    def measured(self, block: Block, record: BlockRecord) -> None:
        """A block is stored; the blocks of other nodes are not reported."""

    def detail(self, text: str) -> None:
        """Progress within the stage, which a log may leave out."""

    def info(self, text: str) -> None:
        """Information for the waiting user, e.g. an estimate of the time."""

    def warn(self, text: str) -> None:
        """A warning for readers of the results."""


class ReporterCall(NamedTuple):
    """A call made in another process, to be repeated in this one."""

    method: str
    arguments: tuple[Any, ...]


class RemoteReporter:
    """A Reporter that sends its calls, or only those of `methods`, to another process."""

    def __init__(
        self, send: Callable[[ReporterCall], None], methods: Collection[str] | None = None
    ) -> None:
        self._send, self._methods = send, methods

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if self._methods is None or method in self._methods:
                self._send(ReporterCall(method, arguments))

        return call


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeTarget:
    """A unit: all cells of a target that engines in one process measure."""

    plan: TargetPlan

    @property
    def label(self) -> str:
        return self.plan.target.name

    def records_to_resume(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """The records that another machine needs to resume the unit: all except blocks of other
        targets and environments of other machines."""
        cell_ids = {cell.key.id for cell in self.plan.all_cells}
        for record in records:
            is_foreign = isinstance(record, BlockRecord) and record.order[0] not in cell_ids
            if not is_foreign and not isinstance(record, Environment):
                yield record

    def failure_records(self, stored: StoredRun, reason: str) -> Iterator[StoredRecord]:  # noqa: ARG002
        """Failure records, with the reason, for the parts of the unit that are not stored."""
        yield FailureRecord(
            pairing=self.plan.target.name,
            workload="",
            stage="load",
            reason=reason,
            cell_ids=tuple(cell.key.id for cell in self.plan.all_cells),
        )


class BlockServer(Protocol):
    """An engine that is ready: a target with its drafters loaded, or a server at one K."""

    def serve(self, block: Block) -> BlockRecord:
        """Serve the block in each of its cells. Requests that fail are recorded as failed."""
        ...


class RunLoop:
    """Serves the blocks of one pass that are not stored yet; `num_blocks` are planned."""

    def __init__(
        self, store: RunStore, reporter: Reporter, deadline: Deadline, num_blocks: int
    ) -> None:
        self._store, self._reporter, self._deadline = store, reporter, deadline
        self._num_done, self._num_blocks = 0, num_blocks

    def serve(
        self,
        blocks: Iterable[Block],
        live: BlockServer,
        after: Callable[[Block, BlockRecord], None] = lambda *_: None,
    ) -> None:
        """Serve the blocks with one ready engine; call `after` after each block that was served."""
        for block in blocks:
            if block.id not in self._store.finished_blocks:
                # A session is never cut short, since it would lack conditions that other K have.
                if block.session is None and self._deadline.is_over(block.purpose):
                    return
                record = live.serve(block)
                self._store.append(record)
                self._reporter.measured(block, record)
                after(block, record)
            self._num_done += 1
            left_s = self._deadline.seconds_left("confirm")
            self._reporter.advance(self._num_done, self._num_blocks, left_s)
