"""The number of threads is chosen by a trial, here of an engine whose seconds can be worked out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest
import torch

from specbench.bench import this_process
from specbench.bench.this_process import (
    TIMED_TOKENS,
    Facts,
    autotune_for_plan,
    choose_threads,
    thread_counts,
)
from specbench.engines.engine import Work
from specbench.errors import ModelError
from specbench.forward import autotune
from specbench.gate.fingerprint import fingerprint_of, thread_difference
from specbench.probes import host as load
from specbench.probes.host import HostLoad
from specbench.records import Contender, Request, Result
from specbench.report.document import build_document
from specbench.report.provenance import provenance
from tests.bench.fake_runs import SETTINGS, make_plan
from tests.bench.fakes import FakeEngine, Interrupted, stop_after
from tests.bench.tiny_runs import run_on, settings_for, write_tiny

FACTS: Facts = ("1" * 64, "float32", "builtin", 1)
OF_BFLOAT16: Facts = ("1" * 64, "bfloat16", "builtin", 1)
QUIET = HostLoad(num_cores=8, others_cores=0.0, steal_share=0.0, load_average=0.0)


class Threaded(FakeEngine):
    """An engine that takes `seconds_of[n]` times as long with n threads."""

    seconds_of: Mapping[int, float] = MappingProxyType({1: 1.0, 4: 1.0, 8: 1.0})

    def generate(self, request: Request, work: Work) -> Result:
        result = super().generate(request, work)
        self.numbers.append((torch.get_num_threads(), work.k))
        assert result.decode_s is not None
        return replace(result, decode_s=result.decode_s * self.seconds_of[self.numbers[-1][0]])

    @property
    def numbers(self) -> list[tuple[int, int]]:
        return self.__dict__.setdefault("_numbers", [])


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Eight cores, an empty cache, and threads that are only counted; returns `others`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_known", {})
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8)  # noqa: ARG005
    now = {"threads": 1}
    monkeypatch.setattr(torch, "set_num_threads", lambda n: now.update(threads=n))
    monkeypatch.setattr(torch, "get_num_threads", lambda: now["threads"])

    def set_busy_cores(cores: float) -> None:
        busy = QUIET._replace(others_cores=cores, busiest=(("python", cores),))
        monkeypatch.setattr(load, "host_load", lambda: busy)

    set_busy_cores(0.0)
    return set_busy_cores


@pytest.fixture
def engine() -> Threaded:
    return Threaded()


def chosen(engine: Threaded, tmp_path: Path, facts: Facts = FACTS):
    (tmp_path / "plan").mkdir(exist_ok=True)
    plan = make_plan(tmp_path / "plan", SETTINGS)
    choice = choose_threads("big", facts, partial(autotune_for_plan, plan, engine, 1))
    assert torch.get_num_threads() == int(choice.chosen)
    return choice


@pytest.mark.parametrize("fastest", [1, 4, 8])
def test_the_fastest_number_is_chosen(fastest, engine, tmp_path):
    engine.seconds_of = {1: 2.0, 4: 2.0, 8: 2.0, fastest: 1.0}
    choice = chosen(engine, tmp_path)
    assert choice.chosen == str(fastest)
    assert [c.name for c in choice.contenders] == ["1", "4", "8"]
    times = {c.name: c.seconds for c in choice.contenders}
    assert times[str(fastest)] == min(times.values())
    assert times["1" if fastest != 1 else "8"] == pytest.approx(2 * times[str(fastest)])


def test_the_smallest_of_equally_fast_thread_counts_is_chosen(engine, tmp_path):
    engine.seconds_of = {1: 1.04, 4: 1.0, 8: 1.0}
    assert chosen(engine, tmp_path).chosen == "1"


def test_the_thread_trial_interleaves_counts_at_k_0_and_4(engine, tmp_path):
    chosen(engine, tmp_path)
    warm, rest = engine.numbers[:2], engine.numbers[2:]
    assert [k for _, k in warm] == [0, 4]
    assert len(rest) >= 12
    for turn in range(0, len(rest), 6):
        assert rest[turn : turn + 6] == [(n, k) for n in (1, 4, 8) for k in (0, 4)]
    assert len(engine.calls) <= 2 + 6 * 6
    assert {call.request.max_new_tokens for call in engine.calls} == {TIMED_TOKENS}
    assert engine.loaded == []  # its memory is measured later


@pytest.mark.parametrize(
    ("busy_cores", "numbers"),
    [(0.0, [1, 4, 8]), (0.2, [1, 4, 8]), (1.0, [1, 4]), (4.0, [1, 4]), (4.5, [1]), (9.0, [1])],
)
def test_threads_above_the_idle_cores_are_not_tried(busy_cores, numbers, machine, engine, tmp_path):
    machine(busy_cores)
    engine.seconds_of = {1: 4.0, 4: 2.0, 8: 1.0}
    choice = chosen(engine, tmp_path)
    assert int(choice.chosen) == numbers[-1]
    assert {n for n, _ in engine.numbers} <= set(numbers)
    refused = [c for c in choice.contenders if c.refusal is not None]
    assert [int(c.name) for c in refused] == [n for n in (1, 4, 8) if n not in numbers]
    assert all(f"{busy_cores:.1f} of 8" in c.refusal for c in refused)
    assert all("python" in c.refusal for c in refused)
    if len(numbers) == 1:
        assert engine.calls == []  # no trial


@pytest.mark.parametrize(("cores", "numbers"), [(1, [1]), (2, [1, 2]), (3, [1, 3]), (6, [1, 3, 6])])
def test_thread_candidates_are_one_half_and_all_cores(cores, numbers):
    assert thread_counts(QUIET._replace(num_cores=cores)) == (numbers, [])


def test_a_thread_count_is_reused_for_equal_conditions(machine, engine, tmp_path, monkeypatch):
    engine.seconds_of = {1: 2.0, 4: 1.0, 8: 3.0}
    assert chosen(engine, tmp_path).chosen == "4"
    monkeypatch.setattr(autotune, "_known", {})  # as in another process
    engine.seconds_of = {1: 1.0, 4: 2.0, 8: 3.0}
    num_calls = len(engine.calls)
    kept = chosen(engine, tmp_path)
    assert (kept.chosen, len(engine.calls)) == ("4", num_calls)
    assert [c.name for c in kept.contenders] == ["1", "4", "8"]
    of_other_weights: Facts = ("2" * 64, "float32", "builtin", 1)
    of_eight_requests: Facts = ("1" * 64, "float32", "builtin", 8)
    for facts in (of_other_weights, OF_BFLOAT16, of_eight_requests):
        assert chosen(engine, tmp_path, facts).chosen == "1"
    machine(2.0)  # only 1 and 4 are left
    assert chosen(engine, tmp_path).chosen == "1"


def test_a_drafter_that_is_refused_leaves_the_next_and_k_0(engine, tmp_path):
    engine.refuses = {"good": ModelError("no")}
    chosen(engine, tmp_path)
    assert {call.drafter for call in engine.calls} == {"none", "bad"}
    engine.calls.clear()
    engine.refuses = {"good": ModelError("no"), "bad": ModelError("no")}
    chosen(engine, tmp_path, OF_BFLOAT16)
    assert {call.drafter for call in engine.calls} == {"none"}


def test_a_failed_thread_trial_uses_all_idle_cores_and_is_not_stored(engine, tmp_path):
    engine.breaks = lambda _: ModelError("no")
    assert chosen(engine, tmp_path).chosen == "8"
    engine.breaks = lambda _: None
    engine.seconds_of = {1: 1.0, 4: 2.0, 8: 3.0}
    assert chosen(engine, tmp_path).chosen == "1"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The numbers of threads in every trial; 4 wins each."""
    held = []

    def fastest(runs, timing):
        held.append([run.name for run in runs])
        for run in runs:
            timing.seconds(run.run)  # each one runs
        return "4", [Contender(name=run.name, seconds=1.0) for run in runs]

    monkeypatch.setattr(this_process, "fastest", fastest)
    return held


