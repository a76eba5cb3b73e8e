"""What a drafter adds to the target's peak, where both passes need room for a while."""

from types import SimpleNamespace
from typing import Any

import pytest

from specbench.bench import limits
from specbench.bench.limits import MemoryMeter

NOTHING = ("weights_bytes", "kv_bytes_per_token", "state_bytes_per_row")
ENGINE: Any = SimpleNamespace(**{name: lambda _: 0 for name in NOTHING})
PROBE: Any = SimpleNamespace(
    start=lambda: None,
    stop=lambda: None,
    process_used_bytes=lambda: None,
    device_used_bytes=lambda: None,
)
TARGET, PASS, DRAFT = 1000, 300, 50


class Allocator:
    """torch's, in bytes."""

    def __init__(self) -> None:
        self.now = self.peak = TARGET

    def take(self, num_bytes: int) -> None:
        self.now += num_bytes
        self.peak = max(self.peak, self.now)

    def run(self, num_bytes: int) -> None:
        """A pass that needs so much while it runs."""
        self.take(num_bytes)
        self.now -= num_bytes


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    fake = Allocator()
    monkeypatch.setattr(limits, "allocator_peaks", lambda _: (fake.peak, fake.peak))
    monkeypatch.setattr(limits, "reset_allocator_peaks", lambda _: setattr(fake, "peak", fake.now))
    return fake


@pytest.fixture
def meter(allocator: Allocator) -> MemoryMeter:
    made = MemoryMeter("demo", "cuda", PROBE)
    alone = made.target_alone(ENGINE, lambda: allocator.run(PASS))
    assert alone.peak_allocated_bytes == TARGET + PASS
    return made


def test_a_drafter_without_memory_adds_nothing_to_the_peak(meter, allocator):
    """The room that a pass needs is in both peaks, and counts once."""
    pair = meter.with_drafter(ENGINE, "ngram", lambda: allocator.run(PASS))
    assert pair.peak_allocated_bytes == TARGET + PASS


def test_a_drafters_peak_includes_its_weights_and_the_extra_of_its_pass(meter, allocator):
    def load_and_run() -> None:
        allocator.take(DRAFT)
        allocator.run(PASS + 7)

    pair = meter.with_drafter(ENGINE, "draft", load_and_run)
    assert pair.peak_allocated_bytes == TARGET + PASS + DRAFT + 7


def test_memory_that_an_earlier_drafter_left_is_not_charged_to_the_next(meter, allocator):
    allocator.take(11)
    pair = meter.with_drafter(ENGINE, "ngram", lambda: allocator.run(PASS))
    assert pair.peak_allocated_bytes == TARGET + PASS


def test_memory_freed_in_between_is_not_attributed(meter, allocator):
    """As blocks that torch keeps for later and a removed drafter makes it give back."""
    allocator.now -= 11
    pair = meter.with_drafter(ENGINE, "ngram", lambda: allocator.run(PASS + 11))
    assert pair.peak_allocated_bytes == TARGET + PASS


def test_a_smaller_pass_does_not_lower_the_peak(meter, allocator):
    pair = meter.with_drafter(ENGINE, "ngram", lambda: allocator.run(PASS // 2))
    assert pair.peak_allocated_bytes == TARGET + PASS
