"""Runs a command, and ends it with all its descendants when its own standard input ends.

A separate program that uses only the standard library: `supervisor.py GRACE_S COMMAND...`. Its
standard input is a pipe from specbench, which the system closes however specbench ends. Its exit
status is the command's, or 128 plus the number of the signal that ended the command.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from select import select

POLL_S = 0.02  # only while the tree is being ended
LEFTOVER_S = 10.0  # from SIGTERM to SIGKILL for a tree whose root has ended by itself
NOT_STARTED = 127  # a shell's exit status for a command that it cannot find
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
IS_LINUX = sys.platform == "linux"


class ProcessTree:
    """The processes of a command. On Linux they include orphans, which become our children."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.status: int | None = None  # the root's exit status, once it has ended

    def reap(self) -> bool:
        """Wait for the processes that have ended; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._root:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def end(self, grace_s: float, signals: int) -> None:
        """Send SIGTERM to all, and SIGKILL after `grace_s`, until none is left."""
        self._signal(signal.SIGTERM)
        kill_at = time.monotonic() + grace_s
        while self.reap():
            if time.monotonic() >= kill_at:
                self._signal(signal.SIGKILL)
            if select([signals], [], [], POLL_S)[0]:
                os.read(signals, 512)

    def _signal(self, number: int) -> None:
        for pid in _descendants() or [-self._root]:  # without /proc: the process group
            with suppress(OSError):
                os.kill(pid, number)


def main(grace_s: float, command: list[str]) -> int:
    """Run the command; its exit status once all of its processes have ended."""
    if IS_LINUX:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signals = _signals()
    try:
        # Kept in a variable: a Popen object that is freed would take the exit status.
        root = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # engines sometimes kill their own group
            preexec_fn=_die_with_supervisor if IS_LINUX else None,
        )
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_STARTED
    tree = ProcessTree(root.pid)
    must_end = False
    while tree.reap() and tree.status is None and not must_end:
        ready, _, _ = select([0, signals], [], [])
        must_end = 0 in ready or bool(set(os.read(signals, 512)) - {signal.SIGCHLD})
    tree.end(grace_s if must_end else LEFTOVER_S, signals)
    return tree.status or 0


def _signals() -> int:
    """A pipe with a byte per received signal: SIGCHLD, or a request to end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def _descendants() -> list[int]:
    """All processes below this one; empty on systems without /proc."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            after_name = path.read_bytes().rpartition(b")")[2]  # " STATE PARENT ..."
            parents[int(path.parent.name)] = int(after_name.split()[1])
    descendants: list[int] = []
    level = {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        descendants += level
    return descendants


def _die_with_supervisor() -> None:
    """Have the system kill the root, but no other descendant, if the supervisor is killed."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
