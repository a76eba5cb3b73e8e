"""All visible GPUs of this machine together, as a server may use several."""

from collections.abc import Callable, Sequence
from itertools import count, takewhile
from typing import NamedTuple

from specbench.probes.nvml import open_probe
from specbench.probes.probe import NoProbe, Probe
from specbench.records import DeviceSample


class GpuUse(NamedTuple):
    """What several GPUs did meanwhile; None where they do not tell."""

    num_gpus: int | None
    power_w: float | None  # mean, of all of them
    memory_bytes: int | None  # peaks, summed
    throttle_reasons: tuple[str, ...]


class Gpus:
    """Those that CUDA_VISIBLE_DEVICES names; none where there is no NVML."""

    def __init__(self, open_one: Callable[[str], Probe] = open_probe) -> None:
        opened = (open_one(f"cuda:{i}") for i in count())
        self._probes = tuple(takewhile(lambda probe: not isinstance(probe, NoProbe), opened))

    def start(self) -> None:
        """Begin to sample all of them."""
        for probe in self._probes:
            probe.start()

    def stop(self) -> GpuUse:
        """End what `start` began and sum it up."""
        return _together([probe.stop() for probe in self._probes])


def _together(samples: Sequence[DeviceSample | None]) -> GpuUse:
    known = [sample for sample in samples if sample is not None]
    powers = [sample.power_w for sample in known if sample.power_w is not None]
    memories = [s.device_used_bytes for s in known if s.device_used_bytes is not None]
    return GpuUse(
        num_gpus=len(samples) or None,
        power_w=sum(powers) if powers and len(powers) == len(samples) else None,
        memory_bytes=sum(memories) if memories and len(memories) == len(samples) else None,
        throttle_reasons=tuple(sorted({r for s in known for r in s.throttle_reasons})),
    )
