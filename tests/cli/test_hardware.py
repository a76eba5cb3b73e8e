"""The machine of a memory plan, as NVML reports it: whole GPUs, MIG instances, shared memory."""

from functools import partial
from pathlib import Path

import pynvml
import pytest

from specbench.cli.hardware import MachineSummary, find_machine, this_machine
from specbench.fit.gpus import GIB, RESERVED_BYTES
from specbench.fit.memory_plan import DeploymentSpec
from specbench.probes import gpu, host
from tests.probes.fake_nvml import FakeGpu, FakeNvml, Memory, partitioned_gpu

HOST_BYTES = 100 * GIB


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver's files, and with much free memory."""
    monkeypatch.setattr(gpu, "_GPU_FILES", (str(tmp_path / "driver"),))
    monkeypatch.setattr(host, "host_available_bytes", lambda: HOST_BYTES)


def seen_by(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> MachineSummary:
    opened = partial(gpu.open_probe, nvml=nvml, environment={})
    monkeypatch.setattr(gpu, "open_probe", opened)
    return this_machine(DeploymentSpec(device="cpu"), "cuda")


def test_a_gpu_has_its_free_memory_bandwidth_and_compute_capability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = FakeGpu(name="Tesla T4", total=15 * GIB, used=GIB, capability=(7, 5))

    name, setup, (note,) = seen_by(FakeNvml(card), monkeypatch)

    assert name == "Tesla T4"
    assert (setup.device, setup.memory_bytes) == ("cuda", 14 * GIB - RESERVED_BYTES)
    assert (setup.bytes_per_s, setup.compute_capability) == (320e9, (7, 5))
    assert "14 GiB" in note


def test_a_mig_instance_has_its_own_memory_and_not_the_bandwidth_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = partitioned_gpu()
    card.instances[0].total, card.instances[0].used = 40 * GIB, 2 * GIB

    name, setup, _ = seen_by(FakeNvml(card), monkeypatch)

    assert name == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert setup.memory_bytes == 38 * GIB - RESERVED_BYTES
    assert setup.bytes_per_s is None


@pytest.mark.parametrize(
    "nvml",
    [
        FakeNvml(FakeGpu(name="NVIDIA GB10"), refused=("nvmlDeviceGetMemoryInfo",)),
        FakeNvml(FakeGpu(name="NVIDIA GB10", total=0)),
    ],
    ids=["not supported", "none"],
)
def test_a_gpu_without_memory_of_its_own_has_that_of_the_host(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, setup, (note,) = seen_by(nvml, monkeypatch)

    assert (name, setup.device) == ("NVIDIA GB10", "cuda")
    assert setup.memory_bytes == HOST_BYTES - RESERVED_BYTES
    assert "100 GiB" in note
    assert "host" in note


class UnreadableMemory(FakeNvml):
    """A GPU that has memory, which this driver fails to read."""

    def nvmlDeviceGetMemoryInfo(self, _: FakeGpu) -> Memory:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


def test_memory_that_nvml_fails_to_read_is_unknown_and_the_note_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, setup, (note,) = seen_by(UnreadableMemory(FakeGpu(name="NVIDIA L4")), monkeypatch)

    assert (name, setup.device, setup.memory_bytes) == ("NVIDIA L4", "cuda", None)
    assert "unknown" in note
    assert "NVML" in note


def test_a_named_gpu_that_emulates_bfloat16_has_its_compute_capability() -> None:
    planned = {
        name: find_machine(
            DeploymentSpec(device="cpu"), "auto", gpu=name, gpu_memory=None, gpu_bandwidth=None
        ).setup.compute_capability
        for name in ("T4", "V100-32GB", "L4")
    }
    assert planned == {"T4": (7, 5), "V100-32GB": (7, 0), "L4": None}
