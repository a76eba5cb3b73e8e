"""Tasks for worker processes; they import little."""

import os
import signal
import time
from pathlib import Path

from specbench.bench.sharding import Shard
from specbench.bench.units import Reporter
from specbench.errors import ModelError


def squares(shard: Shard, watch: Reporter) -> dict[int, int]:
    watch.warn("too warm")
    watch.stage(f"share {shard.first}")
    return {i: i * i for i in range(7) if shard.has(i)}


def refusing(shard: Shard, _: Reporter) -> dict[int, int]:
    if shard.first == 0:
        raise ModelError("no such model")
    time.sleep(600)
    return {}


def killed(_: Shard, __: Reporter) -> dict[int, int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def waiting(folder: Path, _: Shard, watch: Reporter) -> dict[int, int]:
    (folder / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGINT)  # as a terminal sends it to all of them
    watch.stage("here")
    time.sleep(600)
    return {}
