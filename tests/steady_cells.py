"""A steady cell that tests break in one place each."""

import pytest

from specbench.metrics.cell import CellData
from specbench.records import CellKey, DeviceSample, RequestRecord, RoundLog
from tests.cell_keys import BASE_KEY, KEY, with_axes
from tests.made_records import made_request, steps

NUM_PROMPTS = 6
DEVICE = DeviceSample(num_samples=9, sm_clock_mhz=1800, sm_clock_default_mhz=1800)


def key(k: int) -> CellKey:
    return with_axes(KEY if k else BASE_KEY, num_speculative_tokens=k)


def speculative(prompt: int) -> RequestRecord:
    """12 tokens after the first in 6 rounds at K = 2; each prompt is a little slower."""
    rounds = RoundLog(
        num_drafted=(2,) * 6,
        num_accepted=(2, 2, 2, 0, 0, 0),
        num_emitted=(3, 3, 3, 1, 1, 1),
        round_s=(0.1 + 0.01 * prompt,) * 6,
    )
    return made_request(key(2).id, f"p{prompt}", rounds, cpu_s=1.0, device=DEVICE)


def baseline(prompt: int) -> RequestRecord:
    """12 tokens in 12 steps of 0.1 s."""
    return made_request(key(0).id, f"p{prompt}", steps(12), cpu_s=2.0, device=DEVICE)


@pytest.fixture
def steady() -> CellData:
    """K = 2, 6 prompts, 36 rounds: valid, speedup 12 * 0.1 * 6 / (6 * 0.75) = 1.6."""
    return CellData(
        key=key(2),
        requests=tuple(speculative(prompt) for prompt in range(NUM_PROMPTS)),
        baseline=tuple(baseline(prompt) for prompt in range(NUM_PROMPTS)),
    )


@pytest.fixture
def steady_baseline(steady: CellData) -> CellData:
    return CellData(key=key(0), requests=steady.baseline)
