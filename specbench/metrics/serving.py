"""What many concurrent requests give together, and what each user sees of it.

A pass serves the whole prompt list; ramp is its beginning, until all rows are busy, and drain
its end, when the queue is empty.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from statistics import fmean

from specbench.metrics.cell import CellData, once_a_cell
from specbench.metrics.passes import Span, busy_span, whole_span
from specbench.metrics.registry import metric
from specbench.metrics.timings import timings
from specbench.stats.percentiles import median_of, num_needed, percentile


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


@metric(unit="requests/s", better="higher", low=0)
def requests_per_s(cell: CellData) -> float | None:
    """Finished requests / seconds of their passes; for one request at a time / the sum of
    request latencies.
    """
    seconds = serving_seconds(cell)
    return len(cell.finished) / seconds if seconds else None


@metric(unit="tokens/s", better="higher", low=0)
def input_tokens_per_s(cell: CellData) -> float | None:
    """Prompt tokens of finished requests / the seconds of requests_per_s, tokens from a prefix
    cache included.
    """
    seconds, tokens = serving_seconds(cell), [r.num_prompt_tokens for r in cell.finished]
    return sum(tokens) / seconds if seconds and all(tokens) else None


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


@metric(unit="s", better="lower", low=0)
def inter_chunk_latency_s(cell: CellData) -> float | None:
    """Median of the seconds between two streamed chunks of one request, pooled over requests: with
    speculation the tokens of a round come in one chunk. For our own decoder, one request at a time,
    a round is a chunk.
    """
    return median_of(_chunk_gaps(cell))


@once_a_cell
def _chunk_gaps(cell: CellData) -> list[float]:
    if cell.key.condition.overlaps or cell.servers:
        gaps = [request.chunk_s or () for request in cell.finished]
    else:
        gaps = [request.rounds.round_s if request.rounds else () for request in cell.finished]
    return [*chain.from_iterable(gaps)]


def _register_tails(
    name: str, of: str, unit: str, values: Callable[[CellData], list[float]]
) -> None:
    """Metrics `name`_p90, `name`_p95 and `name`_p99; `of`: what there is a value of."""
    for percent in (90, 95, 99):

        def tail(cell: CellData, percent: int = percent) -> float | None:
            return percentile(values(cell), percent)

        tail.__name__ = f"{name}_p{percent}"
        tail.__doc__ = (
            f"{percent}th percentile over {of} of {name}; absent below {num_needed(percent)} {of}."
        )
        metric(unit=unit, better="lower", low=0)(tail)


_register_tails("ttft_s", "requests", "s", lambda cell: _known(r.ttft_s for r in cell.finished))
_register_tails("tpot_s", "requests", "s/token", lambda cell: timings(cell).seconds_per_token)
_register_tails(
    "request_latency_s", "requests", "s", lambda cell: _known(r.total_s for r in cell.finished)
)
_register_tails("inter_chunk_latency_s", "gaps", "s", _chunk_gaps)


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


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _busy_spans(cell: CellData) -> list[Span]:
    if not cell.key.condition.is_stream:
        return []
    spans = [busy_span(served, cell.key.condition.concurrency) for served in cell.passes]
    return [span for span in spans if span is not None]


def serving_seconds(cell: CellData) -> float | None:
    """Seconds of the passes, or of single requests one after another; None for samples."""
    if cell.key.condition.is_stream:
        return sum(served.record.seconds for served in cell.passes) or None
    if cell.key.condition.overlaps:
        return None
    return sum(_known(request.total_s for request in cell.finished)) or None


def _rate(spans: list[Span]) -> float | None:
    return sum(s.tokens for s in spans) / sum(s.seconds for s in spans) if spans else None
