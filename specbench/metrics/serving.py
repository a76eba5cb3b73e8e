"""What many concurrent requests give together, and what each user sees of it.

A pass serves the whole prompt list; ramp is its beginning, until all rows are busy, and drain
its end, when the queue is empty.
"""

from statistics import fmean

from specbench.metrics.cell import CellData
from specbench.metrics.passes import Span, busy_span, whole_span
from specbench.metrics.registry import metric
from specbench.metrics.timings import timings
from specbench.stats.percentiles import median_of, p95


@metric(unit="tokens/s", better="higher")
def busy_tokens_per_s(cell: CellData) -> float | None:
    """Tokens emitted from the first to the last round in which the batch was full / seconds
    between them, pooled over passes; prefills in between take time, their first tokens count.

    Absent where the rows never were all live.
    """
    return _rate(_busy_spans(cell))


@metric(unit="tokens/s", better="higher")
def aggregate_tokens_per_s(cell: CellData) -> float | None:
    """All output tokens / seconds of their passes, ramp and drain included."""
    return _rate(
        [whole_span(served) for served in cell.passes] if cell.key.condition.is_stream else []
    )


@metric(unit="tokens/s", better="higher", low=0)
def user_tokens_per_s(cell: CellData) -> float | None:
    """Median over requests of (n - 1) / decode seconds: the speed that one user sees."""
    known = timings(cell)
    timed = known.decode_s > 0
    return median_of((known.num_timed[timed] / known.decode_s[timed]).tolist())


@metric(unit="fraction", better="higher", low=0, high=1)
def busy_share(cell: CellData) -> float | None:
    """Seconds between the first and the last round in which the batch was full / seconds of
    the passes; the rest is ramp and drain.
    """
    if not cell.key.condition.is_stream or not cell.passes:
        return None
    busy_s = sum(span.seconds for span in _busy_spans(cell))
    return busy_s / sum(served.record.seconds for served in cell.passes)


@metric(unit="fraction", better="higher", low=0, high=1)
def padding_efficiency(cell: CellData) -> float | None:
    """Sum of live rows / sum of computed rows, over rounds: 1 where no idle row is computed."""
    rounds = cell.time_lines if cell.key.condition.is_stream else ()
    computed = sum(sum(timeline.num_rows) for timeline in rounds)
    return sum(sum(timeline.num_live) for timeline in rounds) / computed if computed else None


@metric(unit="s", better="lower")
def queue_s(cell: CellData) -> float | None:
    """Median over requests of the seconds from arrival to the start of prefill."""
    return median_of(request.queue_s for request in cell.finished)


@metric(unit="s", better="lower")
def ttft_s_p95(cell: CellData) -> float | None:
    """95th percentile over requests of ttft_s; absent below 20 requests."""
    return p95([request.ttft_s for request in cell.finished if request.ttft_s is not None])


@metric(unit="s/token", better="lower")
def tpot_s_p95(cell: CellData) -> float | None:
    """95th percentile over requests of tpot_s; absent below 20 requests."""
    return p95(timings(cell).seconds_per_token)


@metric(unit="tokens/round", better=None)
def mean_num_speculative_tokens(cell: CellData) -> float | None:
    """Mean over rounds of the K that an adaptive cell picked; absent for a fixed K."""
    if not cell.key.draft.is_adaptive:
        return None
    ks = [k for rounds in cell.time_lines for k in rounds.num_speculative_tokens]
    return fmean(ks) if ks else None


@metric(unit="s", better="lower")
def calibration_s(cell: CellData) -> float | None:
    """Seconds that an adaptive cell spent on measuring round costs; once a run, outside decoding.

    Part of the pass's seconds, so end_to_end_speedup above one row contains it.
    """
    if not cell.key.draft.is_adaptive or not cell.passes:
        return None
    return sum(served.record.calibration_s for served in cell.passes)


@metric(unit="bytes", better="lower")
def kv_bytes(cell: CellData) -> int | None:
    """Bytes of KV cache, target and drafter: with concurrent requests as the largest pass
    allocated it, else kv_bytes_per_token * tokens of the longest request.
    """
    if cell.key.condition.overlaps:
        passes = [served.record for served in cell.passes]
        passes += [samples.record.served for samples in cell.samples]
        allocated = [one.kv_bytes for one in passes if one.kv_bytes is not None]
        return max(allocated, default=None)
    if cell.memory is None or not cell.finished:
        return None
    longest = max(r.num_prompt_tokens + r.num_output_tokens for r in cell.finished)
    return cell.memory.kv_bytes_per_token * longest


def _busy_spans(cell: CellData) -> list[Span]:
    if not cell.key.condition.is_stream:
        return []
    spans = [busy_span(served, cell.key.condition.concurrency) for served in cell.passes]
    return [span for span in spans if span is not None]


def _rate(spans: list[Span]) -> float | None:
    return sum(s.tokens for s in spans) / sum(s.seconds for s in spans) if spans else None