def test_the_choice_and_its_reason_are_in_the_record_and_a_resumed_run_keeps_it(
    tmp_path, machine, trials, monkeypatch
):
    folder = write_tiny(tmp_path)
    settings = settings_for(folder, threads=None, num_speculative_tokens=(0, 2))

    with pytest.raises(Interrupted):
        run_on(folder, settings, tmp_path / "runs", stop_after())
    assert trials == [["1", "4", "8"]]
    monkeypatch.setattr(autotune, "_known", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    machine(8.0)  # nothing is idle now
    stored = run_on(folder, settings, tmp_path / "runs", resume="latest")
    assert torch.get_num_threads() == 4
    assert len(trials) == 1
    assert stored.run.environment.threads is None
    (choice,) = {record.threads for record in stored.engines}
    assert choice.chosen == "4"
    assert [c.name for c in choice.contenders] == ["1", "4", "8"]
    document = build_document(stored)
    assert document.run.environment.threads == 4
    assert not [w for w in document.sessions if w.threads != 4]
    shown = {fact.name: fact.value for fact in provenance(document)}
    assert shown["threads"] == "4"
    assert shown["threads of tiny"].startswith("4; ")

    # Another default run, which had one core: comparable, and the difference is named.
    other = run_on(folder, settings, tmp_path / "others")
    assert len(trials) == 1
    assert {record.threads.chosen for record in other.engines} == {"1"}
    sides = [fingerprint_of(run.run, run.models, run.engines) for run in (stored, other)]
    assert thread_difference(*sides)[1:] == ("4", "1")


def test_a_requested_thread_count_is_used_without_trials(tmp_path, trials):
    folder = write_tiny(tmp_path)
    settings = settings_for(folder, threads=3, num_speculative_tokens=(0,))
    stored = run_on(folder, settings, tmp_path / "runs")
    assert trials == []
    assert torch.get_num_threads() == 3
    assert stored.run.environment.threads == 3
    assert {record.threads for record in stored.engines} == {None}
