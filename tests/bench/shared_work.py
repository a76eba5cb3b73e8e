"""Work for processes of their own; they import little."""

import os
import signal
import time
from pathlib import Path

from specbench.bench.shares import Share
from specbench.bench.watch import Watch
from specbench.errors import ModelError


def squares(share: Share, watch: Watch) -> dict[int, int]:
    watch.warn("too warm")
    watch.stage(f"share {share.first}")
    return {i: i * i for i in range(7) if share.has(i)}


def refusing(share: Share, _: Watch) -> dict[int, int]:
    if share.first == 0:
        raise ModelError("no such model")
    time.sleep(600)
    return {}


def killed(_: Share, __: Watch) -> dict[int, int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def waiting(folder: Path, _: Share, watch: Watch) -> dict[int, int]:
    (folder / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGINT)  # as a terminal sends it to all of them
    watch.stage("here")
    time.sleep(600)
    return {}
