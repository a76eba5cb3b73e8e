"""The next session follows from what is stored, without a query to a server."""

import math
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

import pytest

from specbench.bench.budget import Deadline, mean_session_s
from specbench.bench.expected_time import earlier_sessions
from specbench.bench.served.cycles import CHUNK_BYTES, CycleRun, ServedRun, is_over, read_once
from specbench.bench.served.open_session import failed_record
from specbench.bench.served.race import SessionTimes
from specbench.bench.served.sessions import cycle_of, next_name, served_cells, was_completed
from specbench.decide.recommend import winners
from specbench.errors import ModelError, ServerError
from specbench.metrics.summary import summarize
from specbench.records import BlockRecord, DraftConfig, Fixed, RequestRecord
from specbench.runs import create_run
from specbench.stats.crossed import FEWEST_PLANNED, MIN_CYCLES, MOST_PLANNED
from specbench.stats.machine_noise import MachineKind
from tests.bench.fake_runs import run_record, write_prompts
from tests.bench.fakes import FakeClock, RecordingWatch
from tests.bench.served.served_runs import plan_of
from tests.made_records import made_request

SESSION_S = 10.0


class StoredCycle:
    """A plan of K = 0, 2 and 4, its run, and records in place of real sessions."""

    def __init__(self, folder, budget_s=None, share=0.5, **changes):
        self.plan = plan_of(folder, budget_s=budget_s, **changes)
        self.store = create_run(folder / "runs", run_record(self.plan))
        self.clock = FakeClock()
        self.prompt_s = None  # of a session by its K and prompts; None: as long as every other
        self.deadline = Deadline(budget_s, self.clock, explore_share=share)
        self.run = ServedRun(self.plan, "vllm", (), self.store, self.deadline)

    def store_session(self, session, problems=(), wobble=0.0):
        """Store the session with SESSION_S seconds, K + 1 times as fast as K = 0."""
        name, seconds = next_name(session, self.store.stored), SESSION_S - 4.0
        if self.prompt_s is not None:
            num = sum(len(block.prompts) for block in session.blocks(self.plan))
            seconds = num * self.prompt_s[session.draft.k]
        server = failed_record(session, name, problems)
        if not problems:
            server = replace(server, version="1", start_s=4.0, seconds=seconds)
            self.store.append(_block(session, name, wobble))
        self.store.append(server)
        self.clock.now_s += 4.0 + seconds

    def measure(self, cycle, host, watch=None):
        """Measure the plan at servers of the host."""
        CycleRun(cycle, host, self.store, watch or RecordingWatch(), self.deadline).measure()

    def hold_cycle(self, wobble=0.0):
        unit = self.run.next_unit(0)
        for session in unit.sessions:
            self.store_session(session, wobble=wobble * (-1) ** unit.number * (session.draft.k > 0))
        return unit


def _block(session, name, wobble):
    (cell,) = session.cells
    requests: list[RequestRecord] = [
        made_request(
            cell.key.id,
            f"p{i}",
            None,
            repeat=session.repeat,
            output_ids=tuple(range(21)),
            prefill_s=None,
            ttft_s=0.1,
            decode_s=2.0 / (session.draft.k + 1) * math.exp(wobble),
        )
        for i in range(6)
    ]
    return BlockRecord(
        block_id=f"{name}|{cell.key.id}",
        workload=cell.key.condition.workload,
        prompt_id="*",
        repeat=session.repeat,
        purpose=session.purpose,
        order=(cell.key.id,),
        started_at="2026-11-22T01:02:04+00:00",
        requests=tuple(requests),
        session=name,
        cycle=session.cycle,
    )


@pytest.fixture
def stored(tmp_path):
    with_two = StoredCycle(tmp_path)
    with with_two.store:
        yield with_two


def test_a_cycle_runs_every_k_in_ascending_and_descending_order(stored):
    sessions = list(cycle_of(served_cells(stored.plan, "vllm")[::-1], 3))
    assert [s.draft.k for s in sessions] == [0, 4, 2, 2, 4, 0]
    assert [s.repeat for s in sessions] == [6, 6, 6, 7, 7, 7]
    assert len({s.place for s in sessions}) == 6


