"""Memory, power, energy, clocks and throttling of GPUs, as reported by their driver (NVML).

On a machine without a GPU, the probe measures nothing."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count, takewhile
from statistics import fmean
from typing import Any, NamedTuple

import pynvml

from specbench.probes.host import PeriodicReader
from specbench.records import DeviceSample


class GpuFacts(NamedTuple):
    """Facts that stay the same during a run; None if the GPU does not report them."""

    name: str | None = None  # with the profile of a MIG instance
    memory_bytes: int | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    sm_clock_default_mhz: int | None = None
    compute_capability: tuple[int, int] | None = None
    shares_host_memory: bool = False  # it has none of its own
    uuid: str | None = None  # as CUDA reports it, without `GPU-` or `MIG-`


_UNKNOWN = GpuFacts()


class Probe:
    """Samples one GPU while measured code runs; values that cannot be read are None, not zero.

    This base class measures nothing, for the given reason, and only has facts that are known.
    """

    def __init__(self, reason: str, known: GpuFacts = _UNKNOWN) -> None:
        self.reason = reason  # empty if all of the GPU can be measured
        self._known = known

    def start(self) -> None:
        """Start sampling; the samples of an earlier start without a stop are dropped."""

    def stop(self) -> DeviceSample | None:
        """Stop sampling, and return a summary; None if nothing was measured."""
        return None

    def energy_j(self) -> float | None:
        """Joules that the GPU has used since its driver was loaded; use differences."""
        return None

    def device_used_bytes(self) -> int | None:
        """GPU memory in use now, by all processes."""
        return None

    def process_used_bytes(self) -> int | None:
        """GPU memory in use now by this process."""
        return None

    def gpu_facts(self) -> GpuFacts:
        """The name, memory size and limits of the GPU."""
        return self._known


INTERVAL_S = 0.05

# Bits of NVML's clocks event reasons. An idle GPU and clocks set by a user do not count as
# throttling; low clocks are visible in `sm_clock_mhz`.
GPU_IDLE = 0x1
_CHOSEN_CLOCKS = 0x2 | 0x100  # applications clocks, display clock
THROTTLE_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x200: "board_limit",
    0x400: "reliability",
}


class Processes(NamedTuple):
    """Compute processes on the GPU; both None if this process is not among them."""

    own_bytes: int | None  # GPU memory of this process
    num_others: int | None


class GpuReading(NamedTuple):
    """One reading of the GPU; None if NVML does not report a value."""

    device_used_bytes: int | None
    process_used_bytes: int | None
    power_w: float | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    event_reasons: int | None  # bits
    num_other_processes: int | None


def open_probe(
    device: str,
    *,
    known: GpuFacts = _UNKNOWN,
    nvml: Any = pynvml,
    environment: Mapping[str, str] = os.environ,
) -> Probe:
    """The probe of a torch device, or one that measures nothing, with the reason.

    `known` is what torch reports (device.cuda_facts): its UUID identifies the GPU, and facts that
    NVML does not report are taken from it. Without a UUID, CUDA_VISIBLE_DEVICES and
    CUDA_DEVICE_ORDER are interpreted as by CUDA.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return Probe("none (NVML supports NVIDIA GPUs only)")
    try:
        nvml.nvmlInit()
        gpu = find_gpu(int(index or 0), known.uuid, nvml, environment)
        if _is_partitioned(nvml, gpu):
            if known.uuid is not None:  # of the GPU: it does not show which instance CUDA uses
                return Probe(_OF_WHOLE_GPUS, known)
            gpu = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)  # as CUDA does
    except GpuNotFoundError as error:
        return Probe(str(error), known)
    except nvml.NVMLError_LibraryNotFound:
        return Probe("no NVIDIA driver: NVML shared library not found", known)
    except nvml.NVMLError as error:
        return Probe(f"NVML refuses: {error}", known)
    return NvmlProbe(gpu, nvml=nvml, known=known)


