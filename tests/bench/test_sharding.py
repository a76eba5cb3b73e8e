import os
import time
from functools import partial
from pathlib import Path

import pytest

from specbench.bench.sharding import ALL, Shard, run_sharded
from specbench.errors import DeviceError, ModelError
from tests.bench.fakes import RecordingWatch
from tests.bench.shared_work import killed, refusing, squares, waiting


def test_each_item_is_in_exactly_one_shard() -> None:
    shards = [Shard(first, 3) for first in range(3)]
    assert [[shard.has(piece) for shard in shards].count(True) for piece in range(10)] == [1] * 10
    assert all(ALL.has(piece) for piece in range(10))


@pytest.mark.parametrize("num_processes", [1, 3])
def test_findings_are_ordered_and_reported_once(num_processes: int) -> None:
    watch = RecordingWatch()
    assert run_sharded(squares, num_processes, watch) == [0, 1, 4, 9, 16, 25, 36]
    assert watch.warnings == ["too warm"]
    assert set(watch.stages) == {f"share {first}" for first in range(num_processes)}


def test_an_error_in_one_shard_ends_the_sharded_run() -> None:
    with pytest.raises(ModelError, match="no such model"):
        run_sharded(refusing, 2, RecordingWatch())


def test_a_server_that_dies_is_reported() -> None:
    with pytest.raises(DeviceError, match="code -9"):
        run_sharded(killed, 2, RecordingWatch())


def test_logs_during_imports_are_silenced(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from tests.bench.talkative_work import nothing

    assert run_sharded(nothing, 2, RecordingWatch()) == []
    assert "no kernel" not in capfd.readouterr().err


def test_ctrl_c_is_for_the_parent_and_leaves_no_process(tmp_path: Path) -> None:
    class Interrupted(RecordingWatch):
        def stage(self, text: str) -> None:  # noqa: ARG002
            while len(list(tmp_path.iterdir())) < 2:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sharded(partial(waiting, tmp_path), 2, Interrupted())
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name), 0)