def test_every_attempt_at_a_session_has_its_own_name(stored):
    first, *_ = cycle_of(served_cells(stored.plan, "vllm"), 0)
    assert next_name(first, stored.store.stored).endswith("explore|c0.0#1")
    # Killed before its record: a block of it is still stored.
    stored.store.append(_block(first, next_name(first, stored.store.stored), 0.0))
    assert next_name(first, stored.store.stored).endswith("c0.0#2")
    stored.store_session(first, problems=("it did not start",))
    assert next_name(first, stored.store.stored).endswith("c0.0#3")


class Broken:
    """A host on which no server starts; the reasons are by K."""

    def __init__(self, **reasons):
        self._reasons, self.opened, self.num_stops = reasons, [], 0

    def sharing(self, sessions):  # noqa: ARG002
        return nullcontext()

    def stop_shared(self):
        self.num_stops += 1

    @asynccontextmanager
    async def open(self, session):
        self.opened.append(session.draft.k)
        raise ServerError(self._reasons[f"k{session.draft.k}"])
        yield


def test_a_k_is_abandoned_after_two_failed_starts_in_a_row(stored):
    host = Broken(k0="a", k2="b", k4="c")
    unit = stored.run.next_unit(0)
    stored.measure(unit, host)
    assert host.opened == [0, 2, 4, 4, 2, 0]
    assert host.num_stops == 6  # the next session has a server that did not fail
    # All have failed twice by now, so there is nothing left to try, and nothing to confirm.
    assert stored.run.next_unit(0) is None
    # A run that is resumed tries them again.
    again = ServedRun(stored.plan, "vllm", (), stored.store, stored.deadline)
    assert again.next_unit(0).number == 0


@pytest.mark.parametrize(
    ("reasons", "num_opened", "printed"),
    [
        pytest.param(
            {"k0": "12 GiB free", "k2": "11 GiB free"}, 2, {"12 GiB free"}, id="K = 0 and another"
        ),
        pytest.param({"k0": "a", "k2": "b", "k4": "b"}, 3, {"a", "b"}, id="every other K"),
        pytest.param({"k0": "a", "k2": "b", "k4": "c"}, 6, {"a", "b", "c"}, id="different ones"),
    ],
)
def test_a_start_failure_that_repeats_and_leaves_no_speedup_ends_the_run(
    stored, reasons, num_opened, printed
):
    host, watch, unit = Broken(**reasons), RecordingWatch(), stored.run.next_unit(0)
    stored.measure(unit, host, watch)
    assert len(host.opened) == num_opened
    assert stored.run.next_unit(0) is None
    assert all(sum(w.endswith(f": {r}") for w in watch.warnings) == 1 for r in printed)


def test_a_k_that_does_not_start_leaves_the_others_to_be_measured():
    draft = {k: DraftConfig(drafter="lookup", method="ngram", length=Fixed(k)) for k in (2, 4)}
    plain, two, four = ((config, None) for config in (DraftConfig.none, draft[2], draft[4]))
    assert not is_over({four: ["b", "b"]}, {plain, two, four})
    assert is_over({four: ["b", "b"]}, {plain, four})
    assert not is_over({four: ["a", "b"]}, {plain, four})


def test_a_successful_start_resets_the_failures_of_a_k(stored):
    up, down = (s for s in stored.run.next_unit(0).sessions if s.draft.k == 4)
    (later, _) = (s for s in stored.run.next_unit(0).sessions if s.draft.k == 4)
    stored.store_session(up, problems=("it did not start",))
    assert stored.run._failures()[up.start] == ("it did not start",)
    stored.store_session(down)
    assert stored.run._failures()[up.start] == ()
    stored.store_session(later, problems=("nor now",))
    assert stored.run._failures()[up.start] == ("nor now",)


def test_a_finished_session_that_is_unusable_counts_as_run(stored):
    first, *_ = cycle_of(served_cells(stored.plan, "vllm"), 0)
    server = failed_record(first, "one", ("another client was served meanwhile",))
    assert not was_completed(server)
    assert was_completed(replace(server, seconds=1.0))


def test_session_seconds_include_start_and_requests(stored):
    first, *_ = cycle_of(served_cells(stored.plan, "vllm"), 0)
    server = failed_record(first, "one", ())
    held = replace(server, start_s=4.0, seconds=6.0)
    running = replace(server, seconds=2.0)
    assert mean_session_s([held, running, server]) == 6.0  # one of 0 seconds did not take place
    assert mean_session_s([server]) is None


