"""Progress on stderr: the cells so far, and an estimate of the time left."""

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import Any, Self

import typer
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
from specbench.errors import ExitCode
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.streams import faulty_streams
from specbench.metrics.summary import summarize
from specbench.models.library_output import listeners
from specbench.records import BlockRecord, CellKey, Condition, Interval, Kind, RequestRecord
from specbench.words.numbers import interval_bounds, plural

MOST_LINES = 12  # on a terminal, of the block's cells
MINUTE_S = 60.0
_SIDES = "<<<<>><><"  # how the columns of a line are aligned


@dataclass
class _LiveCell:
    """Sums over blocks; for concurrent requests, seconds are those of passes."""

    label: str
    prompts: set[str] = field(default_factory=set)
    num_tokens: int = 0
    seconds: float = 0.0
    num_emitted: int = 0
    num_rounds: int = 0
    num_failed: int = 0
    clock_mhz: int | None = None
    fault: Kind | None = None  # of a block

    @property
    def speed(self) -> str:
        if self.fault:
            return f"no decode speed: {self.fault.replace('_', ' ')}"
        return f"{self.num_tokens / self.seconds:,.1f} tok/s" if self.seconds else ""

    @property
    def line(self) -> str:
        parts = [self.label, *filter(None, [self.speed])]
        if self.num_emitted > self.num_rounds:
            parts.append(f"{self.num_emitted / self.num_rounds:.2f} tokens per round")
        if self.clock_mhz is not None:
            parts.append(f"{self.clock_mhz} MHz")
        if self.num_failed:
            parts.append(f"{self.num_failed} failed")
        return ", ".join([*parts, plural(len(self.prompts), "prompt")])


class LiveCells:
    """Sums of the figures of cells over blocks."""

    def __init__(self) -> None:
        self._cells: dict[str, _LiveCell] = {}
        self._recent: list[str] = []

    def add(self, block: Block, record: BlockRecord) -> None:
        """Adds a finished block."""
        labels = {cell.key.id: cell.key.label for cell in block.cells}
        self._recent = [cell_id for cell_id in labels if cell_id in record.order]
        passes = {served.cell_id: served.seconds for served in record.passes}
        for request in record.requests:
            live = self._cells.setdefault(request.cell_id, _LiveCell(labels[request.cell_id]))
            live.prompts.add(request.prompt_id)
            _count(live, request, is_alone=request.cell_id not in passes)
        for cell in block.cells:
            served = [r for r in record.requests if r.cell_id == cell.key.id]
            faulty = faulty_streams(served, cell.key.draft.k)
            if faulty and cell.key.id not in passes:
                self._cells[cell.key.id].fault = faulty.kind
        for cell_id, seconds in passes.items():
            if cell_id in self._cells:
                self._cells[cell_id].seconds += seconds

    def figures(self, cell_id: str) -> tuple[str, str]:
        """The speed of a cell, empty if unknown, with its number of prompts."""
        cell = self._cells.get(cell_id, _LiveCell(""))
        return cell.speed, plural(len(cell.prompts), "prompt")

    def recent(self) -> list[str]:
        """One line per cell of the last block."""
        return [self._cells[cell_id].line for cell_id in self._recent if cell_id in self._cells][
            :MOST_LINES
        ]


def _count(cell: _LiveCell, request: RequestRecord, *, is_alone: bool) -> None:
    if request.error is not None:
        cell.num_failed += 1
        return
    cell.num_tokens += request.num_timed_tokens if is_alone else request.num_output_tokens
    if is_alone:
        cell.seconds += request.decode_s or 0.0
    if request.rounds is not None:
        cell.num_emitted += sum(request.rounds.num_emitted)
        cell.num_rounds += len(request.rounds)
    if request.device is not None and request.device.sm_clock_mhz is not None:
        cell.clock_mhz = request.device.sm_clock_mhz


