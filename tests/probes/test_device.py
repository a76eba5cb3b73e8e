import time
import warnings
from itertools import cycle
from types import SimpleNamespace

import pytest
import torch

from specbench.errors import UsageError
from specbench.probes.device import (
    HostCalls,
    allocator_peaks,
    calls_of,
    count_host_calls,
    cuda_facts,
    find_device,
    measure_copy_bandwidth,
    reset_allocator_peaks,
)
from specbench.probes.gpu import GpuFacts
from tests.decoding.fakes import QueuedClock

CPU = torch.device("cpu")


def test_a_cpu_has_no_allocator_peaks_and_no_facts_of_a_gpu():
    reset_allocator_peaks("cpu")

    assert allocator_peaks("cpu") == (None, None)
    assert cuda_facts(CPU) == GpuFacts()


def plant_gpu(
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    capability: tuple[int, int],
    built: str,
    cuda: str,
) -> None:
    """A GPU that torch sees, and a build of torch with code for the architectures in `built`."""
    major, minor = capability

    def properties(_device: torch.device) -> SimpleNamespace:
        warnings.warn(f"{name} is not compatible with this build", stacklevel=2)  # as torch does
        return SimpleNamespace(name=name, total_memory=2**34, major=major, minor=minor, uuid="a-1")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", built.split)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.version, "cuda", cuda)


CUDA_13 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"


@pytest.mark.parametrize(
    ("name", "capability", "built", "cuda", "build"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), CUDA_13, "13.0", "that for CUDA 12.6"),
        ("Tesla P40", (6, 1), CUDA_13, "13.0", "that for CUDA 12.6"),
        ("NVIDIA B200", (10, 0), "sm_80 sm_90", "12.6", "one for a newer CUDA than 12.6"),
        ("NVIDIA H100", (9, 0), "sm_80 sm_86", "12.6", "one for a newer CUDA than 12.6"),
        ("NVIDIA A100", (8, 0), "sm_86", "12.6", "one for a newer CUDA than 12.6"),
        ("NVIDIA B300", (10, 3), "sm_100a compute_100a", "12.8", "than 12.8"),
        ("NVIDIA RTX 5090", (12, 0), "sm_100 sm_100f compute_100f", "12.8", "than 12.8"),
    ],
)
@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_a_gpu_that_torchs_build_has_no_code_for_is_refused_with_the_build_to_install(
    device: str,
    name: str,
    capability: tuple[int, int],
    built: str,
    cuda: str,
    build: str,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
):
    plant_gpu(monkeypatch, name=name, capability=capability, built=built, cuda=cuda)

    with pytest.raises(UsageError) as refused:
        find_device(device)

    major, minor = capability
    words = (name, f"{major}.{minor}", f"sm_{major}{minor}", built.split()[0], torch.__version__)
    for word in (f"--device {device}", *words, build, "--device cpu"):
        assert word in str(refused.value)
    assert len(recwarn) == 0  # torch's own words, which are long


@pytest.mark.parametrize(
    ("capability", "built"),
    [
        ((7, 5), CUDA_13),
        ((8, 6), "sm_75 sm_80"),  # binaries of the same major version
        ((8, 9), CUDA_13),
        ((12, 1), CUDA_13),
        ((12, 0), "sm_80 sm_90 compute_90"),  # compiled when it is loaded
        ((9, 0), "sm_90a"),
        ((10, 3), "sm_100f"),
        ((10, 3), "compute_100f"),
        ((9, 4), "gfx90a gfx942"),  # AMD
        ((9, 0), ""),  # a build that does not list its code
    ],
)
def test_a_gpu_that_torch_may_have_code_for_is_used(
    capability: tuple[int, int], built: str, monkeypatch: pytest.MonkeyPatch
):
    plant_gpu(monkeypatch, name="a GPU", capability=capability, built=built, cuda="13.0")

    assert find_device("auto") == torch.device("cuda", 0)
    with pytest.warns(UserWarning, match="a GPU"):
        facts = cuda_facts(torch.device("cuda", 0))
    assert facts == GpuFacts(
        name="a GPU", memory_bytes=2**34, compute_capability=capability, uuid="a-1"
    )


