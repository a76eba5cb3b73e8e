"""Units of work and targets over the nodes of a cluster, as threads and as processes."""

import re
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from specbench.bench import cluster as cluster_run
from specbench.bench import machine
from specbench.bench.budget import Deadline, block_seconds
from specbench.bench.cluster import MAX_ATTEMPTS, ClusterScheduler, TaskEnded, select_nodes
from specbench.bench.planning import RunPlan
from specbench.bench.units import WholeTarget
from specbench.decode.launcher import Launcher
from specbench.errors import DeviceLostError, SpecbenchError, UsageError
from specbench.records import BlockRecord, FailureRecord, RunRecord
from specbench.runs import SCHEMA_VERSION, create_run
from tests.bench.fake_cluster import FakeCluster
from tests.bench.fake_runs import RUN_ID
from tests.bench.fakes import Interrupted, RecordingWatch, stop_after
from tests.bench.tiny_runs import run_on, settings_for, write_tiny
from tests.settings.flat_settings import changed, settings_of
from tests.stored_work import work_of


def no_targets(settings):
    """A plan of no target, for nodes that only state their hardware."""
    return RunPlan(settings=settings, targets=(), running=())


def failure(text):
    return FailureRecord(pairing=text, workload="", stage="decode", reason=text)


@dataclass(frozen=True)
class Words:
    """A unit that produces words, each a record; stored words are not produced again."""

    label: str
    words: tuple[str, ...]
    plan: object = field(
        default_factory=lambda: SimpleNamespace(
            target=SimpleNamespace(name=""), pairings=(), budget_s=None
        )
    )

    def measure(self, store, reporter):
        stored = {failure.reason for failure in store.stored.failures}
        reporter.stage(f"{self.label} at {store.node}")
        for word in self.words:
            if word not in stored:
                store.append(failure(word))

    def records_to_resume(self, records):
        return [r for r in records if isinstance(r, FailureRecord) and r.reason in self.words]

    def failure_records(self, stored, reason):  # noqa: ARG002
        yield failure(f"{self.label}: {reason}")


class WordsMachine:
    """The machine of a node that measures words."""

    def __init__(self, settings, pairings, reporter):  # noqa: ARG002
        self.reporter = reporter

    def measure_unit(self, unit, store, deadline):  # noqa: ARG002
        unit.measure(store, self.reporter)


class InTwoPasses:
    """An engine whose second pass begins when all of the first is done."""

    def __init__(self, first, second):
        self.passes = [list(first), list(second)]
        self.stored_at_second = None
        self.store = None

    def next_unit(self, num_running):
        if self.passes[0]:
            return self.passes[0].pop(0)
        if num_running and self.stored_at_second is None:
            return None
        if self.stored_at_second is None:
            self.stored_at_second = len(self.store.records)
        return self.passes[1].pop(0) if self.passes[1] else None


def spread_over(cluster, tmp_path, engines):
    """The stored reasons, and the watch."""
    watch = RecordingWatch()
    settings = settings_of(pairings=("big/good",), workloads=(), engines=("vllm",))
    spread = ClusterScheduler(cluster, no_targets(settings), watch)
    run = RunRecord(
        schema_version=SCHEMA_VERSION,
        run_id=RUN_ID,
        environment=spread.environments[0],
        settings=settings,
        workload_sha256={},
        cells=(),
    )
    with (
        create_run(tmp_path, run) as store,
        patch.object(cluster_run, "ThisMachine", WordsMachine),
    ):
        for engine in engines:
            engine.store = store
        spread.keep_busy([engine.next_unit for engine in engines], store)
        return [record.reason for record in store.records], watch


def units(num, size=3):
    return [Words(f"u{i}", tuple(f"u{i}.{j}" for j in range(size))) for i in range(num)]


def words_of(*parts):
    return Counter(word for part in parts for unit in part for word in unit.words)


def test_every_record_of_every_unit_is_stored_once_and_no_node_has_more_than_its_slots(tmp_path):
    cluster = FakeCluster({"a": 2, "b": 1})
    job = InTwoPasses(units(8), [])
    stored, watch = spread_over(cluster, tmp_path, [job])
    assert Counter(stored) == words_of(units(8))
    assert cluster.max_busy["a"] <= 2
    assert cluster.max_busy["b"] == 1
    assert set(cluster.begun[2:]) == {"a", "b"}
    assert watch.advances[-1][:2] == (8, 8)
    assert any("(node b)" in stage for stage in watch.stages)


def test_the_second_pass_is_planned_after_the_first_is_stored(tmp_path):
    first, second = units(4), [Words("again", ("again.0",))]
    job = InTwoPasses(first, second)
    stored, _ = spread_over(FakeCluster({"a": 1, "b": 1}), tmp_path, [job])
    assert job.stored_at_second == 12
    assert Counter(stored) == words_of(first, second)


