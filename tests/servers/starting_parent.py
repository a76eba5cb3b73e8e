"""A process that starts a fake engine and keeps running: `python starting_parent.py FACTS LOG
GRACE_S`."""

import asyncio
import signal
import sys
from pathlib import Path

from specbench.servers.process import started
from tests.servers.fake_engine import __file__ as engine


async def stay(facts: str, log: Path, grace_s: float) -> None:
    with started([sys.executable, engine, facts], environment={}, log=log, grace_s=grace_s):
        await asyncio.Event().wait()


if __name__ == "__main__":
    # A background job of a script, as CI may run one, ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(stay(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
