"""Reports how a run goes: the command line shows it, tests record it, other processes send it."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from specbench.bench.blocks import Block
from specbench.records import BlockRecord


class Reporter(Protocol):
    """Told of stages, of finished blocks and of what went wrong."""

    def run_id(self, run_id: str) -> None:
        """The id of the run that began or goes on."""

    def stage(self, text: str) -> None:
        """A new stage began: loading, warming up, measuring."""

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:
        """`done` of about `total` blocks of this stage are stored."""

    def measured(self, block: Block, record: BlockRecord) -> None:
        """A block is stored; the blocks of other nodes are not reported."""

    def tell(self, text: str) -> None:
        """What a user may want to know while waiting, once."""

    def warn(self, text: str) -> None:
        """Something a reader of the results should know."""


class ReporterCall(NamedTuple):
    """A call that another process made, to be repeated in this one."""

    method: str
    arguments: tuple[Any, ...]


class RemoteReporter:
    """A Reporter whose calls, or those of `methods` only, are sent to another process."""

    def __init__(
        self, send: Callable[[ReporterCall], None], methods: Collection[str] | None = None
    ) -> None:
        self._send, self._methods = send, methods

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if self._methods is None or method in self._methods:
                self._send(ReporterCall(method, arguments))

        return call
