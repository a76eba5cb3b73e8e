"""Several GPUs of one server."""

from dataclasses import replace

from specbench.probes.nvml import Gpus, GpuUse
from specbench.probes.probe import NoProbe, Probe
from specbench.records import DeviceSample

SAMPLE = DeviceSample(num_samples=2, device_used_bytes=10, power_w=300.0)


def gpus_that_tell(*samples: DeviceSample | None) -> Gpus:
    class Telling:
        reason = ""

        def __init__(self, sample: DeviceSample | None) -> None:
            self._sample, self._is_started = sample, False

        def start(self) -> None:
            self._is_started = True

        def stop(self) -> DeviceSample | None:
            return self._sample if self._is_started else None

    def open_one(device: str) -> Probe:
        index = int(device.removeprefix("cuda:"))
        return Telling(samples[index]) if index < len(samples) else NoProbe("no such GPU")  # type: ignore[return-value]

    return Gpus(open_one)


def use_of(gpus: Gpus) -> GpuUse:
    gpus.start()
    return gpus.stop()


def test_power_and_memory_are_summed_over_all_of_them():
    other = replace(SAMPLE, device_used_bytes=5, power_w=100.0, throttle_reasons=("hw_slowdown",))
    assert use_of(gpus_that_tell(SAMPLE, other)) == GpuUse(2, 400.0, 15, ("hw_slowdown",))


def test_what_one_of_them_does_not_tell_is_not_known_of_all():
    assert use_of(gpus_that_tell(SAMPLE, replace(SAMPLE, power_w=None))) == GpuUse(2, None, 20, ())
    assert use_of(gpus_that_tell(SAMPLE, None)) == GpuUse(2, None, None, ())


def test_a_machine_without_a_gpu_tells_nothing():
    assert use_of(gpus_that_tell()) == GpuUse(None, None, None, ())
