"""An NVML without a GPU: pynvml's own error classes and constants, with synthetic GPUs."""

from dataclasses import dataclass, field
from typing import NamedTuple

import pynvml


class Memory(NamedTuple):
    total: int
    used: int


class Process(NamedTuple):
    pid: int
    usedGpuMemory: int | None


@dataclass
class FakeGpu:
    """NVML's own units: bytes, milliwatts, millijoules, MHz, degrees."""

    uuid: str = "GPU-aaaa-1111"
    name: str = "Fake 100"
    total: int = 80_000
    used: int = 5_000
    power: int = 250_500
    power_limit: int = 700_000
    energy: int = 1_000_000
    sm_clock: int = 1_700
    default_clock: int = 1_800
    max_clock: int = 1_980
    temperature: int = 60
    reasons: int = 0
    capability: tuple[int, int] = (9, 0)
    mig: int = 0
    instances: "list[FakeGpu]" = field(default_factory=list)  # of MIG, with UUIDs of their own
    processes: list[Process] = field(default_factory=list)


class FakeNvml:
    """`refused` names functions that this driver does not support."""

    NVMLError = pynvml.NVMLError
    NVMLError_LibraryNotFound = pynvml.NVMLError_LibraryNotFound
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_CLOCK_GRAPHICS = pynvml.NVML_CLOCK_GRAPHICS
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(self, *gpus: FakeGpu, refused: tuple[str, ...] = ()) -> None:
        self.gpus = gpus
        self.refused = set(refused)

    def __getattribute__(self, name: str) -> object:
        if name.startswith("nvml") and name in self.refused:
            return self._refuse
        return super().__getattribute__(name)

    def _refuse(self, *_arguments: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            for handle in (gpu, *gpu.instances):
                if handle.uuid == uuid:
                    return handle
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Memory:
        return Memory(gpu.total, gpu.used)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return gpu.power

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu) -> int:
        return gpu.power_limit

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        return gpu.energy

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        assert kind == pynvml.NVML_CLOCK_SM
        return gpu.sm_clock

    def nvmlDeviceGetDefaultApplicationsClock(self, gpu: FakeGpu, kind: int) -> int:
        assert kind == pynvml.NVML_CLOCK_GRAPHICS
        return gpu.default_clock

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        assert kind == pynvml.NVML_CLOCK_SM
        return gpu.max_clock

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return gpu.temperature

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        return gpu.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
        return gpu.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Process]:
        return gpu.processes

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return gpu.capability

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        return gpu.mig, gpu.mig

    def nvmlDeviceIsMigDeviceHandle(self, gpu: FakeGpu) -> int:
        return gpu.uuid.startswith("MIG-")

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if index >= len(gpu.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu.instances[index]


def partitioned_gpu() -> FakeGpu:
    """An H100 with two unlike MIG instances."""
    name = "NVIDIA H100 80GB HBM3"
    large = FakeGpu(uuid="MIG-large", name=f"{name} MIG 3g.40gb", total=40_000, used=300)
    small = FakeGpu(uuid="MIG-small", name=f"{name} MIG 1g.10gb", total=10_000, used=100)
    return FakeGpu(uuid="GPU-whole", name=name, mig=1, instances=[large, small])


EVERY_FUNCTION = tuple(name for name in vars(FakeNvml) if name.startswith("nvml"))
EVERY_READING = tuple(
    name
    for name in EVERY_FUNCTION
    if name not in ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
)
