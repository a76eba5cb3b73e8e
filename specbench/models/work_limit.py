"""A limit on what foreign code, such as a chat template, may take of this process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

import psutil

MOST_S = 30.0  # of processor time, so that a busy machine changes nothing
MOST_GROWTH = 2**31  # bytes of memory
_LOOK_S = 0.1


class TooMuchWorkError(Exception):
    """What was to be done takes more than is allowed; the text says what of."""


@contextmanager
def limited_work(most_s: float = MOST_S, most_growth: int = MOST_GROWTH) -> Iterator[None]:
    """TooMuchWorkError where the block takes more. In the main thread alone, which has signals."""
    if current_thread() is not main_thread():
        yield
        return
    process = psutil.Process()
    most_bytes = process.memory_info().rss + most_growth
    left_s = most_s

    def look(*_: object) -> None:
        nonlocal left_s
        left_s -= _LOOK_S
        if left_s <= 0:
            raise TooMuchWorkError(f"{most_s:g} s of processor time")
        if process.memory_info().rss > most_bytes:
            raise TooMuchWorkError(f"{most_growth / 2**30:g} GiB of memory")

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # Its default is to end the process, and a last signal may be on its way to another thread.
        signal.signal(signal.SIGVTALRM, before if callable(before) else lambda *_: None)
