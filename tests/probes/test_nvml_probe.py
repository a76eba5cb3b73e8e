import ast
import os
import threading
from pathlib import Path

import pynvml
import pytest
from fake_nvml import EVERY_FUNCTION, EVERY_READING, FakeGpu, FakeNvml, Process

import specbench.probes
from specbench.probes.nvml import (
    GPU_IDLE,
    THROTTLE_REASONS,
    GpuReading,
    NvmlProbe,
    summarize,
    throttle_names,
)
from specbench.probes.probe import GpuFacts
from specbench.records import DeviceSample

OWN = Process(os.getpid(), 3_000)
OTHER = Process(os.getpid() + 1, 900)
PATIENCE_S = 300.0  # a thread that is never run would hang the test


def probe_of(gpu: FakeGpu, *, refused: tuple[str, ...] = ()) -> NvmlProbe:
    return NvmlProbe(gpu, nvml=FakeNvml(gpu, refused=refused), interval_s=0.001)


def reading(**seen: int | float | None) -> GpuReading:
    return GpuReading(**{name: seen.get(name) for name in GpuReading._fields})


def sampling_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "specbench-sampler"]


class WatchedNvml(FakeNvml):
    """Tells when its GPU was read so many times: a busy machine reads late."""

    def __init__(self, gpu: FakeGpu, *, num_readings: int) -> None:
        super().__init__(gpu)
        self._left = num_readings
        self._was_read = threading.Event()

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        """The last thing that a reading asks for."""
        self._left -= 1
        if self._left <= 0:
            self._was_read.set()
        return super().nvmlDeviceGetCurrentClocksEventReasons(gpu)

    def wait(self) -> None:
        assert self._was_read.wait(PATIENCE_S), "the GPU was not read"


