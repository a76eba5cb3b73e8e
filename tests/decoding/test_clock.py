"""The device's clock over events that behave like those of CUDA."""

import time
from typing import Any

import numpy as np
import pytest
import torch

from specbench.decode.clock import DeviceClock

HOUR_S = 3600.0
ROUND_S = 0.0123457  # not a round number of milliseconds in float32


class Device:
    """The host's time, which events take too; counts the waits."""

    def __init__(self) -> None:
        self.now_s = 1e5
        self.num_waits = 0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_s = device.now_s

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            device.num_waits += 1

        def elapsed_time(self, later: Any) -> float:
            return float(np.float32((later.at_s - self.at_s) * 1000))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(time, "perf_counter", lambda: device.now_s)
    return device


def test_a_round_has_microsecond_resolution_after_an_hour(device: Device) -> None:
    clock = DeviceClock()
    for _ in range(int(HOUR_S / 0.5)):
        device.now_s += 0.5
        clock.seconds(clock.mark())
    began = clock.mark()
    device.now_s += ROUND_S
    ended = clock.mark()

    assert clock.seconds(ended) - clock.seconds(began) == pytest.approx(ROUND_S, abs=1e-6)
    assert clock.seconds(began) == pytest.approx(HOUR_S, abs=1e-4)
    assert device.num_waits == 1  # at the start, and for no anchor


def test_clock_marks_can_be_read_late_in_any_order(device: Device) -> None:
    clock = DeviceClock()
    marks = []
    for _ in range(5000):  # far more anchors than Python nests calls
        device.now_s += 1.5
        marks.append(clock.mark())

    for i in (4999, 0, 2500, 4999):
        assert clock.seconds(marks[i]) == pytest.approx(1.5 * (i + 1), abs=1e-4)


def test_a_new_pass_counts_from_its_own_start(device: Device) -> None:
    clock = DeviceClock()
    device.now_s += 10
    clock.mark()
    clock.start()
    device.now_s += 2.5
    assert clock.seconds(clock.mark()) == pytest.approx(2.5, abs=1e-6)
    assert clock.now() == 2.5
