"""Reads a value repeatedly on a separate thread while measured code runs."""

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class PeriodicReader(Generic[T]):
    """Calls `read` at once, every `interval_s` after that, and once more at the end."""

    def __init__(self, read: Callable[[], T], interval_s: float) -> None:
        self._read = read
        self._interval_s = interval_s
        self._samples: list[T] = []
        self._stopping = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start over; a start that was never stopped ends here and its samples are lost."""
        self.stop()
        self._stopping.clear()
        self._thread = Thread(target=self._run, name="specbench-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> list[T]:
        """End the thread and return its samples, oldest first; none without a start."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None
        samples, self._samples = self._samples, []
        return samples

    def _run(self) -> None:
        self._samples.append(self._read())
        while not self._stopping.wait(self._interval_s):
            self._samples.append(self._read())
        self._samples.append(self._read())
