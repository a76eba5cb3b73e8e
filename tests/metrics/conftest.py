"""Requests and cells small enough to work out by hand."""

from collections.abc import Callable

import pytest

from specbench.metrics.cell import CellData
from specbench.records import RequestRecord, RoundLog
from tests.cell_keys import BASE_KEY as BASE_KEY
from tests.cell_keys import KEY as CELL_KEY
from tests.cell_keys import with_axes
from tests.made_records import made_request, steps
from tests.steady_cells import steady as steady
from tests.steady_cells import steady_baseline as steady_baseline

KEY = with_axes(CELL_KEY, num_speculative_tokens=3)


def request(prompt_id: str, rounds: RoundLog | None, num_tokens: int = 0) -> RequestRecord:
    """A finished request whose decode time is the sum of its rounds."""
    tokens = tuple(range(num_tokens or 1 + sum(rounds.num_emitted if rounds else ())))
    return made_request(KEY.id, prompt_id, rounds, output_ids=tokens, ttft_s=0.2)


def baseline_request(prompt_id: str, num_rounds: int, seconds: float) -> RequestRecord:
    """K = 0: one token a round, each taking `seconds`."""
    return made_request(BASE_KEY.id, prompt_id, steps(num_rounds, seconds), ttft_s=0.2)


@pytest.fixture
def cell() -> CellData:
    """K = 3; two prompts of 8 and 5 tokens in 5 rounds, against 11 steps of 0.10 s."""
    first = RoundLog(
        num_drafted=(3, 3, 0),
        num_accepted=(3, 1, 0),
        num_emitted=(4, 2, 1),
        round_s=(0.16, 0.16, 0.12),
        draft_s=(0.03, 0.03, 0.0),
        verify_s=(0.11, 0.11, 0.11),
    )
    second = RoundLog(
        num_drafted=(3, 2),
        num_accepted=(0, 2),
        num_emitted=(1, 3),
        round_s=(0.16, 0.15),
        draft_s=(0.03, 0.03),
        verify_s=(0.11, 0.11),
    )
    return CellData(
        key=KEY,
        requests=(request("a", first), request("b", second)),
        baseline=(baseline_request("a", 7, 0.10), baseline_request("b", 4, 0.10)),
    )


@pytest.fixture
def baseline_cell(cell: CellData) -> CellData:
    """The K = 0 cell of the same prompts."""
    return CellData(key=BASE_KEY, requests=cell.baseline)


@pytest.fixture
def request_of() -> Callable[[str, RoundLog | None], RequestRecord]:
    return request
