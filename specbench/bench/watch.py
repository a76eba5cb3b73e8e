"""Who is told how a run goes: the command line shows it, tests record it."""

from typing import Protocol

from specbench.bench.blocks import Block
from specbench.records import BlockRecord


class Watch(Protocol):
    """Told of stages, of finished blocks and of what went wrong."""

    def run_id(self, run_id: str) -> None:
        """The id of the run that began or goes on."""

    def stage(self, text: str) -> None:
        """A new stage began: loading, warming up, measuring."""

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:
        """`done` of about `total` blocks of this stage are stored."""

    def measured(self, block: Block, record: BlockRecord) -> None:
        """A block is stored; of a server's sessions, and of other nodes, nothing is told."""

    def tell(self, text: str) -> None:
        """What a user may want to know while waiting, once."""

    def warn(self, text: str) -> None:
        """Something a reader of the results should know."""
