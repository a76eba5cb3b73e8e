"""Times one session of a serving engine at K = 0, before the sessions of a run are planned."""

import asyncio
import shutil
import time
from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from specbench.bench.plan import WAITING_PER_ROW, TargetPlan
from specbench.bench.served.host import ManagedServers
from specbench.bench.served.open_session import OpenSession, entered
from specbench.bench.served.sessions import Answers, cycle_of, served_cells
from specbench.records import SESSIONS_PER_K
from specbench.stats.crossed import MIN_CYCLES, MOST_PLANNED
from specbench.stats.spread import MIN_UNITS

NUM_CONFIRMING = 2  # K = 0 and the winner
NUM_PROMPTS = 2  # of each workload, or one per concurrent request
TRIAL_SHARE = 0.02  # of a budget: a trial within it has as many prompts as an interval needs
FIRST_CYCLE_SHARE = 0.25  # of a budget: the other cycles and the confirmation follow


class TrialTimes(NamedTuple):
    """The seconds of a session at K = 0."""

    start_s: float  # its start, warm-up and stop
    prompt_s: float  # one prompt of every workload

    def session_s(self, num_prompts: int) -> float:
        return self.start_s + num_prompts * self.prompt_s

    def longest_s(self, num_prompts: int, num_sessions: int) -> float:
        """A race with a budget that does not end it: the most cycles, and as many that confirm."""
        confirming = NUM_CONFIRMING * SESSIONS_PER_K
        return MOST_PLANNED * (num_sessions + confirming) * self.session_s(num_prompts)

    def least_s(self, num_prompts: int, num_sessions: int) -> float:
        """A race that keeps a single K after its first cycle."""
        pair = NUM_CONFIRMING * SESSIONS_PER_K
        later = (MIN_CYCLES - 1) * pair + MIN_CYCLES * pair
        return (num_sessions + later) * self.session_s(num_prompts)

    def num_prompts(
        self, budget_s: float, num_sessions: int, most: int, concurrency: int = 1
    ) -> int:
        """The prompts of each workload with which a cycle of `num_sessions` takes its share of the
        budget: at most `most`, at least those that an interval needs, or that fill the batch."""
        least = max(MIN_UNITS, WAITING_PER_ROW * concurrency)
        session_s = FIRST_CYCLE_SHARE * budget_s / num_sessions
        return max(min(int((session_s - self.start_s) / self.prompt_s), most), least)


def try_session(plan: TargetPlan, engine: str) -> TrialTimes:
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
    return TrialTimes(time.monotonic() - began_s - served_s, served_s / num)
