"""Times one session of a serving engine at K = 0, before the sessions of a run are planned."""

import asyncio
import shutil
import time
from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import mkdtemp

from specbench.bench.plan import TargetPlan
from specbench.bench.served.host import ManagedServers
from specbench.bench.served.open_session import OpenSession, entered
from specbench.bench.served.race import SessionTimes
from specbench.bench.served.sessions import Answers, cycle_of, served_cells
from specbench.stats.spread import MIN_UNITS

NUM_PROMPTS = 2  # of each workload, or one per concurrent request
TRIAL_SHARE = 0.02  # of a budget: a trial within it has as many prompts as an interval needs


def try_session(plan: TargetPlan, engine: str) -> SessionTimes:
    """The seconds of a session with a few prompts; EngineError if the server does not start, and
    ServerError if it does not answer."""
    session = next(cycle_of(served_cells(plan, engine), 0))
    began_s = time.monotonic()
    folder = Path(mkdtemp(prefix="specbench-"))  # an error names the log in it
    with asyncio.Runner() as runner:
        host = ManagedServers(plan, engine, folder)
        with entered(runner, host.open(session)) as running:
            server = OpenSession(plan, session, "trial", running, runner, Answers(), None)
            server.warm_up()
            blocks = [*session.blocks(plan)]
            at_once = max(block.condition.concurrency for block in blocks)
            least, enough = max(NUM_PROMPTS, at_once), ceil(MIN_UNITS / at_once) * at_once
            most = min(len(block.prompts) for block in blocks)
            num, served_s = 0, 0.0
            # Answers differ in length, so that two of them may take half as long as the others.
            for end in (min(least, most), min(max(least, enough), most)):
                if num and served_s * end / num > TRIAL_SHARE * (plan.budget_s or 0.0):
                    break
                ready_s = time.monotonic()
                for block in blocks if end > num else ():
                    record = server.serve(replace(block, prompts=block.prompts[num:end]))
                    server.check(block, record)
                num, served_s = end, served_s + time.monotonic() - ready_s
    shutil.rmtree(folder)
    return SessionTimes(time.monotonic() - began_s - served_s, served_s / num)
