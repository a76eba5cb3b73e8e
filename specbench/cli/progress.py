"""Progress with an estimate of the time left, on stderr."""

import signal
from threading import current_thread, main_thread
from types import FrameType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from specbench.cli.console import open_console
from specbench.exit_code import ExitCode


class ProgressWatch:
    """Shows a run on a terminal; elsewhere one line a stage, so that logs stay short.

    Within it SIGTERM stops work as Ctrl-C does, by KeyboardInterrupt; `interrupted` is the exit
    code of whichever came.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.interrupted = ExitCode.INTERRUPTED
        self._console = open_console(stderr=True, soft_wrap=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
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
        left = "" if seconds_left is None else f"about {_duration(max(seconds_left, 0))} left"
        self._progress.update(self._task, completed=done, total=total, left=left)

    def warn(self, text: str) -> None:
        self._console.print(f"warning: {text}", style="yellow")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
