"""Progress on stderr: the cells so far, and an estimate of the time left."""

import signal
from collections.abc import Iterable
from threading import Event, Thread, current_thread, main_thread
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
from specbench.bench.budget import duration
from specbench.cli.console import is_terminal, open_console
from specbench.cli.live_cells import FinishedCells, LiveCells
from specbench.errors import ExitCode
from specbench.models.progress import listeners
from specbench.records import BlockRecord

MINUTE_S = 60.0


class _LiveProgress(Progress):
    """The progress bar, with the latest cells below it."""

    def __init__(self, cells: LiveCells, *columns: ProgressColumn, **options: Any) -> None:
        self._cells = cells
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for line in self._cells.recent():
            yield Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis")


class _Count(MofNCompleteColumn):
    """Blocks done and in total; empty if the total is unknown or the bar shows time."""

    def render(self, task: Task) -> Text:
        is_hidden = task.total is None or task.fields["is_time"]
        return Text() if is_hidden else super().render(task)


class ProgressWatch:
    """Shows the progress of a run: a live display on a terminal, else a line per stage, cell and
    minute. SIGTERM raises KeyboardInterrupt, as Ctrl-C does; `interrupted` is the exit code."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.interrupted = ExitCode.INTERRUPTED
        # A terminal wraps sentences between words; a log has one line per sentence.
        self._console = open_console(stderr=True, soft_wrap=not is_terminal(stderr=True))
        self._cells, self._finished = LiveCells(), FinishedCells()
        self._progress = _LiveProgress(
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
        self._task = self._progress.add_task("", total=None, left="", is_time=False)
        self._stage = ""
        self._printed: set[str] = set()
        # Blocks and seconds at the first advance of a pass.
        self._first_advance: tuple[int, float] | None = None
        self._closed = Event()

    def __enter__(self) -> Self:
        self._progress.start()
        listeners.append(self.detail)
        if not self._console.is_terminal:
            Thread(target=self._print_each_minute, daemon=True).start()
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
        self._closed.set()
        self._progress.stop()
        self._log(self._finished.end())
        if self.detail in listeners:
            listeners.remove(self.detail)

    def _print_each_minute(self) -> None:
        """Print the state once a minute, if the output is a log."""
        while not self._closed.wait(MINUTE_S):
            task = self._progress.tasks[self._task]
            parts = [task.description, f"{duration(task.elapsed or 0.0)} so far"]
            if task.total is not None and not task.fields["is_time"]:
                parts.append(f"{task.completed:.0f} of {task.total:.0f} blocks")
            self._console.print(", ".join(filter(None, [*parts, task.fields["left"]])))

    def run_id(self, run_id: str) -> None:
        self.id = run_id
        self._console.print(f"run {run_id}", style="dim")

    def detail(self, text: str) -> None:
        """Progress of a slow step within the stage: a terminal shows it immediately, a log with the
        next line of `_print_each_minute`."""
        shown = ": ".join(filter(None, [self._stage, text]))
        self._progress.update(self._task, description=shown)

    def stage(self, text: str) -> None:
        self._stage = text
        self._progress.update(self._task, description=text)
        if not self._console.is_terminal and text not in self._printed:
            self._console.print(text)
        self._printed.add(text)

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:
        task = self._progress.tasks[self._task]
        elapsed, is_time = task.elapsed or 0.0, seconds_left is not None
        if self._first_advance is None or done <= self._first_advance[0]:  # no block measured yet
            self._first_advance = (done, elapsed)
        num_done, spent_s = done - self._first_advance[0], elapsed - self._first_advance[1]
        if seconds_left is None and num_done:
            seconds_left = spent_s / num_done * (total - done)
        left = "" if seconds_left is None else f"about {duration(max(seconds_left, 0))} left"
        completed, most = float(done), float(total)
        if is_time:
            completed, most = elapsed, elapsed + max(seconds_left or 0.0, 0.0)
        self._progress.update(
            self._task, completed=completed, total=most, left=left, is_time=is_time
        )

    def measured(self, block: Block, record: BlockRecord) -> None:
        if self._console.is_terminal:
            self._cells.add(block, record)
        else:
            self._log(self._finished.add(block, record))

    def _log(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._console.print(line)

    def info(self, text: str) -> None:
        self._console.print(text)

    def warn(self, text: str) -> None:
        """Each text is printed once."""
        line = f"warning: {text}"
        if line not in self._printed:
            self._console.print(line, style="yellow")
        self._printed.add(line)
