"""Throughput of many concurrent requests, the latency of each, and whether it was within an SLO.

A pass serves the whole prompt list; ramp is its beginning, until all requests are busy, and drain
its end, when the queue is empty.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from statistics import fmean

from specbench.metrics.cell import CellData, num_within, once_a_cell
from specbench.metrics.pairs import paired_goodput
from specbench.metrics.registry import metric
from specbench.metrics.timings import Span, busy_span, timings, whole_span
from specbench.stats.summaries import median_of, num_needed, percentile


@metric(unit="tokens/s", better="higher", label="tok/s, busy")
def busy_tokens_per_s(cell: CellData) -> float | None:
    """Tokens per second while the batch is full: tokens from the first to the last full round /
    seconds between them, pooled over passes.

    Prefills in between take time, and their first tokens count. Absent if the batch never was full.
    """
    return _rate(_busy_spans(cell))


@metric(unit="tokens/s", better="higher", label="tok/s, all")
def aggregate_tokens_per_s(cell: CellData) -> float | None:
    """Tokens per second over whole passes: all output tokens / seconds of their passes, ramp and
    drain included.
    """
    return _rate(
        [whole_span(served) for served in cell.passes] if cell.key.condition.is_stream else []
    )


@metric(unit="requests/s", better="higher", low=0, label="requests/s")
def requests_per_s(cell: CellData) -> float | None:
    """Finished requests per second: their number / seconds of their passes; for one request at a
    time / the sum of request latencies.
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


@metric(unit="tokens/s", better="higher", low=0, label="per user")
def user_tokens_per_s(cell: CellData) -> float | None:
    """Median tokens per second that one user sees: (n - 1) / decode seconds of each request."""
    known = timings(cell)
    timed = known.decode_s > 0
    return median_of((known.num_timed[timed] / known.decode_s[timed]).tolist())


@metric(unit="fraction", better="higher", low=0, high=1, label="busy")
def busy_share(cell: CellData) -> float | None:
    """Share of a pass with a full batch, without ramp and drain: seconds between the first and the
    last full round / seconds of the passes.
    """
    if not cell.key.condition.is_stream or not cell.passes:
        return None
    busy_s = sum(span.seconds for span in _busy_spans(cell))
    return busy_s / sum(served.record.seconds for served in cell.passes)


@metric(unit="fraction", better="higher", low=0, high=1, label="batch used")
def padding_efficiency(cell: CellData) -> float | None:
    """Live rows / computed rows of the batch: sums over rounds, 1 if no idle row is computed."""
    rounds = cell.time_lines if cell.key.condition.is_stream else ()
    computed = sum(sum(timeline.num_rows) for timeline in rounds)
    return sum(sum(timeline.num_live) for timeline in rounds) / computed if computed else None


@metric(unit="s", better="lower", label="queue ms")
def queue_s(cell: CellData) -> float | None:
    """Median time from arrival to the start of prefill: over requests."""
    return median_of(request.queue_s for request in cell.finished)


@metric(unit="s", better="lower", low=0)
def inter_chunk_latency_s(cell: CellData) -> float | None:
    """Median of the seconds between two streamed chunks of one request, pooled over requests; a
    chunk has the tokens of one round.
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
    """Seconds that an adaptive cell spent on measuring step times, once per run outside decoding.

    Part of the pass's seconds, so end_to_end_speedup above one row contains it.
    """
    if not cell.key.draft.is_adaptive or not cell.passes:
        return None
    return sum(served.record.calibration_s for served in cell.passes)


@metric(unit="bytes", better="lower", label="KV cache")
def kv_bytes(cell: CellData) -> int | None:
    """KV cache of target and drafter: the largest allocation of a pass, or for one request
    kv_bytes_per_token * tokens of the longest one.
    """
    if cell.key.condition.overlaps:
        allocated = (served.record.kv_bytes for served in cell.passes)
        return max((nbytes for nbytes in allocated if nbytes is not None), default=None)
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


@metric(unit="requests/s", better="higher", low=0, label="goodput")
def goodput_requests_per_s(cell: CellData) -> float | None:
    """Requests per second that keep every limit of --slo: their number / the seconds of
    requests_per_s, as the goodput of `vllm bench serve` and aiperf; absent without --slo.
    """
    seconds = serving_seconds(cell)
    return num_within(cell.requests, cell.slo) / seconds if seconds and cell.slo else None


@metric(unit="x", better="higher", low=0)
def goodput_ratio(cell: CellData) -> float | None:
    """goodput_requests_per_s / the baseline's, with half a request added on each side; for a
    server the geometric mean over cycles.
    """
    counts = paired_goodput(cell)
    return None if counts is None else counts.speedup


@metric(unit="fraction", better="higher", low=0, high=1)
def slo_attainment(cell: CellData) -> float | None:
    """Requests that keep every limit of --slo / all requests, failed ones included."""
    return num_within(cell.requests, cell.slo) / len(cell.requests) if cell.slo else None


@metric(unit="fraction", better=None, low=0, high=1)
def slo_attainment_of_baseline(cell: CellData) -> float | None:
    """slo_attainment of K = 0 in the same blocks; absent at K = 0."""
    if not cell.slo or not cell.baseline:
        return None
    return num_within(cell.baseline, cell.slo) / len(cell.baseline)


MIN_REQUESTS = 24  # of a pass: a third of fewer shows no trend
GROWTH = 2.0


def saturation(cell: CellData) -> str:
    """Why an open-loop cell is saturated: the last third of its requests all waited more than
    twice as long for their first token as the first third did; empty if they did not.

    In the median pass: of eight passes at 90% of a server's capacity, chance says so in one case of
    twenty, at half of it in none (tests/metrics/test_saturation.py).
    """
    passes = [waits for waits in _waits(cell) if len(waits) >= MIN_REQUESTS]
    first = median_of(median_of(waits[: len(waits) // 3]) for waits in passes)
    last = median_of(min(waits[-len(waits) // 3 :]) for waits in passes)
    if first is None or last is None or last <= GROWTH * first:
        return ""
    return (
        f"saturated, or nearly: {cell.key.condition.request_rate:g} requests per second are more "
        f"than it takes; the first third waited {first:.3g} s for the first token, the last third "
        f"at least {last:.3g} s, and more requests would wait longer"
    )


def _waits(cell: CellData) -> Iterator[list[float]]:
    """Seconds to the first token by arrival, of each pass; later turns do not come at the rate."""
    for served in cell.passes if cell.key.condition.request_rate is not None else ():
        waits = [
            (request.arrived_s, request.ttft_s)
            for request in served.requests
            if request.turn == 0 and request.arrived_s is not None and request.ttft_s is not None
        ]
        yield [ttft_s for _, ttft_s in sorted(waits)]
