import pytest
from fake_nvml import FakeGpu, FakeNvml

from specbench.probes.nvml import GpuNotFoundError, find_gpu

A = FakeGpu(uuid="GPU-aaaa-1111")
B = FakeGpu(uuid="GPU-abbb-2222")
C = FakeGpu(uuid="GPU-cccc-3333")
EQUAL = FakeNvml(A, B, C)
MIXED = FakeNvml(FakeGpu(uuid="GPU-slow", name="Small"), FakeGpu(uuid="GPU-fast", name="Large"))


@pytest.mark.parametrize(
    ("index", "visible", "gpu"),
    [
        (0, None, A),
        (2, None, C),
        (0, "2", C),
        (1, "2, 0", A),
        (0, "GPU-cccc-3333,GPU-aaaa-1111", C),
        (1, "GPU-cccc-3333,GPU-aaaa-1111", A),
        (0, "GPU-ab", B),
    ],
)
def test_cuda_visible_devices_is_followed_as_cuda_does(
    index: int, visible: str | None, gpu: FakeGpu
):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert find_gpu(index, None, EQUAL, environment) is gpu


def test_cudas_own_uuid_settles_it():
    environment = {"CUDA_VISIBLE_DEVICES": "0"}

    assert find_gpu(0, "abbb-2222", EQUAL, environment) is B
    assert find_gpu(0, "fast", MIXED, {}) is MIXED.gpus[1]


@pytest.mark.parametrize(
    ("index", "visible", "complaint"),
    [
        (0, "", "cuda:0 is not among CUDA_VISIBLE_DEVICES=''"),
        (1, "2", "cuda:1 is not among"),
        (3, None, "cuda:3 is GPU 3, and NVML knows 3"),
        (0, "9", "cuda:0 is GPU 9"),
        (0, "-1", "0 GPUs whose UUID begins with -1"),
        (0, "GPU-a", "2 GPUs whose UUID begins with GPU-a"),
        (0, "MIG-1234", "only of whole GPUs"),
    ],
)
def test_a_device_that_names_no_gpu_says_why(index: int, visible: str | None, complaint: str):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    with pytest.raises(GpuNotFoundError, match=complaint):
        find_gpu(index, None, EQUAL, environment)


def test_a_uuid_that_nvml_does_not_know_is_refused():
    with pytest.raises(GpuNotFoundError, match=r"GPU 9999.*MIG"):
        find_gpu(0, "9999", EQUAL, {})


def test_different_gpus_are_told_apart_only_in_pci_order_or_by_uuid():
    with pytest.raises(GpuNotFoundError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        find_gpu(0, None, MIXED, {})

    assert find_gpu(1, None, MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) is MIXED.gpus[1]
    assert find_gpu(0, None, MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-fast"}) is MIXED.gpus[1]