def test_a_lost_worker_neither_loses_nor_repeats_a_record(tmp_path):
    # The second worker reports its stage and one word before it dies.
    cluster = FakeCluster({"a": 1, "b": 1}, deaths=(None, 3))
    stored, watch = spread_over(cluster, tmp_path, [InTwoPasses(units(4), [])])
    assert Counter(stored) == words_of(units(4))
    (warning,) = watch.warnings
    assert "(killed by the test); " in warning


def test_a_node_that_left_gets_no_more_work(tmp_path):
    cluster = FakeCluster({"a": 1, "b": 1}, deaths=(0,), leaves=("a",))
    stored, _ = spread_over(cluster, tmp_path, [InTwoPasses(units(4), [])])
    assert Counter(stored) == words_of(units(4))
    assert cluster.begun[2:].count("a") == 1


def test_a_unit_that_kills_every_worker_fails_and_the_rest_continues(tmp_path):
    cluster = FakeCluster({"a": 1}, deaths=(0,) * MAX_ATTEMPTS)
    stored, watch = spread_over(cluster, tmp_path, [InTwoPasses(units(2), [])])
    assert re.search("u0: failed 3 times", stored[0])
    assert Counter(stored[1:]) == words_of(units(2)[1:])
    assert len(watch.warnings) == MAX_ATTEMPTS


class Leaving(FakeCluster):
    """Its nodes leave as soon as the task of this number has ended."""

    last = 2  # after the survey and a unit

    def next_event(self):
        event = super().next_event()
        if event.task == self.last and isinstance(event.message, TaskEnded):
            self._slots.clear()
        return event


def test_a_run_whose_nodes_leave_when_all_is_measured_is_complete(tmp_path):
    stored, _ = spread_over(Leaving({"a": 1}), tmp_path, [InTwoPasses(units(2), [])])
    assert Counter(stored) == words_of(units(2))


def test_a_run_that_lost_every_node_ends_with_the_resume_command(tmp_path):
    cluster = FakeCluster({"a": 1}, deaths=(2,), leaves=("a",))
    with pytest.raises(SpecbenchError, match="--resume a-run"):
        spread_over(cluster, tmp_path, [InTwoPasses(units(2), [])])


@dataclass(frozen=True)
class Rejecting(Words):
    def measure(self, store, reporter):  # noqa: ARG002
        raise UsageError(f"no {self.label} here")


def test_a_unit_that_a_node_rejects_ends_the_run_with_the_nodes_name(tmp_path):
    with pytest.raises(SpecbenchError, match="node a: no u0 here"):
        spread_over(FakeCluster({"a": 1}), tmp_path, [InTwoPasses([Rejecting("u0", ())], [])])


@dataclass(frozen=True)
class Slow(Words):
    def measure(self, store, reporter):  # noqa: ARG002
        reporter.warn(f"{self.label} is slow")


def test_a_warning_of_a_unit_has_the_nodes_name(tmp_path):
    job = InTwoPasses([Slow("u0", ())], [])
    _, watch = spread_over(FakeCluster({"a": 1}), tmp_path, [job])
    assert watch.warnings == ["node a: u0 is slow"]


SERVED = settings_of(pairings=("big/good",), workloads=(), engines=("vllm",))


def test_nodes_of_the_kind_that_most_cells_fit_on_take_part_and_others_are_named():
    watch = RecordingWatch()
    cpus = {"a": "an old one", "b": "fast", "c": "an old one"}
    nodes = select_nodes(
        FakeCluster({"a": 1, "b": 3, "c": 1}, cpus=cpus), no_targets(SERVED), watch
    )
    assert list(nodes) == ["b"]
    assert (nodes["b"].environment.node, nodes["b"].environment.cpu) == ("b", "fast")
    (warning,) = watch.warnings
    assert "left out: a, c" in warning
    assert "an old one" in warning
    assert "most have device" in warning


def test_a_run_without_a_usable_node_is_refused():
    watch = RecordingWatch()
    plan = no_targets(settings_of(pairings=("big/good",), workloads=(), device="cuda:99"))
    with pytest.raises(UsageError, match=r"--ray.*node a.*--device cuda:99"):
        select_nodes(FakeCluster({"a": 1}), plan, watch)
    with pytest.raises(UsageError, match="no node of"):
        select_nodes(FakeCluster({}), plan, watch)


TWIN = """\
  twin:
    model: ./target
    drafters:
      ngram: {method: ngram}
"""


class Targets:
    """Two targets in a folder, and a run of both on this machine."""

    def __init__(self, folder):
        self.folder = write_tiny(folder)
        with (folder / "pairings.yaml").open("a") as file:
            file.write(TWIN)
        pairings = ("tiny/draft", "twin/ngram")
        self.settings = settings_for(folder, pairings=pairings, num_speculative_tokens=(2,))
        self.here = self.run()

    def run(self, watch=None, cluster=None, resume=None, **changes):
        settings = changed(self.settings, **changes)
        return run_on(self.folder, settings, self.folder / "runs", watch, resume, cluster)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return Targets(tmp_path_factory.mktemp("targets"))


def blocks_of(stored):
    return [line for line in work_of(stored, purpose="explore") if '"type": "block"' in line]


