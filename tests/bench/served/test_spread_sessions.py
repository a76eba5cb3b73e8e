"""Cycles of sessions over the nodes of a cluster, whose workers may die."""

from collections import defaultdict

import pytest

from specbench.bench.cluster import LogMessage
from specbench.metrics.aggregate import usable_sessions
from specbench.report.document import build_document
from tests.bench.fake_cluster import FakeCluster
from tests.bench.fakes import Interrupted, RecordingWatch, stop_after
from tests.bench.served.served_runs import measured, settings_for
from tests.stored_work import work_of

pytestmark = pytest.mark.slow


class Folder:
    """A folder for runs, their settings, and one run measured on this machine."""

    def __init__(self, path):
        self.path = path
        self.settings = settings_for(path, num_speculative_tokens=(0, 2))
        self.here = measured(path, self.settings)

    def measured(self, watch=None, resume=None, cluster=None):
        return measured(self.path, self.settings, watch, resume, cluster)

    def explored_as_here(self, stored):
        return work_of(stored, purpose="explore") == work_of(self.here, purpose="explore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("spread"))


def nodes_by_cycle(stored):
    nodes = defaultdict(set)
    for server in usable_sessions(stored.servers).values():
        nodes[server.cycle].add(server.node)
    return nodes


def test_a_run_on_two_nodes_stores_the_same_as_on_one_machine(folder):
    cluster = FakeCluster({"a": 1, "b": 1})
    there = folder.measured(cluster=cluster)
    assert folder.explored_as_here(there)
    assert there.is_complete
    nodes = nodes_by_cycle(there)
    assert nodes[0] | nodes[1] == {"a", "b"}
    assert all(len(nodes) == 1 for nodes in nodes.values())
    assert {block.node for block in there.blocks} == {"a", "b"}
    assert [env.node for env in (there.run.environment, *there.sessions)] == ["a", "b"]
    logs = sorted(server.log for server in there.servers)
    assert sorted(m.name for m in cluster.messages if isinstance(m, LogMessage)) == logs
    assert all((there.folder / log).is_file() for log in logs)
    assert {server.node for server in folder.here.servers} == {None}


def test_a_worker_that_dies_in_mid_cycle_loses_no_session(folder):
    watch = RecordingWatch()
    # A session is four messages: its stage, a block, the log, the record.
    cluster = FakeCluster({"a": 1, "b": 1}, deaths=(6,), leaves=("a",))
    there = folder.measured(watch, cluster=cluster)
    assert folder.explored_as_here(there)
    assert all(nodes == {"b"} for nodes in nodes_by_cycle(there).values())
    assert any("is resumed from" in text for text in watch.warnings)
    first = [server.node for server in there.servers if server.place.endswith("explore|c0.0")]
    assert sorted(first) == ["a", "b", "b"]  # K = 0 on both: its K = 2 is on the second
    for cell in build_document(there).cells:
        assert cell.metrics["num_cycles"] == 2


@pytest.mark.long
def test_an_interrupted_run_keeps_what_is_stored_and_is_completed_without_a_cluster(folder):
    watch = stop_after()
    with pytest.raises(Interrupted):
        folder.measured(watch, cluster=FakeCluster({"a": 1}))
    whole = folder.measured(resume=watch.ids[0])
    assert folder.explored_as_here(whole)
    assert whole.is_complete
    nodes = nodes_by_cycle(whole)
    assert (nodes[0], nodes[1]) == ({"a"}, {None})
    explored = [server for server in whole.servers if "explore" in server.place]
    assert len(explored) == 8  # sessions of the first cycle were not repeated
