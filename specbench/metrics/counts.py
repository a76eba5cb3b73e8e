"""The number of requests, rounds, passes and tokens of a cell."""

from statistics import fmean

from specbench.metrics.cell import CellData
from specbench.metrics.registry import metric


@metric(unit="rounds", better=None)
def num_rounds(cell: CellData) -> int | None:
    """Rounds of all finished requests; prefill is not a round."""
    if cell.rounds is not None:
        return len(cell.rounds)
    return None if cell.acceptance is None else int(cell.acceptance.num_rounds)


@metric(unit="passes", better=None, label="passes")
def num_passes(cell: CellData) -> int | None:
    """Passes over the prompt list; absent if requests do not overlap."""
    return (len(cell.passes) or None) if cell.key.condition.is_stream else None


@metric(unit="tokens", better=None)
def num_output_tokens(cell: CellData) -> int | None:
    """Output tokens of all finished requests, counted by ids or else by the server; the first of
    each request comes from prefill.
    """
    return sum(request.num_output_tokens for request in cell.finished)


@metric(unit="tokens/request", better="higher", label="predicted")
def num_checked_at_once(cell: CellData) -> float | None:
    """Mean output tokens per request that verifying a predicted output accepted before the first
    round; absent without predicted outputs.
    """
    if not any(request.answer_check for request in cell.finished):
        return None
    return fmean(request.num_checked_at_once for request in cell.finished)


@metric(unit="requests", better="lower")
def num_failed(cell: CellData) -> int | None:
    """Failed requests; excluded from every other metric."""
    return len(cell.requests) - len(cell.finished)
