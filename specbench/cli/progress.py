"""Progress with an estimate of the time left, on stderr."""

import signal
from collections.abc import Iterable
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Self

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from specbench.bench.blocks import Block
from specbench.bench.spent import duration
from specbench.cli.console import is_terminal, open_console
from specbench.cli.live_cells import LiveCells
from specbench.exit_code import ExitCode
from specbench.records import BlockRecord


class _Live(Progress):
    """The bar, and below it the cells that were just measured."""

    def __init__(self, cells: LiveCells, *columns: ProgressColumn, **options: Any) -> None:
        self._cells = cells
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for line in self._cells.recent():
            yield Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis")


class _Count(MofNCompleteColumn):
    """Nothing where nobody can say of how many."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class ProgressWatch:
    """Shows a run on a terminal, with its cells as they are measured; elsewhere one line a stage,
    and one a cell when a pass is done, so that logs stay short.

    Within it SIGTERM stops work as Ctrl-C does, by KeyboardInterrupt; `interrupted` is the exit
    code of whichever came.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.interrupted = ExitCode.INTERRUPTED
        # Sentences are broken between words on a terminal, and are one line in a log.
        self._console = open_console(stderr=True, soft_wrap=not is_terminal(stderr=True))
        self._cells = LiveCells()
        self._progress = _Live(
            self._cells,
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            _Count(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, left="")
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        self._progress.start()
        if current_thread() is main_thread():
            self._before = signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, self._before)

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupted = ExitCode.TERMINATED
        raise KeyboardInterrupt

    def close(self) -> None:
        """Clear the display; may be called twice."""
        self._progress.stop()
        self._tell_cells()

    def _tell_cells(self) -> None:
        """In a log, where nothing is overwritten, a line for each cell that was measured."""
        for line in () if self._console.is_terminal else self._cells.untold():
            self._console.print(line)

    def run_id(self, run_id: str) -> None:
        self.id = run_id
        self._console.print(f"run {run_id}", style="dim")

    def stage(self, text: str) -> None:
        self._progress.update(self._task, description=text)
        if not self._console.is_terminal and text not in self._told:
            self._console.print(text)
        self._told.add(text)

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:
        task = self._progress.tasks[self._task]
        if seconds_left is None:
            elapsed = task.elapsed or 0.0
            seconds_left = elapsed / done * (total - done) if done else None
        left = "" if seconds_left is None else f"about {duration(max(seconds_left, 0))} left"
        self._progress.update(self._task, completed=done, total=total, left=left)
        if done == total:
            self._tell_cells()

    def measured(self, block: Block, record: BlockRecord) -> None:
        self._cells.add(block, record)

    def tell(self, text: str) -> None:
        self._console.print(text)

    def warn(self, text: str) -> None:
        self._console.print(f"warning: {text}", style="yellow")
