"""Seconds and tokens of requests in columns: what speeds are made of, gathered once a cell."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.metrics.cell import CellData, once_a_cell
from specbench.records import RequestRecord

Column = NDArray[np.float64]


class Timings(NamedTuple):
    """An entry per request; NaN where it does not tell."""

    decode_s: Column
    total_s: Column
    cpu_s: Column
    num_tokens: Column
    num_timed: Column  # those that decode_s took

    @property
    def seconds_per_token(self) -> list[float]:
        """(last token - first token) / (n - 1) of each request with at least two tokens."""
        told = ~np.isnan(self.decode_s) & (self.num_timed > 0)
        seconds: list[float] = (self.decode_s[told] / self.num_timed[told]).tolist()
        return seconds


@once_a_cell
def timings(cell: CellData) -> Timings:
    """Those of the requests that did not fail."""
    return timings_of(cell.finished)


def timings_of(requests: Iterable[RequestRecord]) -> Timings:
    """In the order of `requests`."""
    rows = [
        (r.decode_s, r.total_s, r.cpu_s, r.num_output_tokens, r.num_timed_tokens) for r in requests
    ]
    width = len(Timings._fields)
    return Timings(*np.array(rows, dtype=np.float64).reshape(-1, width).T.copy())
