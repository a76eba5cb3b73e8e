"""Targets in one process each, over the nodes of a cluster."""

import pytest

from specbench.bench import cluster as cluster_run
from specbench.bench.budget import Deadline, block_seconds
from specbench.decode.launcher import Launcher
from specbench.errors import DeviceLostError
from tests.bench.fake_cluster import FakeCluster
from tests.bench.fakes import Interrupted, RecordingWatch, stop_after
from tests.bench.tiny_runs import run_on, settings_for, write_tiny
from tests.settings.flat_settings import changed
from tests.stored_work import work_of

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
    there = targets.run(cluster=FakeCluster({"a": 1, "b": 1}))
    assert work_of(there, purpose="explore") == work_of(targets.here, purpose="explore")
    assert there.is_complete
    by_target = {
        target: {b.node for b in there.blocks if target in b.order[0]}
        for target in ("tiny", "twin")
    }
    assert by_target == {"tiny": {"a"}, "twin": {"b"}}
    watch = RecordingWatch()
    cluster = FakeCluster({"a": 1, "b": 1}, deaths=(12,))
    again = targets.run(watch, cluster=cluster)
    assert any("is resumed from" in text for text in watch.warnings)
    # What is said once of a load is said again; no block is decoded twice.
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


def test_a_retried_unit_gets_the_remaining_budget(targets, monkeypatch):
    begun = []

    def deadline(budget_s, clock, *, spent_s):
        begun.append((budget_s, spent_s))
        return Deadline(budget_s, clock, spent_s=spent_s)

    monkeypatch.setattr(cluster_run, "Deadline", deadline)
    watch, cluster = RecordingWatch(), FakeCluster({"a": 1}, deaths=(14,))
    stored = targets.run(watch, cluster=cluster, budget_s=200.0)
    again = [text for text in watch.warnings if "is resumed from" in text]
    assert len(again) == 1
    assert {start[0] for start in begun} == {100.0}  # half for each target
    (spent_s,) = (start[1] for start in begun if start[1])
    seconds = [sum(block_seconds(block).values()) for block in stored.blocks]
    assert 0 < spent_s < sum(seconds)
