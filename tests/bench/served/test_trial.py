"""The plan that follows from one timed session."""

from contextlib import nullcontext
from dataclasses import replace
from math import ceil
from types import SimpleNamespace

import pytest

from specbench.bench.plan import WAITING_PER_ROW
from specbench.bench.served import trial
from specbench.bench.served.race import SessionTimes
from specbench.bench.served.trial import try_session
from specbench.stats.spread import MIN_UNITS
from tests.bench.served.served_runs import SIX, plan_of

TIMES = SessionTimes(start_s=2.0, prompt_s=0.5)


def test_the_first_cycle_takes_its_share_of_the_budget():
    # A quarter of 400 s are 10 sessions of 10 s: 8 s for prompts.
    assert TIMES.num_prompts(400.0, 10, most=20) == 16
    assert TIMES.num_prompts(400.0, 10, most=12) == 12
    assert TIMES.num_prompts(40.0, 10, most=12) == MIN_UNITS


def test_the_least_time_has_one_cycle_of_all_and_two_that_confirm_one_k():
    assert (TIMES.session_s(6), TIMES.session_s(12), TIMES.session_s(30)) == (5.0, 8.0, 17.0)
    # K = 0 and one K, up and down, with twice as many prompts as the cycle of all has.
    assert TIMES.least_s(6, 10, 30) == 10 * 5.0 + 2 * 4 * 8.0
    assert TIMES.least_s(6, 10, 6) == 10 * 5.0 + 2 * 4 * 5.0  # no more can confirm
    assert TIMES.longest_s(6, 10, 30) == 12 * (10 * 5.0 + 4 * 17.0)


def test_the_requests_of_a_session_fill_the_batch():
    assert TIMES.num_prompts(400.0, 10, most=6, concurrency=8) == 8 * WAITING_PER_ROW
    assert TIMES.num_prompts(4000.0, 10, most=60, concurrency=8) == 60


class Served:
    """A session of a server that takes a second per batch of requests."""

    seconds = 0.0

    def __init__(self, *_: object) -> None: ...

    def warm_up(self) -> None: ...

    def serve(self, block):
        Served.seconds += ceil(len(block.prompts) / block.condition.concurrency)

    def check(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("concurrency", "prompts", "prompt_s"),
    [(1, SIX, 1.0), (2, SIX, 1 / 2), (8, SIX, 1 / 8), (1, SIX[:1], 1.0)],
)
def test_as_many_requests_are_timed_as_run_at_once(
    tmp_path, monkeypatch, concurrency, prompts, prompt_s
):
    plan = plan_of(tmp_path, concurrency=(concurrency,), num_prompts=None)
    workloads = tuple(replace(w, prompts=w.prompts[: len(prompts)]) for w in plan.workloads)
    monkeypatch.setattr(trial, "OpenSession", Served)
    monkeypatch.setattr(trial, "ManagedServers", lambda *_: SimpleNamespace(open=nullcontext))
    monkeypatch.setattr(trial, "entered", lambda _, session: session)
    monkeypatch.setattr(trial, "time", SimpleNamespace(monotonic=lambda: Served.seconds))
    assert try_session(replace(plan, workloads=workloads), "vllm") == (0.0, prompt_s)


@pytest.mark.parametrize(("budget_s", "prompt_s"), [(1000.0, 2.2), (100.0, 1.0), (None, 1.0)])
def test_as_many_prompts_as_an_interval_needs_are_timed_if_they_take_little_of_the_budget(
    tmp_path, monkeypatch, budget_s, prompt_s
):
    """The answers after the first two are three times as long."""

    served = []

    class Longer(Served):
        def serve(self, block):
            served.extend(block.prompts)
            Served.seconds += sum(1 if prompt in served[:2] else 3 for prompt in block.prompts)

    plan = plan_of(tmp_path, num_prompts=None, budget_s=budget_s)
    monkeypatch.setattr(trial, "OpenSession", Longer)
    monkeypatch.setattr(trial, "ManagedServers", lambda *_: SimpleNamespace(open=nullcontext))
    monkeypatch.setattr(trial, "entered", lambda _, session: session)
    monkeypatch.setattr(trial, "time", SimpleNamespace(monotonic=lambda: Served.seconds))
    assert try_session(plan, "vllm") == (0.0, pytest.approx(prompt_s))
