"""Units of work over the nodes of a cluster that is made of threads."""

import re
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from specbench.bench.cluster import MAX_ATTEMPTS, ClusterScheduler, select_nodes
from specbench.errors import SpecbenchError, UsageError
from specbench.records import FailureRecord, RunRecord
from specbench.runs import SCHEMA_VERSION, create_run
from tests.bench.fake_cluster import FakeCluster
from tests.bench.fake_runs import RUN_ID
from tests.bench.fakes import RecordingWatch
from tests.settings.flat_settings import settings_of


def failure(text):
    return FailureRecord(pairing=text, workload="", stage="decode", reason=text)


@dataclass(frozen=True)
class Words:
    """A unit that says words, each a record; those that are known already are not said again."""

    label: str
    words: tuple[str, ...]
    plan: object = field(
        default_factory=lambda: SimpleNamespace(target=SimpleNamespace(name=""), pairings=())
    )

    def measure(self, machine, store, deadline):  # noqa: ARG002
        stored = {failure.reason for failure in store.stored.failures}
        machine.reporter.stage(f"{self.label} at {store.node}")
        for word in self.words:
            if word not in stored:
                store.append(failure(word))

    def known(self, records):
        return [r for r in records if isinstance(r, FailureRecord) and r.reason in self.words]

    def lost(self, stored, reason):  # noqa: ARG002
        yield failure(f"{self.label}: {reason}")


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
    """Reasons that were stored, and the watch."""
    watch = RecordingWatch()
    settings = settings_of(pairings=("big/good",), workloads=(), engines=("vllm",))
    spread = ClusterScheduler(cluster, settings, (), watch)
    run = RunRecord(
        schema_version=SCHEMA_VERSION,
        run_id=RUN_ID,
        environment=spread.environments[0],
        settings=settings,
        workload_sha256={},
        cells=(),
    )
    with create_run(tmp_path, run) as store:
        for engine in engines:
            engine.store = store
        spread.keep_busy(engines, store, None)
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
    assert cluster.most_busy["a"] <= 2
    assert cluster.most_busy["b"] == 1
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
    # The second worker says its stage and one word before it dies.
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


def test_a_run_that_lost_every_node_ends_with_the_resume_command(tmp_path):
    cluster = FakeCluster({"a": 1}, deaths=(2,), leaves=("a",))
    with pytest.raises(SpecbenchError, match="--resume a-run"):
        spread_over(cluster, tmp_path, [InTwoPasses(units(2), [])])


SERVED = settings_of(pairings=("big/good",), workloads=(), engines=("vllm",))


def test_nodes_of_the_kind_that_most_cells_fit_on_take_part_and_others_are_named():
    watch = RecordingWatch()
    cpus = {"a": "an old one", "b": "fast", "c": "an old one"}
    nodes = select_nodes(FakeCluster({"a": 1, "b": 3, "c": 1}, cpus=cpus), SERVED, (), watch)
    assert list(nodes) == ["b"]
    assert (nodes["b"].environment.node, nodes["b"].environment.cpu) == ("b", "fast")
    (warning,) = watch.warnings
    assert "left out: a, c" in warning
    assert "an old one" in warning
    assert "most have device" in warning


def test_a_run_without_a_usable_node_is_refused():
    watch = RecordingWatch()
    settings = settings_of(pairings=("big/good",), workloads=(), device="cuda:99")
    with pytest.raises(UsageError, match=r"--ray.*node a.*--device cuda:99"):
        select_nodes(FakeCluster({"a": 1}), settings, (), watch)
    with pytest.raises(UsageError, match="no node of"):
        select_nodes(FakeCluster({}), settings, (), watch)
