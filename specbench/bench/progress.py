"""Reports the progress of a run to the command line, a test, or another process."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from specbench.bench.blocks import Block
from specbench.records import BlockRecord


class Reporter(Protocol):
    """Receives stages, finished blocks and warnings."""

    def run_id(self, run_id: str) -> None:
        """The run began, or was resumed."""

    def stage(self, text: str) -> None:
        """A new stage began: loading, warming up, measuring."""

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:
        """`done` of about `total` blocks of this stage are stored."""

    def measured(self, block: Block, record: BlockRecord) -> None:
        """A block is stored; the blocks of other nodes are not reported."""

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
