import ast
import os
import threading
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from fake_nvml import EVERY_FUNCTION, EVERY_READING, FakeGpu, FakeNvml, Process, partitioned_gpu

import specbench.probes
from specbench.probes.gpu import (
    GPU_IDLE,
    THROTTLE_REASONS,
    GpuFacts,
    GpuNotFoundError,
    GpuReading,
    Gpus,
    GpuUse,
    NvmlProbe,
    Probe,
    find_gpu,
    has_gpu_driver,
    open_probe,
    summarize,
    throttle_names,
)
from specbench.records import DeviceSample

OWN = Process(os.getpid(), 3_000)
OTHER = Process(os.getpid() + 1, 900)
PATIENCE_S = 300.0  # a thread that never runs would hang the test


def probe_of(gpu: FakeGpu, *, refused: tuple[str, ...] = ()) -> NvmlProbe:
    return NvmlProbe(gpu, nvml=FakeNvml(gpu, refused=refused), interval_s=0.001)


def reading(**seen: int | float | None) -> GpuReading:
    return GpuReading(**{name: seen.get(name) for name in GpuReading._fields})


def sampling_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "specbench-sampler"]


class WatchedNvml(FakeNvml):
    """Signals after `num_readings` readings of its GPU: a busy machine reads late."""

    def __init__(self, gpu: FakeGpu, *, num_readings: int) -> None:
        super().__init__(gpu)
        self._left = num_readings
        self._was_read = threading.Event()

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        """The last value that a reading requests."""
        self._left -= 1
        if self._left <= 0:
            self._was_read.set()
        return super().nvmlDeviceGetCurrentClocksEventReasons(gpu)

    def wait(self) -> None:
        assert self._was_read.wait(PATIENCE_S), "the GPU was not read"


def test_every_nvml_name_in_use_exists_in_pynvml():
    names = {
        node.attr
        for source in Path(specbench.probes.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.lower().startswith("nvml")
    }

    assert len(names) > 20
    assert [name for name in names | set(EVERY_FUNCTION) if not hasattr(pynvml, name)] == []


def test_throttle_bits_match_pynvml():
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


def test_gpu_readings_are_converted_to_our_units():
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
        compute_capability=(9, 0),
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


def test_a_short_request_has_a_gpu_sample_at_start_and_end():
    probe = NvmlProbe(gpu := FakeGpu(), nvml=FakeNvml(gpu), interval_s=3_600)

    probe.start()
    sample = probe.stop()

    assert sample is not None
    assert sample.num_samples == 2


def test_a_gpu_that_refuses_every_query_gives_none_without_an_error():
    probe = probe_of(FakeGpu(processes=[OWN]), refused=EVERY_READING)

    probe.start()
    sample = probe.stop()

    assert sample is not None
    assert sample == DeviceSample(num_samples=sample.num_samples)
    assert probe.energy_j() is None
    assert probe.device_used_bytes() is None
    assert probe.process_used_bytes() is None
    assert probe.gpu_facts() == GpuFacts(shares_host_memory=True)


@pytest.mark.parametrize(
    ("refused", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "device_used_bytes"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
    ],
)
def test_a_value_that_the_gpu_does_not_report_is_none(refused: str, field: str):
    seen = probe_of(FakeGpu(processes=[OWN]), refused=(refused,)).read()

    assert [name for name in GpuReading._fields if getattr(seen, name) is None] == [field]


def test_a_gpu_lost_during_a_sample_keeps_earlier_readings():
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


def test_throttle_reasons_of_an_old_driver_use_the_old_name():
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
def test_other_gpu_processes_are_counted_only_if_ours_is_listed(
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


def test_the_clock_of_an_idle_gpu_does_not_invalidate_the_work():
    idle = reading(sm_clock_mhz=345, event_reasons=GPU_IDLE)
    busy = reading(sm_clock_mhz=1_700, event_reasons=0)

    assert summarize([idle, busy, idle], 1_800).sm_clock_mhz == 1_700
    assert summarize([idle, idle], 1_800).sm_clock_mhz is None


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        ([], ()),
        ([0x0], ()),
        ([0x1 | 0x2 | 0x100], ()),  # idle, or clocks set by a user
        ([0x80, 0x4, 0x84], ("sw_power_cap", "hw_power_brake_slowdown")),
        ([0x10 | 0x20], ("sync_boost", "sw_thermal_slowdown")),
        ([0x800], ("bit_11",)),
    ],
)
def test_throttle_reasons_have_names(bits: list[int], names: tuple[str, ...]):
    assert throttle_names(bits) == names