class NvmlProbe(Probe):
    """Samples one GPU, or the memory and processes of a MIG instance. A value that NVML does not
    report, or fails to read, is None."""

    def __init__(
        self,
        gpu: Any,
        *,
        nvml: Any = pynvml,
        interval_s: float = INTERVAL_S,
        known: GpuFacts = _UNKNOWN,
    ) -> None:
        """`gpu` is an NVML device handle; `nvml` is pynvml, or has the same functions."""
        self._gpu = gpu
        self._nvml = nvml
        is_instance = self._device_value(nvml.nvmlDeviceIsMigDeviceHandle)
        super().__init__(_OF_WHOLE_GPUS if is_instance else "", known)
        self._sampler = PeriodicReader(self.read, interval_s)

    def start(self) -> None:
        self._sampler.start()

    def stop(self) -> DeviceSample | None:
        readings = self._sampler.stop()
        return summarize(readings, self._sm_clock_default_mhz()) if readings else None

    def energy_j(self) -> float | None:
        """Joules, as in Probe. The counter updates every 20 to 100 ms, coarse for short work."""
        return _scaled(self._board_value(self._nvml.nvmlDeviceGetTotalEnergyConsumption))

    def device_used_bytes(self) -> int | None:
        memory = self._device_value(self._nvml.nvmlDeviceGetMemoryInfo)
        return None if memory is None else int(memory.used)

    def process_used_bytes(self) -> int | None:
        return self._processes().own_bytes

    def gpu_facts(self) -> GpuFacts:
        nvml = self._nvml
        try:
            memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(self._gpu).total)
        except nvml.NVMLError_NotSupported:  # as on a GB10 and a Jetson
            memory_bytes = 0
        except nvml.NVMLError:
            memory_bytes = None
        reported = GpuFacts(
            name=self._device_value(nvml.nvmlDeviceGetName),
            memory_bytes=memory_bytes or None,
            driver=self._value(nvml.nvmlSystemGetDriverVersion),
            power_limit_w=_scaled(self._board_value(nvml.nvmlDeviceGetEnforcedPowerLimit)),
            sm_clock_default_mhz=self._sm_clock_default_mhz(),
            compute_capability=self._device_value(nvml.nvmlDeviceGetCudaComputeCapability),
            shares_host_memory=memory_bytes == 0 and not self.reason,
        )
        known = self._known._asdict().items()
        return reported._replace(**{k: v for k, v in known if getattr(reported, k) is None})

    def read(self) -> GpuReading:
        """A reading of everything that changes during a run."""
        nvml = self._nvml
        processes = self._processes()
        return GpuReading(
            device_used_bytes=self.device_used_bytes(),
            process_used_bytes=processes.own_bytes,
            power_w=_scaled(self._board_value(nvml.nvmlDeviceGetPowerUsage)),
            sm_clock_mhz=self._board_value(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            temperature_c=self._board_value(
                nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU
            ),
            event_reasons=self._event_reasons(),
            num_other_processes=processes.num_others,
        )

    def _processes(self) -> Processes:
        # Only compute processes: the graphics of a desktop do not make a cell invalid.
        listed = self._device_value(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        memory = {process.pid: process.usedGpuMemory for process in listed or ()}
        # This process uses the GPU. If it is not listed, the list is empty or has the pids of
        # another namespace (a container), which cannot be matched.
        if os.getpid() not in memory:
            return Processes(None, None)
        return Processes(memory[os.getpid()], len(memory) - 1)

    def _event_reasons(self) -> int | None:
        reasons: int | None = self._board_value(self._nvml.nvmlDeviceGetCurrentClocksEventReasons)
        if reasons is None:  # drivers before 535 have only its old name
            reasons = self._board_value(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return reasons

    def _sm_clock_default_mhz(self) -> int | None:
        """The default applications clock; the highest clock if a GPU has no default."""
        nvml = self._nvml
        clock: int | None = self._board_value(
            nvml.nvmlDeviceGetDefaultApplicationsClock, nvml.NVML_CLOCK_GRAPHICS
        )
        return clock or self._board_value(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM)

    def _board_value(self, function: Callable[..., Any], *arguments: int) -> Any:
        """A value that a MIG instance does not have, whatever NVML returns for it."""
        return None if self.reason else self._device_value(function, *arguments)

    def _device_value(self, function: Callable[..., Any], *arguments: int) -> Any:
        return self._value(function, self._gpu, *arguments)

    def _value(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def summarize(readings: list[GpuReading], sm_clock_default_mhz: int | None) -> DeviceSample:
    """Peak memory and temperature, mean power, the lowest clock, and all reasons for throttling.

    The clock excludes readings while the GPU was idle, because they do not depend on the work.
    """
    reasons = [r.event_reasons for r in readings if r.event_reasons is not None]
    clocks = [r.sm_clock_mhz for r in readings if not (r.event_reasons or 0) & GPU_IDLE]
    return DeviceSample(
        num_samples=len(readings),
        device_used_bytes=_aggregate_known(max, (r.device_used_bytes for r in readings)),
        process_used_bytes=_aggregate_known(max, (r.process_used_bytes for r in readings)),
        power_w=_aggregate_known(fmean, (r.power_w for r in readings)),
        sm_clock_mhz=_aggregate_known(min, clocks),
        sm_clock_default_mhz=sm_clock_default_mhz,
        temperature_c=_aggregate_known(max, (r.temperature_c for r in readings)),
        throttle_reasons=throttle_names(reasons),
        num_other_processes=_aggregate_known(max, (r.num_other_processes for r in readings)),
    )


def throttle_names(reasons: Iterable[int]) -> tuple[str, ...]:
    """Names of all throttling bits that are set in any of `reasons`, lowest first.

    Unknown bits have names such as `bit_11`.
    """
    all_bits = 0
    for bits in reasons:
        all_bits |= bits
    all_bits &= ~(GPU_IDLE | _CHOSEN_CLOCKS)
    return tuple(
        THROTTLE_REASONS.get(1 << bit, f"bit_{bit}")
        for bit in range(all_bits.bit_length())
        if all_bits >> bit & 1
    )


def _aggregate_known(fold: Callable[[list[Any]], Any], values: Iterable[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return fold(known) if known else None


def _scaled(thousandths: int | None) -> float | None:
    return None if thousandths is None else thousandths / 1000


_OF_WHOLE_GPUS = "MIG is on: NVML reports power, energy and clocks only of whole GPUs"


def _is_partitioned(nvml: Any, gpu: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError:  # a GPU without the feature
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


class GpuNotFoundError(Exception):
    """The GPU cannot be identified; the message has the reason."""


def find_gpu(index: int, uuid: str | None, nvml: Any, environment: Mapping[str, str]) -> Any:
    """The NVML handle of CUDA device `index`; `uuid`, if known, is the one that CUDA reports.

    NVML numbers all GPUs in PCI order. CUDA numbers only those in CUDA_VISIBLE_DEVICES, in that
    order, and sorts GPUs by speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID. GpuNotFoundError if no
    GPU matches, or if the match is ambiguous.
    """
    if uuid is not None:
        return _gpu_by_uuid([f"GPU-{uuid}", f"MIG-{uuid}"], nvml)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        name = str(index)
    else:
        names = [name.strip() for name in visible.split(",")]
        if index >= len(names) or not names[index]:
            raise GpuNotFoundError(f"cuda:{index} is not among CUDA_VISIBLE_DEVICES={visible!r}")
        name = names[index]
    gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if not name.isdecimal():
        return _gpu_by_uuid_prefix(name, gpus, nvml)
    if int(name) >= len(gpus):
        raise GpuNotFoundError(f"cuda:{index} is GPU {name}, and NVML knows {len(gpus)}")
    # GPUs of the same model are numbered in PCI order in both cases.
    models = {nvml.nvmlDeviceGetName(gpu) for gpu in gpus}
    if len(models) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise GpuNotFoundError(
            f"cannot determine which of {len(gpus)} different GPUs is cuda:{index}; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return gpus[int(name)]


def _gpu_by_uuid(uuids: Sequence[str], nvml: Any) -> Any:
    """The GPU or MIG instance that has one of the UUIDs."""
    for uuid in uuids:
        with suppress(nvml.NVMLError):
            return nvml.nvmlDeviceGetHandleByUUID(uuid)
    raise GpuNotFoundError(f"NVML has no {' and no '.join(uuids)}")


def _gpu_by_uuid_prefix(name: str, gpus: list[Any], nvml: Any) -> Any:
    if name.startswith("MIG-"):
        return _gpu_by_uuid([name], nvml)
    matching = [gpu for gpu in gpus if nvml.nvmlDeviceGetUUID(gpu).startswith(name)]
    if len(matching) != 1:
        raise GpuNotFoundError(f"NVML knows {len(matching)} GPUs whose UUID begins with {name}")
    return matching[0]


# Devices of NVIDIA's driver, of Windows' driver under Linux, and of AMD's driver, whose GPUs torch
# also calls cuda.
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def has_gpu_driver(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a driver for torch's `cuda` devices is installed, and CUDA_VISIBLE_DEVICES does not
    hide all of them."""
    first, _, _ = environment.get("CUDA_VISIBLE_DEVICES", "0").partition(",")
    return first.strip() not in ("", "-1") and any(map(os.path.exists, _GPU_FILES))


class GpuUse(NamedTuple):
    """Use of several GPUs during a measurement; None if it is not reported."""

    num_gpus: int | None
    power_w: float | None  # sum of the mean power of each GPU
    memory_bytes: int | None  # sum of the peaks of each GPU
    throttle_reasons: tuple[str, ...]


class Gpus:
    """Samples all GPUs in CUDA_VISIBLE_DEVICES; there are none without NVML."""

    def __init__(self, open_one: Callable[[str], Probe] = open_probe) -> None:
        opened = (open_one(f"cuda:{i}") for i in count())
        self._probes = tuple(takewhile(lambda probe: not probe.reason, opened))

    def start(self) -> None:
        """Start sampling all GPUs."""
        for probe in self._probes:
            probe.start()

    def stop(self) -> GpuUse:
        """Stop sampling, and return the totals."""
        return _sum_of_devices([probe.stop() for probe in self._probes])


def _sum_of_devices(samples: Sequence[DeviceSample | None]) -> GpuUse:
    known = [sample for sample in samples if sample is not None]
    powers = [sample.power_w for sample in known if sample.power_w is not None]
    memories = [s.device_used_bytes for s in known if s.device_used_bytes is not None]
    return GpuUse(
        num_gpus=len(samples) or None,
        power_w=sum(powers) if powers and len(powers) == len(samples) else None,
        memory_bytes=sum(memories) if memories and len(memories) == len(samples) else None,
        throttle_reasons=tuple(sorted({r for s in known for r in s.throttle_reasons})),
    )