def test_an_earlier_session_has_the_seconds_and_tokens_of_its_requests(stored):
    first, second, *_ = cycle_of(served_cells(stored.plan, "vllm"), 0)
    stored.store_session(first, problems=("it did not start",))
    stored.store_session(second)
    (session,) = earlier_sessions(stored.store.stored)
    assert session.server.start_s == 4.0
    assert session.num_tokens == 6 * 21
    assert session.request_s == pytest.approx(6 * (0.1 + 2.0 / (second.draft.k + 1)))


def test_the_requested_cycles_run_and_as_many_confirm_the_winner(stored):
    assert [stored.hold_cycle().number for _ in range(2)] == [0, 1]
    again = stored.run.next_unit(0)
    assert (again.number, again.purpose) == (100, "confirm")
    assert {s.draft.k for s in again.sessions} == {0, 4}
    assert [stored.hold_cycle().number for _ in range(1)] == [101]
    assert stored.run.next_unit(0) is None


def test_a_stored_cycle_is_not_measured_again(stored):
    stored.hold_cycle()
    resumed = ServedRun(stored.plan, "vllm", (), stored.store, stored.deadline)
    assert resumed.next_unit(0).number == 1


@pytest.mark.parametrize(
    ("wobble", "cycles"), [(0.001, range(FEWEST_PLANNED, 9)), (0.3, [MOST_PLANNED])]
)
def test_the_noise_sets_the_number_of_cycles_by_default(tmp_path, wobble, cycles):
    noisy = StoredCycle(tmp_path, cycles=None)
    with noisy.store:
        held = 0
        while noisy.hold_cycle(wobble=wobble).purpose == "explore":
            held += 1
    assert held in cycles  # servers without noise need those that the assumed deviation needs


def ks_of(unit):
    return sorted({session.draft.k for session in unit.sessions})


def test_a_budget_drops_the_slowest_k_and_starts_no_cycle_that_would_exceed_it(tmp_path):
    """Half of the budget is for exploring: 150 s, sessions of 10 s; a larger K is faster."""
    budget = StoredCycle(tmp_path, budget_s=300.0, cycles=None)
    with budget.store:
        # Three more cycles of all K would take 180 s, and 90 s are left.
        assert [ks_of(budget.hold_cycle()) for _ in range(2)] == [[0, 2, 4], [0, 4]]
        # With one K left there is no choice: 200 s for four cycles of K = 0 and the winner.
        again = [budget.hold_cycle() for _ in range(4)]
        assert [unit.number for unit in again] == [100, 101, 102, 103]
        assert [(unit.purpose, ks_of(unit)) for unit in again] == [("confirm", [0, 4])] * 4
        budget.clock.now_s += 1.0
        assert budget.run.next_unit(0) is None


def test_a_choice_is_confirmed_with_the_prompts_that_fit_the_time_left(tmp_path):
    """Sessions of six prompts take 6 s, and 4 s to start; 30 other prompts are left."""
    many = write_prompts(tmp_path / "many.jsonl", [f"prompt {i}" for i in range(36)])
    budget = StoredCycle(tmp_path, budget_s=600.0, cycles=None, workloads=(many,), num_prompts=6)
    with budget.store:
        explored = [budget.hold_cycle() for _ in range(5)]
        assert {unit.purpose for unit in explored} == {"explore"}
        used = {
            p.id for s in explored[0].sessions for b in s.blocks(budget.plan) for p in b.prompts
        }
        unit = budget.run.next_unit(0)
        assert (unit.purpose, ks_of(unit)) == ("confirm", [0, 4])
        expected, _ = SessionTimes(4.0, 1.0).confirming(300.0, 4, 30, MachineKind.QUIET_CPU)
        assert unit.num_prompts == expected > len(used) == 6
        for session in unit.sessions:
            (block,) = session.blocks(budget.plan)
            ids = {prompt.id for prompt in block.prompts}
            assert len(ids) == unit.num_prompts
            assert used.isdisjoint(ids)
        cycle_s = 4 * SessionTimes(4.0, 1.0).session_s(expected)
        for left_s, resumed in ((10_000.0, unit), (cycle_s, unit), (cycle_s - 1.0, None)):
            other = Deadline(left_s, budget.clock)
            again = ServedRun(budget.plan, "vllm", (), budget.store, other)
            assert again.next_unit(0) == resumed


