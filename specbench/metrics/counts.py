"""How much was measured."""

from statistics import fmean

from specbench.metrics.cell import CellData
from specbench.metrics.registry import metric


@metric(unit="rounds", better=None)
def num_rounds(cell: CellData) -> int | None:
    """Rounds of all finished requests; prefill is not a round."""
    if cell.rounds is not None:
        return len(cell.rounds)
    return None if cell.acceptance is None else int(cell.acceptance.num_rounds)


@metric(unit="passes", better=None)
def num_passes(cell: CellData) -> int | None:
    """Passes over the prompt list; absent where requests do not overlap."""
    return (len(cell.passes) or None) if cell.key.condition.is_stream else None


@metric(unit="tokens", better=None)
def num_output_tokens(cell: CellData) -> int | None:
    """Output tokens of all finished requests, counted from ids, or by a server that gives none;
    the first comes from prefill.
    """
    return sum(request.num_output_tokens for request in cell.finished)


@metric(unit="tokens/request", better="higher")
def num_checked_at_once(cell: CellData) -> float | None:
    """Mean over requests of the output tokens that came from checking a predicted output at
    once, between prefill and the first round, and are in no round; absent without such
    checks.
    """
    if not any(request.answer_check for request in cell.finished):
        return None
    return fmean(request.num_checked_at_once for request in cell.finished)


@metric(unit="requests", better="lower")
def num_failed(cell: CellData) -> int | None:
    """Failed requests; excluded from every other metric."""
    return len(cell.requests) - len(cell.finished)
