"""The loop of every run: block after block, each stored before the next one begins."""

from collections.abc import Callable, Iterable
from typing import Protocol

from specbench.bench.blocks import Block
from specbench.bench.budget import Deadline
from specbench.bench.progress import Reporter
from specbench.records import BlockRecord
from specbench.runs import RunStore


class BlockServer(Protocol):
    """An engine that is ready: a target with its drafters loaded, or a server at one K."""

    def serve(self, block: Block) -> BlockRecord:
        """Serve the block in each of its cells. What cannot be decoded is recorded as failed."""
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
        """Serve them with one live engine; `after` is called after each one that was served."""
        for block in blocks:
            if block.id not in self._store.finished_blocks:
                # A session is not cut short: it would miss conditions that other K have.
                if block.session is None and self._deadline.is_over(block.purpose):
                    return
                record = live.serve(block)
                self._store.append(record)
                self._reporter.measured(block, record)
                after(block, record)
            self._num_done += 1
            left_s = self._deadline.seconds_left("confirm")
            self._reporter.advance(self._num_done, self._num_blocks, left_s)