def test_a_budget_confirms_the_fastest_also_if_none_is_shown_to_be_faster(tmp_path):
    many = write_prompts(tmp_path / "many.jsonl", [f"prompt {i}" for i in range(36)])
    noisy = StoredCycle(tmp_path, budget_s=600.0, cycles=None, workloads=(many,), num_prompts=6)
    with noisy.store:
        while (unit := noisy.hold_cycle(wobble=2.0)).purpose == "explore":
            pass
        assert not [*winners(summarize(noisy.run._gathered()))]
        assert ks_of(unit) == [0, 4]


@pytest.mark.parametrize("budget_s", [200.0, 250.0, 300.0, 400.0, 600.0, 1000.0])
def test_a_planned_confirmation_has_the_cycles_of_an_interval(tmp_path, budget_s):
    """K = 0 is twice as slow as K, so its sessions are a larger part of a cycle that confirms."""
    many = write_prompts(tmp_path / "many.jsonl", [f"prompt {i}" for i in range(36)])
    budget = StoredCycle(tmp_path, budget_s, cycles=None, workloads=(many,), num_prompts=6)
    with budget.store:
        while (unit := budget.run.next_unit(0)) is not None:
            longer = 1.1 if unit.purpose == "confirm" else 1.0  # the other prompts
            budget.prompt_s = {0: 2.0 * longer, 2: 1.0 * longer, 4: 0.9 * longer}
            for session in unit.sessions:
                budget.store_session(session)
    confirming = {s.cycle for s in budget.store.stored.servers if s.cycle >= 100}
    assert len(confirming) >= MIN_CYCLES
    assert budget.clock.now_s <= budget_s


def test_winners_that_the_same_prompts_confirm_are_as_many_as_have_time(tmp_path):
    """Nine prompts are too few to keep some, so that sessions take 4 + 9 s: 130 s are left for two
    cycles of K = 0 and one winner, but not of both."""
    nine = write_prompts(tmp_path / "nine.jsonl", [f"prompt {i}" for i in range(9)])
    pairings = ("big/lookup", "big/small")
    budget = StoredCycle(tmp_path, 390.0, 0.8, cycles=2, workloads=(nine,), pairings=pairings)
    budget.prompt_s = dict.fromkeys((0, 2, 4), 1.0)
    with budget.store:
        assert [len(budget.hold_cycle().sessions) for _ in range(2)] == [10, 10]
        again = [budget.hold_cycle() for _ in range(2)]
        assert [(unit.number, ks_of(unit)) for unit in again] == [(100, [0, 4]), (101, [0, 4])]
        assert {len(unit.sessions) for unit in again} == {4}


def test_an_interrupted_first_cycle_decides_nothing(tmp_path):
    budget = StoredCycle(tmp_path, budget_s=200.0, cycles=None)
    with budget.store:
        zero, two, *rest = budget.run.next_unit(0).sessions
        budget.store_session(zero)
        budget.store_session(two)
        resumed = ServedRun(budget.plan, "vllm", (), budget.store, budget.deadline)
        assert resumed.next_unit(0).number == 0
        assert budget.store.stored.extensions == ()
        for session in rest:
            budget.store_session(session)
        assert ks_of(resumed.next_unit(0)) == [0, 4]  # K = 2 is slower


def test_a_cycle_that_another_machine_still_measures_decides_nothing(tmp_path):
    budget = StoredCycle(tmp_path, budget_s=200.0, cycles=None)
    with budget.store:
        first = budget.run.next_unit(0)
        budget.store_session(first.sessions[0])
        budget.run.next_unit(1)
        assert budget.store.stored.extensions == ()


def test_a_resumed_race_ends_its_exploration_where_it_would_have_ended(tmp_path):
    budget = StoredCycle(tmp_path, budget_s=300.0, cycles=None)
    with budget.store:
        assert [ks_of(budget.hold_cycle()) for _ in range(2)] == [[0, 2, 4], [0, 4]]
        resumed = ServedRun(budget.plan, "vllm", (), budget.store, budget.deadline)
        assert resumed.next_unit(0).purpose == "confirm"


def test_a_race_in_which_nothing_started_is_measured_when_it_is_resumed(tmp_path):
    budget = StoredCycle(tmp_path, budget_s=300.0, cycles=None)
    with budget.store:
        for session in budget.run.next_unit(0).sessions:
            budget.store_session(session, problems=("the port is taken",))
        assert budget.run.next_unit(0) is None
        again = ServedRun(budget.plan, "vllm", (), budget.store, budget.deadline)
        unit = again.next_unit(0)
        assert (unit.number, unit.purpose, ks_of(unit)) == (0, "explore", [0, 2, 4])