def test_a_run_on_two_nodes_resumes_to_the_result_of_one_machine(targets):
    watch = RecordingWatch()
    there = targets.run(watch, cluster=FakeCluster({"a": 1, "b": 1}))
    assert work_of(there, purpose="explore") == work_of(targets.here, purpose="explore")
    assert there.run.cells == targets.here.run.cells  # narrowed by a node, with its dtype
    assert {cell.key.condition.dtype for cell in there.run.cells} == {"float32"}
    assert there.is_complete
    assert {"tiny: loading (node a)", "twin: loading (node b)"} <= set(watch.stages)
    by_target = {
        target: {b.node for b in there.blocks if target in b.order[0]}
        for target in ("tiny", "twin")
    }
    assert by_target == {"tiny": {"a"}, "twin": {"b"}}
    watch = RecordingWatch()
    cluster = FakeCluster({"a": 1, "b": 1}, deaths=(12,))
    again = targets.run(watch, cluster=cluster)
    assert any("is resumed from" in text for text in watch.warnings)
    # Messages of a load are repeated; no block is decoded twice.
    assert blocks_of(again) == blocks_of(targets.here)


def test_a_device_that_is_lost_ends_its_worker_and_another_resumes(targets, monkeypatch):
    launch, num_rounds = Launcher.launch, 0

    def lost_once(self, *arguments):
        nonlocal num_rounds
        num_rounds += 1
        if num_rounds == 60:  # in a block of the first target
            raise DeviceLostError("the GPU fails at everything since")
        return launch(self, *arguments)

    monkeypatch.setattr(Launcher, "launch", lost_once)
    watch = RecordingWatch()
    there = targets.run(watch, cluster=FakeCluster({"a": 1}))
    assert any("the GPU fails" in text for text in watch.warnings)
    assert blocks_of(there) == blocks_of(targets.here)
    assert there.is_complete
    assert there.failures == ()


def test_a_run_interrupted_on_a_cluster_completes_on_one_machine(targets):
    watch = stop_after()  # when the first target is done
    with pytest.raises(Interrupted):
        targets.run(watch, cluster=FakeCluster({"a": 1}))
    whole = targets.run(resume=watch.ids[0])
    assert whole.is_complete
    assert blocks_of(whole) == blocks_of(targets.here)
    by_node = {block.node for block in whole.blocks if "tiny/draft" in "".join(block.order)}
    assert by_node == {"a"}
    assert {block.node for block in whole.blocks} == {"a", None}


def test_a_unit_resumes_with_the_blocks_of_its_target_and_without_other_environments(targets):
    there = targets.run(cluster=FakeCluster({"a": 1, "b": 1}))
    (tiny, twin) = (
        WholeTarget(plan=SimpleNamespace(all_cells=cells))
        for name in ("tiny", "twin")
        for cells in [[c for c in there.run.cells if c.key.condition.target == name]]
    )
    kept = [*tiny.records_to_resume((*there.blocks, *there.sessions, *there.references))]
    own = {record.block_id for record in kept if isinstance(record, BlockRecord)}
    assert own == {block.block_id for block in there.blocks if "tiny" in block.order[0]}
    assert len(there.sessions) == 1
    assert kept[len(own) :] == list(there.references)
    assert own.isdisjoint(b.block_id for b in twin.records_to_resume(there.blocks))


@pytest.fixture
def begun(monkeypatch):
    """The budget of every deadline, and how much of it was spent when it began."""
    begun = []

    def deadline(budget_s, clock, *, spent_s, explore_share):
        begun.append((budget_s, spent_s))
        return Deadline(budget_s, clock, spent_s=spent_s, explore_share=explore_share)

    monkeypatch.setattr(machine, "Deadline", deadline)
    return begun


def test_targets_on_this_machine_share_the_budget(targets, begun):
    watch = stop_after()  # when the first target is done
    with pytest.raises(Interrupted):
        targets.run(watch, budget_s=200.0)
    assert begun == [(100.0, 0.0)]
    stored = targets.run(resume=watch.ids[0], budget_s=200.0)
    (tiny, twin) = begun[1:]
    before = [b for b in stored.blocks if "tiny" in b.order[0]]
    assert tiny[0] == twin[0] == 100.0
    assert 0 < tiny[1] <= sum(sum(block_seconds(block).values()) for block in before)
    assert twin[1] == 0.0


def test_a_target_without_time_left_is_not_measured(targets):
    assert targets.run(budget_s=1e-6).blocks == ()


def test_a_retried_unit_gets_the_remaining_budget(targets, begun):
    watch, cluster = RecordingWatch(), FakeCluster({"a": 1}, deaths=(14,))
    stored = targets.run(watch, cluster=cluster, budget_s=200.0)
    again = [text for text in watch.warnings if "is resumed from" in text]
    assert len(again) == 1
    assert {start[0] for start in begun} == {100.0}  # half for each target
    (spent_s,) = (start[1] for start in begun if start[1])
    seconds = [sum(block_seconds(block).values()) for block in stored.blocks]
    assert 0 < spent_s < sum(seconds)
