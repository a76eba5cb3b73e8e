"""A run on this machine: its environment if only servers decode, and the budgets of its engines."""

from functools import partial
from types import SimpleNamespace

import pytest

from specbench.bench import machine
from specbench.bench.machine import ThisMachine
from specbench.bench.served.cycles import Cycle
from specbench.bench.units import WholeTarget
from specbench.probes import gpu
from specbench.records import Environment
from specbench.runs import create_run
from specbench.settings import LoadSettings, RunSettings, WorkloadSettings
from tests.bench.fake_runs import run_record
from tests.bench.fakes import FakeClock, RecordingWatch
from tests.bench.served.served_runs import plan_of
from tests.probes.fake_nvml import FakeGpu, FakeNvml, partitioned_gpu

MIXED = FakeNvml(FakeGpu(uuid="GPU-slow", name="Small"), FakeGpu(uuid="GPU-fast", name="Large"))
WITHOUT_NVML = FakeNvml(refused=("nvmlInit",))


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The environment of a served run, by what NVML shows and whether a driver has its files."""

    def described(nvml: FakeNvml, *, has_driver: bool) -> Environment:
        driver = tmp_path / "driver"
        if has_driver:
            driver.touch()
        monkeypatch.setattr(gpu, "_GPU_FILES", (str(driver),))
        monkeypatch.setattr(
            machine, "open_probe", partial(gpu.open_probe, nvml=nvml, environment={})
        )
        settings = RunSettings(
            workload=WorkloadSettings(pairings=("demo/draft",), workloads=("chat",)),
            load=LoadSettings(engines=("vllm",)),
        )
        return ThisMachine(settings, (), RecordingWatch()).environment(["specbench"])

    return described


def test_a_served_run_on_a_mig_instance_is_recorded_with_its_name_and_memory(environment):
    got = environment(FakeNvml(partitioned_gpu()), has_driver=True)
    assert (got.device, got.gpu) == ("cuda:0", "NVIDIA H100 80GB HBM3 MIG 3g.40gb")
    assert got.gpu_memory_bytes == 40_000
    assert got.power_limit_w is None


@pytest.mark.parametrize("nvml", [MIXED, WITHOUT_NVML], ids=["ambiguous", "AMD, or no permission"])
def test_a_served_run_on_a_gpu_that_nvml_does_not_show_is_not_recorded_as_of_a_cpu(
    environment, nvml
):
    got = environment(nvml, has_driver=True)
    assert (got.device, got.gpu) == ("cuda:0", None)
    assert got.processor != got.cpu


def test_a_served_run_without_a_driver_is_of_the_cpu(environment):
    got = environment(WITHOUT_NVML, has_driver=False)
    assert (got.device, got.processor) == ("cpu", got.cpu)


def test_the_engines_of_this_process_leave_a_server_its_share_of_the_budget(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, engines=("builtin", "vllm"), budget_s=100.0)
    clock, begun = FakeClock(), []

    def measure_unit(_self, unit, _store, deadline):
        begun.append((type(unit), deadline.seconds_left("confirm")))
        clock.now_s += 60.0

    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(ThisMachine, "measure_unit", measure_unit)
    with create_run(tmp_path, run_record(plan)) as store:
        ThisMachine(plan.settings, plan.pairings, RecordingWatch()).measure([plan], (), store)
    assert begun == [(WholeTarget, 50.0), (Cycle, 50.0)]
