"""Metrics of latency and speed, and speedups over K = 0."""

from specbench.metrics.cell import CellData
from specbench.metrics.pairs import paired_cpu, paired_decode, paired_end_to_end
from specbench.metrics.registry import metric
from specbench.metrics.timings import Column, timings
from specbench.stats.summaries import median_of


@metric(unit="tokens/s", better="higher", label="tok/s")
def decode_tokens_per_s(cell: CellData) -> float | None:
    """Output tokens after the first / decode seconds, pooled over requests: speed of one."""
    known = timings(cell)
    return _pooled(known.num_timed, known.decode_s)


@metric(unit="s", better="lower", label="TTFT ms")
def ttft_s(cell: CellData) -> float | None:
    """Median time from start to first token: over requests, prefill of target and drafter
    included.
    """
    return median_of(request.ttft_s for request in cell.finished)


@metric(unit="s/token", better="lower")
def tpot_s(cell: CellData) -> float | None:
    """Median over requests of (last token - first token) / (n - 1); absent below 2 tokens."""
    return median_of(timings(cell).seconds_per_token)


@metric(unit="s", better="lower", low=0, label="latency ms")
def request_latency_s(cell: CellData) -> float | None:
    """Median time from arrival to the last token: over requests."""
    return median_of(request.total_s for request in cell.finished)


@metric(unit="s", better="lower")
def prefill_s(cell: CellData) -> float | None:
    """Median over requests of the seconds to prefill target and drafter."""
    return median_of(request.prefill_s for request in cell.finished)


@metric(unit="x", better="higher")
def decode_speedup(cell: CellData) -> float | None:
    """Sum of baseline decode seconds / sum of speculative ones over the same requests; with
    concurrent requests busy_tokens_per_s / the baseline's.

    If lengths differ, at temperature > 0, the ratio of seconds per output token. With several
    samples, the seconds until the last one has ended. In open loop, arrivals determine the
    throughput, so it is the ratio of mean seconds per output token after the first.
    A ratio of sums, not a mean of ratios: short prompts must not dominate. For a server the
    geometric mean of such ratios over cycles of sessions.
    """
    seconds = paired_decode(cell)
    return None if seconds is None else seconds.speedup


@metric(unit="x", better="higher")
def end_to_end_speedup(cell: CellData) -> float | None:
    """decode_speedup over whole requests: with prefill of target and drafter, and with several
    samples also picking one; with concurrent requests aggregate_tokens_per_s / the baseline's.
    """
    seconds = paired_end_to_end(cell)
    return None if seconds is None else seconds.speedup


@metric(unit="tokens/s", better="higher")
def end_to_end_tokens_per_s(cell: CellData) -> float | None:
    """All output tokens / seconds of whole requests, prefill of target and drafter included: for
    one request, as busy_tokens_per_s is for many. Absent if requests overlap.
    """
    if cell.key.condition.overlaps:
        return None
    known = timings(cell)
    return _pooled(known.num_tokens, known.total_s)


@metric(unit="x", better="higher")
def cpu_speedup(cell: CellData) -> float | None:
    """end_to_end_speedup in process CPU seconds: less disturbed by a busy machine."""
    seconds = paired_cpu(cell)
    return None if seconds is None else seconds.speedup


def _pooled(tokens: Column, seconds: Column) -> float | None:
    """Tokens per second over the requests with a known time."""
    timed = seconds > 0
    return float(tokens[timed].sum() / seconds[timed].sum()) if timed.any() else None