def test_every_name_that_is_asked_of_nvml_exists_in_pynvml():
    asked = {
        node.attr
        for source in Path(specbench.probes.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.lower().startswith("nvml")
    }

    assert len(asked) > 20
    assert [name for name in asked | set(EVERY_FUNCTION) if not hasattr(pynvml, name)] == []


def test_throttle_bits_are_pynvmls_own():
    own_names = {
        pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
        pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
        pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal_slowdown",
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
    }

    assert own_names.items() <= THROTTLE_REASONS.items()
    assert pynvml.nvmlClocksEventReasonGpuIdle == GPU_IDLE


def test_a_gpu_that_tells_everything_is_read_in_our_units():
    gpu = FakeGpu(processes=[OWN, OTHER], reasons=0x4)

    assert probe_of(gpu).read() == GpuReading(
        device_used_bytes=5_000,
        process_used_bytes=3_000,
        power_w=250.5,
        sm_clock_mhz=1_700,
        temperature_c=60,
        event_reasons=0x4,
        num_other_processes=1,
    )
    assert probe_of(gpu).gpu_facts() == GpuFacts(
        name="Fake 100",
        memory_bytes=80_000,
        driver="580.1",
        power_limit_w=700.0,
        sm_clock_default_mhz=1_800,
    )


def test_a_sample_is_taken_while_code_runs_and_the_thread_ends_with_it():
    gpu = FakeGpu(processes=[OWN], reasons=0x40)
    nvml = WatchedNvml(gpu, num_readings=5)
    probe = NvmlProbe(gpu, nvml=nvml, interval_s=0.001)

    probe.start()
    assert len(sampling_threads()) == 1
    nvml.wait()
    sample = probe.stop()

    assert sampling_threads() == []
    assert sample is not None
    assert sample.num_samples >= 5
    assert sample == DeviceSample(
        num_samples=sample.num_samples,
        device_used_bytes=5_000,
        process_used_bytes=3_000,
        power_w=250.5,
        sm_clock_mhz=1_700,
        sm_clock_default_mhz=1_800,
        temperature_c=60,
        throttle_reasons=("hw_thermal_slowdown",),
        num_other_processes=0,
    )
    assert probe.stop() is None


def test_a_start_without_a_stop_leaves_no_second_thread():
    probe = probe_of(FakeGpu())

    probe.start()
    probe.start()

    assert len(sampling_threads()) == 1
    assert probe.stop() is not None
    assert sampling_threads() == []


def test_even_the_shortest_request_is_seen_at_its_start_and_its_end():
    probe = NvmlProbe(gpu := FakeGpu(), nvml=FakeNvml(gpu), interval_s=3_600)

    probe.start()
    sample = probe.stop()

    assert sample is not None
    assert sample.num_samples == 2


def test_a_gpu_that_refuses_everything_gives_none_everywhere_and_raises_nothing():
    probe = probe_of(FakeGpu(processes=[OWN]), refused=EVERY_READING)

    probe.start()
    sample = probe.stop()

    assert sample is not None
    assert sample == DeviceSample(num_samples=sample.num_samples)
    assert probe.energy_j() is None
    assert probe.device_used_bytes() is None
    assert probe.process_used_bytes() is None
    assert probe.gpu_facts() == GpuFacts()


@pytest.mark.parametrize(
    ("refused", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "device_used_bytes"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
    ],
)
def test_what_a_gpu_refuses_is_none_and_the_rest_is_still_told(refused: str, field: str):
    seen = probe_of(FakeGpu(processes=[OWN]), refused=(refused,)).read()

    assert [name for name in GpuReading._fields if getattr(seen, name) is None] == [field]


def test_a_gpu_lost_in_the_middle_keeps_what_was_seen_before():
    gpu = FakeGpu(used=9_000)
    nvml = WatchedNvml(gpu, num_readings=1)
    probe = NvmlProbe(gpu, nvml=nvml, interval_s=0.001)

    probe.start()
    nvml.wait()
    nvml.refused.update(EVERY_READING)
    sample = probe.stop()

    assert sample is not None
    assert sample.device_used_bytes == 9_000


def test_energy_is_a_counter_in_joules():
    gpu = FakeGpu(energy=7_000_250)
    probe = probe_of(gpu)

    before = probe.energy_j()
    gpu.energy += 1_500

    assert before == 7_000.25
    assert probe.energy_j() == 7_001.75


def test_an_old_driver_is_asked_for_throttle_reasons_under_their_old_name():
    gpu = FakeGpu(reasons=0x8)

    seen = probe_of(gpu, refused=("nvmlDeviceGetCurrentClocksEventReasons",)).read()

    assert seen.event_reasons == 0x8


def test_without_a_default_clock_the_highest_clock_is_the_default():
    refused = ("nvmlDeviceGetDefaultApplicationsClock",)

    assert probe_of(FakeGpu(), refused=refused).gpu_facts().sm_clock_default_mhz == 1_980


@pytest.mark.parametrize(
    ("processes", "own_bytes", "num_others"),
    [
        ([OWN], 3_000, 0),
        ([OWN, OTHER, OTHER], 3_000, 1),
        ([Process(OWN.pid, None), OTHER], None, 1),
        ([], None, None),
        ([OTHER], None, None),
    ],
    ids=["alone", "beside another", "memory untold", "nobody listed", "only strangers listed"],
)
def test_other_processes_are_counted_only_where_this_one_is_listed(
    processes: list[Process], own_bytes: int | None, num_others: int | None
):
    seen = probe_of(FakeGpu(processes=processes)).read()

    assert (seen.process_used_bytes, seen.num_other_processes) == (own_bytes, num_others)


def test_a_sample_has_peaks_mean_power_lowest_clock_and_every_reason():
    readings = [
        reading(device_used_bytes=10, power_w=100.0, sm_clock_mhz=1_500, event_reasons=0x4),
        reading(device_used_bytes=30, power_w=400.0, temperature_c=70, event_reasons=0x48),
        reading(device_used_bytes=20, process_used_bytes=8, sm_clock_mhz=1_400, temperature_c=65),
        reading(process_used_bytes=9, power_w=100.0, num_other_processes=2),
    ]

    assert summarize(readings, 1_800) == DeviceSample(
        num_samples=4,
        device_used_bytes=30,
        process_used_bytes=9,
        power_w=200.0,
        sm_clock_mhz=1_400,
        sm_clock_default_mhz=1_800,
        temperature_c=70,
        throttle_reasons=("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown"),
        num_other_processes=2,
    )


def test_the_clock_of_an_idle_gpu_is_not_held_against_the_work():
    idle = reading(sm_clock_mhz=345, event_reasons=GPU_IDLE)
    busy = reading(sm_clock_mhz=1_700, event_reasons=0)

    assert summarize([idle, busy, idle], 1_800).sm_clock_mhz == 1_700
    assert summarize([idle, idle], 1_800).sm_clock_mhz is None


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        ([], ()),
        ([0x0], ()),
        ([0x1 | 0x2 | 0x100], ()),  # idle, or clocks that someone chose
        ([0x80, 0x4, 0x84], ("sw_power_cap", "hw_power_brake_slowdown")),
        ([0x10 | 0x20], ("sync_boost", "sw_thermal_slowdown")),
        ([0x800], ("bit_11",)),
    ],
)
def test_throttle_reasons_have_names(bits: list[int], names: tuple[str, ...]):
    assert throttle_names(bits) == names