def test_a_failed_start_does_not_make_the_others_longer(tmp_path):
    """Two sessions fail after 10 s, four take 4 s to start and 6 s to serve."""
    budget = StoredCycle(tmp_path, budget_s=300.0, cycles=None)
    with budget.store:
        unit = budget.run.next_unit(0)
        for session in unit.sessions:
            budget.store_session(session, problems=("memory",) if session.draft.k == 4 else ())
        assert budget.run._times(unit.cells) == (6.0, 1.0)
        budget.clock.now_s -= 20.0  # they fail at once
        assert budget.run._times(unit.cells) == (4.0, 1.0)


def test_a_budget_with_time_for_all_k_drops_none(tmp_path):
    ample = StoredCycle(tmp_path, budget_s=1000.0, cycles=None)
    with ample.store:
        assert {tuple(ks_of(ample.hold_cycle())) for _ in range(4)} == {(0, 2, 4)}


def test_a_resumed_run_follows_a_dropped_k_even_with_more_time(tmp_path):
    budget = StoredCycle(tmp_path, budget_s=200.0, cycles=None)
    with budget.store:
        budget.hold_cycle()
        assert ks_of(budget.run.next_unit(0)) == [0, 4]
        longer = Deadline(10_000.0, budget.clock)
        resumed = ServedRun(budget.plan, "vllm", (), budget.store, longer)
        assert ks_of(resumed.next_unit(0)) == [0, 4]


def test_a_budget_counts_cycles_that_run_in_parallel(tmp_path):
    """120 s to explore in, of which 60 are spent: one more cycle of K = 0 and one K, not two."""
    budget = StoredCycle(tmp_path, budget_s=240.0, cycles=None)
    with budget.store:
        budget.hold_cycle()
        assert budget.run.next_unit(1) is None
        assert budget.run.next_unit(0).number == 1


def test_an_abandoned_k_is_not_started_in_a_later_cycle(stored):
    host, unit = Broken(k0="a", k2="b"), stored.run.next_unit(0)
    start = next(s.start for s in unit.sessions if s.draft.k == 4)
    stored.measure(replace(unit, failures={start: ["c", "d"]}), host)
    assert host.opened == [0, 2, 2, 0]


def test_an_interrupted_cycle_is_measured_again_as_a_whole(stored):
    host, unit = Broken(k0="a", k2="b", k4="c"), stored.run.next_unit(0)
    for session in unit.sessions[:-1]:
        stored.store_session(session)
    stored.measure(unit, host)
    assert host.opened == [0, 2, 4, 4, 2, 0]
    whole = ServedRun(stored.plan, "vllm", (), stored.store, stored.deadline).next_unit(0)
    stored.store_session(unit.sessions[-1])
    stored.measure(whole, host)
    assert len(host.opened) == 6


@pytest.mark.parametrize(("number", "share"), [(0, 1.0), (1, 0.5)])
def test_a_cycle_ends_with_its_budget(tmp_path, number, share):
    """Without the first cycle there is no answer."""
    late = StoredCycle(tmp_path, budget_s=100.0)
    with late.store:
        host, unit = Broken(k0="a", k2="b", k4="c"), late.run.next_unit(0)
        late.clock.now_s = 100.0 * share
        late.measure(replace(unit, number=number), host)
        assert host.opened == []
        late.clock.now_s -= 1.0
        late.measure(replace(unit, number=number), host)
        assert host.opened


def test_only_the_weight_files_of_a_model_are_read(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(bytes(CHUNK_BYTES + 5))
    (tmp_path / "b.bin").symlink_to(tmp_path / "a.safetensors")
    (tmp_path / "c.gguf").write_bytes(bytes(3))
    (tmp_path / "tokenizer.json").write_bytes(bytes(7))
    (tmp_path / "d.bin").mkdir()
    assert read_once(tmp_path) == 2 * (CHUNK_BYTES + 5) + 3
    assert read_once(tmp_path / "c.gguf") == 3


def test_a_missing_model_file_is_an_error_with_its_name(tmp_path):
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        read_once(tmp_path / "absent.gguf")