MIB = 2**20
SIZE = 16 * MIB


def test_copy_bandwidth_is_the_best_of_all_copies(
    monkeypatch: pytest.MonkeyPatch,
):
    """On a clock of known steps: copies take 4, 3, 2, 3 and 4 seconds."""
    steps = iter([0, 4, 10, 13, 20, 22, 30, 33, 40, 44])
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(steps)))
    assert measure_copy_bandwidth(CPU, num_bytes=SIZE, repeats=5) == 2 * SIZE / 2
    assert next(steps, None) is None


def test_the_launch_of_a_copy_on_a_gpu_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies take 4, 6, 3 and 5 seconds in turn, and each launch takes the host a second."""
    gpu, seconds = QueuedClock(), cycle([4.0, 6.0, 3.0, 5.0])

    class Bytes:
        device = torch.device("cuda:0")

        def clone(self) -> "Bytes":
            return Bytes()

        def copy_(self, _: "Bytes") -> None:
            gpu.launch(next(seconds))

    class Event:
        def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
            assert (device, enable_timing) == (Bytes.device, True)

        def record(self) -> None:
            self.at_s = gpu.mark()

        def synchronize(self) -> None:
            gpu.seconds(self.at_s)

        def elapsed_time(self, later: "Event") -> float:
            assert max(self.at_s, later.at_s) <= gpu.now(), "it has not been reached"
            return 1000 * (later.at_s - self.at_s)

    monkeypatch.setattr(torch, "ones", lambda *_, **__: Bytes())
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    measured = measure_copy_bandwidth(Bytes.device, num_bytes=SIZE, repeats=5)

    assert measured == pytest.approx(2 * SIZE / 3)


def read_and_written_per_s() -> float:
    """A copy timed by hand, the best of eight."""
    source = torch.ones(SIZE, dtype=torch.uint8)
    destination = source.clone()
    seconds = []
    for _ in range(8):
        began = time.perf_counter()
        destination[:] = source
        seconds.append(time.perf_counter() - began)
    return 2 * SIZE / min(seconds)


def test_the_measured_copy_bandwidth_matches_a_plain_copy():
    """A copy of nothing, or of only a part, would be many times as fast.

    The best of interleaved tries on both sides, which a busy machine seldom changes by a fifth.
    """
    pairs = [
        (measure_copy_bandwidth(CPU, num_bytes=SIZE), read_and_written_per_s()) for _ in range(8)
    ]
    measured, by_hand = (max(side) for side in zip(*pairs, strict=True))
    assert 0.4 < measured / by_hand < 2.5


def test_kernels_graphs_and_syncs_are_counted_separately():
    names = [
        "aten::mm",
        "cudaLaunchKernel",
        "cudaLaunchKernelExC_v11060",
        "cuLaunchKernelEx",
        "cudaLaunchCooperativeKernel",
        "cudaGraphLaunch",
        "cudaGraphLaunch_v10000",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaDeviceSynchronize",
    ]
    assert calls_of(names) == HostCalls(launches=4, graph_launches=2, syncs=3)


def test_calls_that_neither_launch_nor_sync_are_not_counted():
    names = [
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaLaunchHostFunc",
        "cudaEventRecord",
        "cudaEventQuery",
        "cudaStreamWaitEvent",
        "cudaStreamIsCapturing",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "void at::native::vectorized_elementwise_kernel<4>",
        "Memcpy DtoH (Device -> Pinned)",
        "Stream Sync",
        "my function around cudaLaunchKernel",
    ]
    assert calls_of(names) == HostCalls(launches=0, graph_launches=0, syncs=0)


def test_host_calls_are_not_reported_without_a_gpu():
    done = []

    assert count_host_calls(lambda: done.append(torch.ones(3).sum())) is None
    assert len(done) == 1
