"""A run while the machine fails around it: nothing measured is lost or stored twice."""

import random
from datetime import UTC, datetime, timedelta

import pynvml
import pytest

from specbench.bench import session
from specbench.errors import StoreError
from specbench.probes.gpu import NvmlProbe
from specbench.runs import load_run
from tests.bench.fake_runs import RUN_ID, SETTINGS, SIX, ids_of, make_plan, measure, measured
from tests.bench.fakes import FakeEngine
from tests.full_disk import file_size_limit
from tests.probes.fake_nvml import FakeGpu, FakeNvml


@pytest.fixture(scope="module")
def full_run(tmp_path_factory):
    """The run on a machine that does not fail, and the size of its records."""
    root = tmp_path_factory.mktemp("sound")
    stored = measured(root, SETTINGS, SIX)
    return stored, (root / RUN_ID / "records.jsonl").stat().st_size


@pytest.mark.parametrize("num_writes", [3, pytest.param(20, marks=pytest.mark.long)])
def test_a_full_disk_at_any_write_neither_loses_nor_repeats_a_block(num_writes, full_run, tmp_path):
    whole, num_bytes = full_run
    rng = random.Random(num_writes)
    plan = make_plan(tmp_path, SETTINGS, SIX)
    records = tmp_path / RUN_ID / "records.jsonl"
    full_at, stored = sorted(rng.sample(range(10, num_bytes), num_writes)), b""
    for limit in full_at:
        with (
            file_size_limit(limit),
            pytest.raises(StoreError, match="File too large") as full,
        ):
            measure(plan, FakeEngine(), tmp_path)
        now = records.read_bytes() if records.exists() else b""
        assert now.startswith(stored)
        assert now.endswith(b"\n") or not now
        assert str(tmp_path / RUN_ID) in str(full.value)
        stored = now
    after = measure(plan, FakeEngine(), tmp_path)
    assert records.read_bytes().startswith(stored)
    assert after.is_complete
    assert ids_of(after) == ids_of(whole)
    assert len(after.references) == len(whole.references)


@pytest.mark.parametrize("days", [-4000, 4000])
def test_a_system_clock_that_jumps_does_not_affect_measured_seconds(
    days, full_run, tmp_path, monkeypatch
):
    class Jumping(datetime):
        """A wall clock that returns another day at every call."""

        at = datetime.now(UTC)

        @classmethod
        def now(cls, tz=None):
            cls.at += timedelta(days=days / 40)
            return cls.at.astimezone(tz)

    monkeypatch.setattr(session, "datetime", Jumping)
    whole, _ = full_run
    after = measured(tmp_path, SETTINGS, SIX)
    assert ids_of(after) == ids_of(whole)
    assert len({block.started_at for block in after.blocks}) > 1
    for block, other in zip(after.blocks, whole.blocks, strict=True):
        assert block.requests == other.requests


class VanishingNvml(FakeNvml):
    """A driver that is gone from its n-th call on."""

    def __init__(self, gpu, num_answers):
        super().__init__(gpu)
        self.left = num_answers

    def __getattribute__(self, name):
        if name.startswith("nvml"):
            self.left -= 1
            if self.left < 0:
                return self._gone
        return super().__getattribute__(name)

    def _gone(self, *_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


@pytest.mark.parametrize("num_answers", [0, 7, 300])
def test_if_nvml_disappears_only_its_figures_are_missing(num_answers, full_run, tmp_path):
    whole, _ = full_run
    gpu = FakeGpu()
    nvml = VanishingNvml(gpu, num_answers)
    probe = NvmlProbe(gpu, nvml=nvml, interval_s=0.001)
    after = measured(tmp_path, SETTINGS, SIX, probe=probe)
    assert nvml.left < 0
    assert ids_of(after) == ids_of(whole)
    requests = [request for block in after.blocks for request in block.requests]
    assert requests[-1].energy_j is requests[-1].device.power_w is None
    assert all(request.error is None and request.decode_s for request in requests)
    assert load_run(RUN_ID, tmp_path).is_complete
