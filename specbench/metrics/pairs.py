"""Seconds of the same work by a cell and by its baseline: what speed-ups are made of."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import add
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from specbench.metrics.cell import CellData, Pass, Samples, once_a_cell, paired_requests
from specbench.metrics.passes import (
    Span,
    busy_span,
    samples_decode_span,
    samples_span,
    whole_span,
)
from specbench.records import RequestRecord
from specbench.stats.crossed import crossed_speedup

U = TypeVar("U", bound=Hashable)


class PairedSeconds(NamedTuple):
    """One entry per prompt, its turns and repeats summed; above one row, one per pass.

    For a server the arrays are [cycles, prompts], above one row [cycles, 1]; NaN where a request
    failed.
    """

    base_s: NDArray[np.float64]
    spec_s: NDArray[np.float64]
    base_tokens: NDArray[np.float64]
    spec_tokens: NDArray[np.float64]

    @property
    def has_cycles(self) -> bool:
        return self.base_s.ndim > 1

    @property
    def speedup(self) -> float:
        """Baseline seconds per token / speculative seconds per token; of cycles the mean."""
        if self.has_cycles:
            return math.exp(crossed_speedup(*self).log)
        base_s, spec_s, base_tokens, spec_tokens = (column.sum() for column in self)
        return float(base_s / base_tokens / (spec_s / spec_tokens))


class _Row(NamedTuple):
    """What one request or pass adds to its unit."""

    unit: str
    cycle: int | None  # of a server's sessions; None: in no whole cycle
    base: Span | None
    spec: Span | None


@once_a_cell
def paired_decode(cell: CellData) -> PairedSeconds | None:
    """Seconds from first token to last, with the tokens after the first.

    With many concurrent requests: seconds while all rows are busy, with the tokens emitted in them.
    With arrivals in open loop, which fix the throughput: the requests' own seconds again.
    Of several samples: seconds until the last one has ended, with the tokens of all.
    """
    if cell.key.condition.num_samples > 1:
        return _summed(cell, _samples(cell, samples_decode_span))
    if cell.key.condition.is_stream and cell.key.condition.request_rate is None:
        rows = cell.key.condition.concurrency
        return _summed(cell, _passes(cell, lambda served: busy_span(served, rows)))
    return _summed(cell, _requests(cell, _decode_span))


def prompt_speedups(cell: CellData) -> dict[str, float]:
    """Decode seconds per token at K = 0 / at the cell's K of each prompt, its turns and repeats
    together; empty where requests overlap and none is slow or fast by itself.
    """
    if cell.key.condition.overlaps:
        return {}
    sums: dict[str, list[float]] = {}
    for row in _requests(cell, _decode_span):
        if row.base is not None and row.spec is not None:
            _add(sums, row.unit, (*row.base, *row.spec))
    return {
        prompt: base_s / base_tokens / (spec_s / spec_tokens)
        for prompt, (base_s, base_tokens, spec_s, spec_tokens) in sums.items()
    }


@once_a_cell
def paired_end_to_end(cell: CellData) -> PairedSeconds | None:
    """Seconds of whole requests, prefill of target and drafter included.

    With many concurrent requests: seconds of whole passes; in open loop of whole requests again,
    from arrival on. Of several samples: until one is picked.
    """
    if cell.key.condition.num_samples > 1:
        return _summed(cell, _samples(cell, samples_span))
    if cell.key.condition.is_stream and cell.key.condition.request_rate is None:
        return _summed(cell, _passes(cell, whole_span))
    return _summed(cell, _requests(cell, lambda r: _span(r.total_s, r.num_output_tokens)))


def paired_cpu(cell: CellData) -> PairedSeconds | None:
    """Process CPU seconds of whole requests; None where requests overlap."""
    if cell.key.condition.overlaps:
        return None
    return _summed(cell, _requests(cell, lambda r: _span(r.cpu_s, r.num_output_tokens)))


def _requests(cell: CellData, span: Callable[[RequestRecord], Span | None]) -> Iterator[_Row]:
    """Requests that finished on both sides; where they overlap, those of a pass are a unit."""
    if cell.key.condition.is_stream:
        for passes in cell.pass_pairs:
            for base, spec in paired_requests(passes.base.requests, passes.spec.requests):
                yield _Row(passes.spec.block_id, _cycle(cell, spec), span(base), span(spec))
    else:
        for base, spec in cell.pairs:
            yield _Row(spec.prompt_id, _cycle(cell, spec), span(base), span(spec))


def _passes(cell: CellData, span: Callable[[Pass], Span | None]) -> Iterator[_Row]:
    for base, spec in cell.pass_pairs:
        yield _Row(spec.block_id, _cycle(cell, spec.requests[0]), span(base), span(spec))


def _samples(cell: CellData, span: Callable[[Samples], Span]) -> Iterator[_Row]:
    for base, spec in cell.samples_pairs:
        spans = (span(base), span(spec))
        used = (s if s.seconds and s.tokens else None for s in spans)
        yield _Row(spec.record.prompt_id, None, *used)


def _cycle(cell: CellData, request: RequestRecord) -> int | None:
    return cell.cycles.get(request.repeat)


def _summed(cell: CellData, rows: Iterable[_Row]) -> PairedSeconds | None:
    """None where no row has both sides."""
    units: dict[tuple[int, str], list[float]] = {}
    for unit, cycle, base, spec in rows:
        if base is None or spec is None or (cell.servers and cycle is None):
            continue
        place = (cycle or 0), unit if cycle is None or not cell.key.condition.is_stream else ""
        _add(units, place, (base.seconds, spec.seconds, base.tokens, spec.tokens))
    if not units:
        return None
    if not cell.servers:
        return PairedSeconds(*np.array(list(units.values()), dtype=np.float64).T)
    cycles, names = ([*dict.fromkeys(part)] for part in zip(*units, strict=True))
    table = np.full((len(PairedSeconds._fields), len(cycles), len(names)), np.nan)
    for (cycle, unit), sums in units.items():
        table[:, cycles.index(cycle), names.index(unit)] = sums
    return PairedSeconds(*table)


def _add(sums: dict[U, list[float]], unit: U, values: Sequence[float]) -> None:
    known = sums.get(unit)
    sums[unit] = [*values] if known is None else [*map(add, known, values)]


def _decode_span(request: RequestRecord) -> Span | None:
    return _span(request.decode_s, request.num_timed_tokens)


def _span(seconds: float | None, tokens: int) -> Span | None:
    """None for a request without such time, such as one that ended with its first token."""
    return Span(seconds, tokens) if seconds and tokens > 0 else None