def test_the_probe_watches_the_requested_gpu():
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
        ("cuda:0", FakeNvml(FakeGpu(mig=1)), "NVML refuses: Not Found"),  # no instance
        ("cuda:7", FakeNvml(FakeGpu()), "cuda:7 is GPU 7, and NVML knows 1"),
        ("cpu", FakeNvml(FakeGpu()), "none (NVML supports NVIDIA GPUs only)"),
    ],
)
def test_a_probe_without_a_gpu_gives_a_reason_and_none_instead_of_zero(
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


@pytest.mark.parametrize(
    ("visible", "uuid", "facts"),
    [
        (None, None, ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40_000, 300)),
        ("MIG-small", None, ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10_000, 100)),
        (None, "small", ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10_000, 100)),
    ],
    ids=["the first", "named by the environment", "named by CUDA"],
)
def test_a_mig_instance_has_its_name_and_memory_and_no_values_of_the_gpu(
    visible: str | None, uuid: str | None, facts: tuple[str, int, int]
):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    nvml = FakeNvml(partitioned_gpu())

    probe = open_probe("cuda:0", known=GpuFacts(uuid=uuid), nvml=nvml, environment=environment)

    name, memory_bytes, used_bytes = facts
    assert "MIG is on" in probe.reason
    assert probe.gpu_facts() == GpuFacts(
        name=name, memory_bytes=memory_bytes, driver="580.1", compute_capability=(9, 0), uuid=uuid
    )
    probe.start()
    sample = probe.stop()
    assert sample is not None
    assert sample == DeviceSample(num_samples=sample.num_samples, device_used_bytes=used_bytes)
    assert probe.energy_j() is None


OF_TORCH = GpuFacts(
    name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", memory_bytes=9_000, compute_capability=(9, 0)
)


@pytest.mark.parametrize(
    ("uuid", "nvml"),
    [
        ("whole", FakeNvml(partitioned_gpu())),  # whose instances NVML cannot tell apart
        ("strange", FakeNvml(FakeGpu())),
        ("a", NoDriver()),
        ("a", NoPermission()),
    ],
)
def test_what_nvml_does_not_report_is_taken_from_torch(uuid: str, nvml: FakeNvml):
    known = OF_TORCH._replace(uuid=uuid)

    probe = open_probe("cuda:0", known=known, nvml=nvml, environment={})

    assert probe.reason
    assert probe.gpu_facts() == known


def test_torch_reports_the_memory_of_a_gpu_that_shares_the_hosts():
    nvml = FakeNvml(FakeGpu(uuid="GPU-a"), refused=("nvmlDeviceGetMemoryInfo",))

    probe = open_probe("cuda:0", known=OF_TORCH._replace(uuid="a"), nvml=nvml, environment={})

    facts = probe.gpu_facts()
    assert (facts.name, facts.memory_bytes) == ("Fake 100", 9_000)
    assert facts.shares_host_memory


@pytest.mark.parametrize(
    ("visible", "is_installed", "has_driver"),
    [
        (None, True, True),
        ("1", True, True),
        ("GPU-a,GPU-b", True, True),
        ("", True, False),
        ("-1", True, False),
        (None, False, False),
    ],
)
def test_a_machine_has_a_gpu_driver_unless_all_gpus_are_hidden(
    visible: str | None,
    is_installed: bool,
    has_driver: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    device = tmp_path / "nvidiactl"
    if is_installed:
        device.touch()
    monkeypatch.setattr("specbench.probes.gpu._GPU_FILES", (str(device),))

    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert has_gpu_driver(environment) is has_driver


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
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    index: int, visible: str | None, gpu: FakeGpu
):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert find_gpu(index, None, EQUAL, environment) is gpu


def test_a_gpu_is_found_by_its_cuda_uuid():
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
        (0, "MIG-1234", "NVML has no MIG-1234"),
    ],
)
def test_an_index_without_a_gpu_has_a_reason(index: int, visible: str | None, complaint: str):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    with pytest.raises(GpuNotFoundError, match=complaint):
        find_gpu(index, None, EQUAL, environment)


def test_a_uuid_that_nvml_does_not_know_is_refused():
    with pytest.raises(GpuNotFoundError, match=r"GPU-9999.*MIG-9999"):
        find_gpu(0, "9999", EQUAL, {})


def test_different_gpus_are_identified_only_in_pci_order_or_by_uuid():
    with pytest.raises(GpuNotFoundError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        find_gpu(0, None, MIXED, {})

    assert find_gpu(1, None, MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) is MIXED.gpus[1]
    assert find_gpu(0, None, MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-fast"}) is MIXED.gpus[1]


SAMPLE = DeviceSample(num_samples=2, device_used_bytes=10, power_w=300.0)


def reporting_gpus(*samples: DeviceSample | None) -> Gpus:
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
        return Telling(samples[index]) if index < len(samples) else Probe("no such GPU")  # type: ignore[return-value]

    return Gpus(open_one)


def use_of(gpus: Gpus) -> GpuUse:
    gpus.start()
    return gpus.stop()


def test_power_and_memory_are_summed_over_gpus():
    other = replace(SAMPLE, device_used_bytes=5, power_w=100.0, throttle_reasons=("hw_slowdown",))
    assert use_of(reporting_gpus(SAMPLE, other)) == GpuUse(2, 400.0, 15, ("hw_slowdown",))


def test_a_total_over_gpus_is_unknown_if_one_gpu_does_not_report_it():
    assert use_of(reporting_gpus(SAMPLE, replace(SAMPLE, power_w=None))) == GpuUse(2, None, 20, ())
    assert use_of(reporting_gpus(SAMPLE, None)) == GpuUse(2, None, None, ())


def test_gpu_use_without_a_gpu_is_unknown():
    assert use_of(reporting_gpus()) == GpuUse(None, None, None, ())
