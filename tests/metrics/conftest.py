"""Requests and cells small enough to work out by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from specbench.metrics.cell import CellData
from specbench.records import RequestRecord, RoundLog
from tests.cell_keys import BASE_KEY as BASE_KEY
from tests.frames.small_run import KEY, A, B
from tests.made_records import made_request, steps
from tests.steady_cells import steady as steady
from tests.steady_cells import steady_baseline as steady_baseline


def request(prompt_id: str, rounds: RoundLog | None, num_tokens: int = 0) -> RequestRecord:
    """A finished request whose decode time is the sum of its rounds."""
    tokens = tuple(range(num_tokens or 1 + sum(rounds.num_emitted if rounds else ())))
    return made_request(KEY.id, prompt_id, rounds, output_ids=tokens, ttft_s=0.2)


def baseline_request(prompt_id: str, num_rounds: int, seconds: float) -> RequestRecord:
    """K = 0: one token per round, each taking `seconds`."""
    return made_request(BASE_KEY.id, prompt_id, steps(num_rounds, seconds), ttft_s=0.2)


@pytest.fixture
def cell() -> CellData:
    """K = 3; two prompts of 8 and 5 tokens in 5 rounds, against 11 steps of 0.10 s."""
    second = replace(B, draft_s=(0.03, 0.03), verify_s=(0.11, 0.11))
    return CellData(
        key=KEY,
        requests=(request("a", A), request("b", second)),
        baseline=(baseline_request("a", 7, 0.10), baseline_request("b", 4, 0.10)),
    )


@pytest.fixture
def baseline_cell(cell: CellData) -> CellData:
    """The K = 0 cell of the same prompts."""
    return CellData(key=BASE_KEY, requests=cell.baseline)


@pytest.fixture
def request_of() -> Callable[[str, RoundLog | None], RequestRecord]:
    return request
