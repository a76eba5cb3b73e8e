"""The protocol of a GPU probe, and the probe of a machine that has none."""

from typing import NamedTuple, Protocol

from specbench.records import DeviceSample


class GpuFacts(NamedTuple):
    """Facts that stay the same during a run; None if the GPU does not report them."""

    name: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    sm_clock_default_mhz: int | None = None


class Probe(Protocol):
    """Samples one GPU during measured code; values that it cannot read are None, never zero."""

    @property
    def reason(self) -> str:
        """Why nothing can be measured; empty if something can."""

    def start(self) -> None:
        """Begin to sample; samples of an earlier start that was never stopped are dropped."""

    def stop(self) -> DeviceSample | None:
        """End what `start` began and sum it up."""

    def energy_j(self) -> float | None:
        """Joules the GPU has used since its driver was loaded: take differences."""

    def device_used_bytes(self) -> int | None:
        """GPU memory in use now, by everyone."""

    def process_used_bytes(self) -> int | None:
        """GPU memory in use now by this process."""

    def gpu_facts(self) -> GpuFacts:
        """Name, size and limits of the GPU."""


class NoProbe:
    """A probe that measures nothing, with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def start(self) -> None:
        pass

    def stop(self) -> None:
        return None

    def energy_j(self) -> None:
        return None

    def device_used_bytes(self) -> None:
        return None

    def process_used_bytes(self) -> None:
        return None

    def gpu_facts(self) -> GpuFacts:
        return GpuFacts()
