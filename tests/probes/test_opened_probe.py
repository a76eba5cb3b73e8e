import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml

from specbench.probes.nvml import open_probe
from specbench.probes.probe import GpuFacts


def test_the_opened_probe_watches_the_gpu_that_was_asked_for():
    gpus = FakeGpu(uuid="GPU-a", used=1), FakeGpu(uuid="GPU-b", used=2)

    probe = open_probe("cuda:1", nvml=FakeNvml(*gpus), environment={})

    assert probe.reason == ""
    assert probe.device_used_bytes() == 2


class NoDriver(FakeNvml):
    def nvmlInit(self) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


class NoPermission(FakeNvml):
    def nvmlInit(self) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)


@pytest.mark.parametrize(
    ("device", "nvml", "reason"),
    [
        ("cuda:0", NoDriver(), "no NVIDIA driver: NVML shared library not found"),
        ("cuda:0", NoPermission(), "NVML refuses: Insufficient Permissions"),
        ("cuda:0", FakeNvml(FakeGpu(mig=1)), "MIG is on"),
        ("cuda:7", FakeNvml(FakeGpu()), "cuda:7 is GPU 7, and NVML knows 1"),
        ("cpu", FakeNvml(FakeGpu()), "none (NVML supports NVIDIA GPUs only)"),
    ],
)
def test_where_nothing_can_be_measured_the_probe_says_why_and_gives_no_zero(
    device: str, nvml: FakeNvml, reason: str
):
    probe = open_probe(device, nvml=nvml, environment={})

    probe.start()
    assert probe.stop() is None
    assert reason in probe.reason
    assert probe.energy_j() is None
    assert probe.device_used_bytes() is None
    assert probe.process_used_bytes() is None
    assert probe.gpu_facts() == GpuFacts()


def test_a_gpu_without_mig_is_a_whole_gpu():
    nvml = FakeNvml(FakeGpu(), refused=("nvmlDeviceGetMigMode",))

    assert open_probe("cuda", nvml=nvml, environment={}).reason == ""
