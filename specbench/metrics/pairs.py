"""Seconds of the same prompts at K = 0 and at the cell's K: what speed-ups are made of."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.metrics.cell import CellData
from specbench.records import RequestRecord


class PairedSeconds(NamedTuple):
    """One entry per prompt: its turns and repeats summed, both sides over the same requests."""

    base_s: NDArray[np.float64]
    spec_s: NDArray[np.float64]
    base_tokens: NDArray[np.float64]
    spec_tokens: NDArray[np.float64]

    @property
    def speedup(self) -> float:
        """Baseline seconds per token / speculative seconds per token."""
        base = self.base_s.sum() / self.base_tokens.sum()
        return float(base / (self.spec_s.sum() / self.spec_tokens.sum()))


class _Share(NamedTuple):
    """What one request adds to its side of a pair."""

    seconds: float
    tokens: int


def paired_decode(cell: CellData) -> PairedSeconds | None:
    """Seconds from first token to last, with the tokens after the first."""
    return _paired(cell, _decode_share)


def paired_end_to_end(cell: CellData) -> PairedSeconds | None:
    """Seconds of whole requests, prefill of target and drafter included."""
    return _paired(cell, lambda request: _share(request.total_s, request.num_output_tokens))


def paired_cpu(cell: CellData) -> PairedSeconds | None:
    """Process CPU seconds of whole requests."""
    return _paired(cell, lambda request: _share(request.cpu_s, request.num_output_tokens))


def _paired(
    cell: CellData, share: Callable[[RequestRecord], _Share | None]
) -> PairedSeconds | None:
    """None without pairs; None above one row, where requests overlap and do not add up."""
    if cell.key.concurrency > 1:
        return None
    prompts: dict[str, list[float]] = {}
    for base, spec in cell.pairs:
        base_share, spec_share = share(base), share(spec)
        if base_share is None or spec_share is None:
            continue
        sums = prompts.setdefault(spec.prompt_id, [0.0] * len(PairedSeconds._fields))
        row = (base_share.seconds, spec_share.seconds, base_share.tokens, spec_share.tokens)
        for column, value in enumerate(row):
            sums[column] += value
    if not prompts:
        return None
    return PairedSeconds(*np.array(list(prompts.values())).T)


def _decode_share(request: RequestRecord) -> _Share | None:
    return _share(request.decode_s, request.num_output_tokens - 1)


def _share(seconds: float | None, tokens: int) -> _Share | None:
    """None for a request without such time, such as one that ended with its first token."""
    return _Share(seconds, tokens) if seconds and tokens > 0 else None
