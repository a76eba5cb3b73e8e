"""Evidence from several processes equals that of one; how work is divided between them."""

import os
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from specbench.bench import sharding, verification
from specbench.bench.planning import plan_run
from specbench.bench.sharding import ALL, Shard, run_sharded
from specbench.bench.verification import _collect, _num_processes
from specbench.errors import DeviceError, ModelError
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Pairing
from specbench.settings import RunSettings
from specbench.shipped import shipped
from specbench.verify.evidence import GreedyEvidence, SampledEvidence
from tests.bench.fakes import RecordingWatch
from tests.bench.shared_work import killed, refusing, squares, waiting
from tests.settings.flat_settings import settings_of
from tests.tiny_pair import write_pair


@pytest.fixture
def pairings(tmp_path: Path) -> tuple[Pairing, ...]:
    return tuple(load_pairings(write_pair(tmp_path, num_prompts=2)).all)


def settings(folder: Path, threads: int | None = 1) -> RunSettings:
    return settings_of(
        pairings=("tiny",),
        workloads=(str(folder / "prompts.jsonl"),),
        num_speculative_tokens=(2,),
        temperatures=(0.0, 0.7),
        max_new_tokens=8,
        device="cpu",
        threads=threads,
    )


@pytest.mark.slow
def test_verification_shards_together_equal_a_single_process(
    pairings: tuple[Pairing, ...], tmp_path: Path
) -> None:
    watch = RecordingWatch()
    plans = plan_run(settings(tmp_path), pairings).targets
    whole = _collect(plans, 100, None, 4, ALL, watch)
    shares = [_collect(plans, 100, None, 4, Shard(first, 2), watch) for first in (0, 1)]

    assert [each.subject.pairing for each in whole.values()] == [
        name for name in ("tiny", *(p.name for p in pairings)) for _ in (0.0, 0.7)
    ]
    assert not shares[0].keys() & shares[1].keys()
    together = shares[0] | shares[1]
    assert together.keys() == whole.keys()
    for key, each in whole.items():
        match each, together[key]:
            case SampledEvidence() as expected, SampledEvidence() as other:
                assert expected.subject == other.subject
                assert np.array_equal(expected.surprise_N, other.surprise_N)
            case GreedyEvidence() as expected, GreedyEvidence() as other:
                assert expected == other
            case pair:
                raise AssertionError(pair)
    texts = [text for text in watch.messages if "greedy answers" in text]
    assert len(texts) == 2  # of the whole, and of the first share


def test_small_models_are_examined_on_every_core(
    pairings: tuple[Pairing, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "idle_threads", lambda: 3)
    monkeypatch.setattr("psutil.cpu_count", lambda **_: 3)
    embedded = load_pairings(shipped("pairings.yaml")).select(["demo"])
    run_settings = settings(tmp_path, threads=None)
    assert _num_processes(run_settings, embedded) == 3
    assert _num_processes(run_settings, embedded[:2]) == 2
    assert _num_processes(settings(tmp_path), embedded) == 1
    monkeypatch.setattr(verification, "_SMALL", 0)
    assert _num_processes(run_settings, pairings) == 1  # each forward takes several cores


def test_each_item_is_in_exactly_one_shard() -> None:
    shards = [Shard(first, 3) for first in range(3)]
    assert [[shard.has(piece) for shard in shards].count(True) for piece in range(10)] == [1] * 10
    assert all(ALL.has(piece) for piece in range(10))


@pytest.fixture
def forked_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that need no imports; the spawned ones are in the test of imports below."""
    monkeypatch.setattr(sharding, "get_context", lambda _: get_context("fork"))


@pytest.mark.usefixtures("forked_shards")
@pytest.mark.parametrize("num_processes", [1, 3])
def test_findings_are_ordered_and_reported_once(num_processes: int) -> None:
    watch = RecordingWatch()
    assert run_sharded(squares, num_processes, watch) == [0, 1, 4, 9, 16, 25, 36]
    assert watch.warnings == ["too warm"]
    assert set(watch.stages) == {f"share {first}" for first in range(num_processes)}


@pytest.mark.usefixtures("forked_shards")
def test_an_error_in_one_shard_ends_the_sharded_run() -> None:
    with pytest.raises(ModelError, match="no such model"):
        run_sharded(refusing, 2, RecordingWatch())


@pytest.mark.usefixtures("forked_shards")
def test_a_server_that_dies_is_reported() -> None:
    with pytest.raises(DeviceError, match="code -9"):
        run_sharded(killed, 2, RecordingWatch())


def test_logs_during_imports_are_silenced(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from tests.bench.talkative_work import nothing

    capfd.readouterr()  # this process also logged it
    assert run_sharded(nothing, 2, RecordingWatch()) == []
    assert "no kernel" not in capfd.readouterr().err


@pytest.mark.usefixtures("forked_shards")
def test_ctrl_c_is_for_the_parent_and_leaves_no_process(tmp_path: Path) -> None:
    class Interrupted(RecordingWatch):
        def stage(self, text: str, part: str = "") -> None:  # noqa: ARG002
            while len(list(tmp_path.iterdir())) < 2:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sharded(partial(waiting, tmp_path), 2, Interrupted())
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name), 0)