class FinishedCells:
    """The lines of a log: one per cell, once later blocks of its setting omit it or its phase ends.

    A session of a server serves one cell per block, so the line follows its block.
    """

    def __init__(self) -> None:
        self._phase: tuple[str, str] | None = None
        self._sums, self._blocks = LiveCells(), list[BlockRecord]()
        self._keys: dict[str, CellKey] = {}
        self._unfinished: dict[Condition, dict[str, CellKey]] = {}
        self._widths = [1] * len(_SIDES)

    def add(self, block: Block, record: BlockRecord) -> list[str]:
        """The lines of the cells that are finished with this block."""
        phase, lines = (block.condition.target, block.purpose), list[str]()
        if phase != self._phase:
            lines = self.end()
            self._phase, self._sums, self._blocks, self._keys = phase, LiveCells(), [], {}
        self._sums.add(block, record)
        self._blocks.append(record)
        served = {cell.key.id: cell.key for cell in block.cells if cell.key.id in record.order}
        before = self._unfinished.get(block.condition, {})
        self._keys |= served
        self._unfinished[block.condition] = served
        lines += self._lines(key for cell_id, key in before.items() if cell_id not in served)
        return lines + self.end() if block.session else lines

    def end(self) -> list[str]:
        """The lines of all cells that are not finished yet."""
        keys = [key for group in self._unfinished.values() for key in group.values()]
        self._unfinished = {}
        return self._lines(keys)

    def _lines(self, keys: Iterable[CellKey]) -> list[str]:
        rows = [self._row(key) for key in keys]
        lengths = [[len(text) for text in row] for row in rows]
        self._widths = [max(column) for column in zip(*lengths, self._widths, strict=True)]
        forms = [f"{side}{width}" for side, width in zip(_SIDES, self._widths, strict=True)]
        return ["  ".join(map(format, row, forms)).rstrip() for row in rows]

    def _row(self, key: CellKey) -> list[str]:
        speed, prompts = self._sums.figures(key.id)
        speedup, is_again = self._speedup(key), self._blocks[-1].purpose == "confirm"
        ratio = f"{speedup.estimate:.2f}x" if speedup else ""
        bounds = interval_bounds(speedup).strip() if speedup else ""
        name = key.source if key.draft.k else key.condition.target
        row = [time.strftime("%H:%M:%S"), name, key.condition.brief, key.draft.length.named]
        note = "confirmation run" if is_again else ""
        if speedup and not (bounds or is_again):
            ratio, note = "", "too few for an interval"
        return [*row, speed, ratio, bounds, prompts, note]

    def _speedup(self, key: CellKey) -> Interval | None:
        """The speedup over the prompts so far; None at K = 0 and in a session."""
        setting = [other for other in self._keys.values() if other.condition == key.condition]
        requests = (request for block in self._blocks for request in block.requests)
        device = "cuda" if any(request.device for request in requests) else "cpu"
        purpose = self._blocks[-1].purpose
        cells = aggregate_cells(setting, self._blocks, purpose=purpose, device=device)
        return next((c.speedup for c in summarize(cells) if c.key == key), None)


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
    """Shows the progress of a run: a live display on a terminal, else a line per stage, minute and
    session of a server; if verbose, per cell. SIGTERM raises KeyboardInterrupt, as Ctrl-C does.

    A `with` block that is interrupted prints `last_words`, which gets the run's id, and exits.
    """

    def __init__(
        self,
        last_words: Callable[[str | None], str] = lambda _: "interrupted",
        *,
        is_verbose: bool = False,
    ) -> None:
        self._is_verbose = is_verbose
        self.id: str | None = None
        self._last_words = last_words
        self._exit_code = ExitCode.INTERRUPTED
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

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close()
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, self._before)
        if isinstance(error, KeyboardInterrupt):
            typer.echo(self._last_words(self.id), err=True)
            raise typer.Exit(self._exit_code) from None

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._exit_code = ExitCode.TERMINATED
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

    def stage(self, text: str, part: str = "") -> None:
        self._stage = " on ".join(filter(None, [text, part]))
        self._progress.update(self._task, description=self._stage)
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
        elif self._is_verbose or block.session:  # the tables have the cells
            self._log(self._finished.add(block, record))

    def _log(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._console.print(line)

    def info(self, text: str) -> None:
        self._console.print(text)

    def warn(self, text: str) -> None:
        """Print a warning, unless the same text was printed before."""
        line = f"warning: {text}"
        if line not in self._printed:
            self._console.print(line, style="yellow")
        self._printed.add(line)
