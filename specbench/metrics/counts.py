"""How much was measured."""

from specbench.metrics.cell import CellData
from specbench.metrics.registry import metric
from specbench.metrics.setting import is_stream


@metric(unit="rounds", better=None)
def num_rounds(cell: CellData) -> float | None:
    """Rounds of all finished requests; prefill is not a round."""
    return None if cell.rounds is None else len(cell.rounds)


@metric(unit="passes", better=None)
def num_passes(cell: CellData) -> float | None:
    """Passes over the prompt list; absent where requests do not overlap."""
    return len(cell.passes) if is_stream(cell.key) else None


@metric(unit="tokens", better=None)
def num_output_tokens(cell: CellData) -> float | None:
    """Output tokens of all finished requests, counted from ids; the first is prefill's."""
    return sum(request.num_output_tokens for request in cell.finished)


@metric(unit="requests", better="lower")
def num_failed(cell: CellData) -> float | None:
    """Requests that failed; they are in no other metric."""
    return len(cell.requests) - len(cell.finished)
