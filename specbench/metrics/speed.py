"""Latency and speed, speedups over K = 0, throughput of concurrent requests, and SLOs.

A pass serves the whole prompt list; ramp is its beginning, until all requests are busy, and drain
its end, when the queue is empty.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from statistics import fmean

from specbench.metrics.cell import CellData, finished, num_within, once_a_cell, sum_of_all
from specbench.metrics.machine import machine_prior
from specbench.metrics.pairs import (
    Column,
    Span,
    busy_span,
    paired_cpu,
    paired_decode,
    paired_end_to_end,
    paired_goodput,
    timings,
    whole_span,
)
from specbench.metrics.registry import metric
from specbench.records import Kind, Reason
from specbench.stats.crossed import SessionNoise, session_noise
from specbench.stats.summaries import median_of, num_needed, percentile


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
        gaps = [request.rounds.timed_s if request.rounds else () for request in cell.finished]
    return [*chain.from_iterable(gaps)]


def _register_tails(
    name: str, of: str, unit: str, values: Callable[[CellData], list[float]]
) -> None:
    """Metrics `name`_p90, `name`_p95 and `name`_p99 of one value for each of `of`."""
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
    """Mean over rounds of the K that an adaptive cell picked, or by a server of the tokens drafted;
    absent for a fixed K.
    """
    if not cell.key.draft.is_adaptive:
        return None
    ks = [k for rounds in cell.time_lines for k in rounds.num_speculative_tokens]
    counts = cell.acceptance if cell.servers else None
    if counts is not None and counts.num_drafted:
        return counts.num_drafted / counts.num_rounds
    return fmean(ks) if ks else None


@metric(unit="s", better="lower")
def calibration_s(cell: CellData) -> float | None:
    """Seconds that an adaptive cell spent on measuring step times, once per run outside decoding.

    Part of the pass's seconds, so end_to_end_speedup above one row contains it.
    """
    if not cell.key.draft.is_adaptive or not cell.passes:
        return None
    return sum(served.record.calibration_s for served in cell.passes)


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
    """Requests per second that meet every limit of --slo: their number / the seconds of
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
    """Requests that meet every limit of --slo / all requests, failed ones included."""
    return num_within(cell.requests, cell.slo) / len(cell.requests) if cell.slo else None


@metric(unit="fraction", better=None, low=0, high=1)
def slo_attainment_of_baseline(cell: CellData) -> float | None:
    """slo_attainment of K = 0 in the same blocks; absent at K = 0."""
    if not cell.slo or not cell.baseline:
        return None
    return num_within(cell.baseline, cell.slo) / len(cell.baseline)


MIN_REQUESTS = 24  # of a pass: a third of fewer shows no trend
GROWTH = 2.0


def saturation(cell: CellData) -> Reason | None:
    """Why an open-loop cell is saturated: the last third of its requests all waited more than
    twice as long for their first token as the first third did; None if they did not.

    In the median pass. Of eight passes at 90% of a server's capacity, chance does this in
    one case of twenty, at half the capacity in none (tests/metrics/test_saturation.py).
    """
    passes = [waits for waits in _waits(cell) if len(waits) >= MIN_REQUESTS]
    first = median_of(median_of(waits[: len(waits) // 3]) for waits in passes)
    last = median_of(min(waits[-len(waits) // 3 :]) for waits in passes)
    if first is None or last is None or last <= GROWTH * first:
        return None
    rate = cell.key.condition.request_rate
    return Kind.SATURATED(request_rate=rate, first_s=first, last_s=last)


def _waits(cell: CellData) -> Iterator[list[float]]:
    """Seconds to the first tokens of each pass, by arrival, or of whole requests where a stream
    does not show these; without later turns, which do not arrive at the rate."""
    for served in cell.passes if cell.key.condition.request_rate is not None else ():
        waits = [
            (request.arrived_s, wait_s)
            for request in finished(served.requests)
            if request.turn == 0
            and request.arrived_s is not None
            and (wait_s := request.ttft_s or request.total_s) is not None
        ]
        yield [wait_s for _, wait_s in sorted(waits)]


@metric(unit="cycles", better=None, label="cycles")
def num_cycles(cell: CellData) -> int | None:
    """Cycles of a server's sessions: each has two without speculation and two at this K."""
    return len(set(cell.cycles.values())) if cell.servers else None


@metric(unit="fraction", better=None)
def cycle_deviation(cell: CellData) -> float | None:
    """Standard deviation between cycles of log(decode_speedup), the variation between starts of a
    server, pooled with the one that is assumed.

    Divided by the root of num_cycles it is their part of the standard error.
    """
    noise = noise_of_sessions(cell)
    return None if noise is None else math.sqrt(noise.cycles.variance)


@metric(unit="fraction", better=None)
def prompt_error(cell: CellData) -> float | None:
    """Standard error of the log of a server's decode_speedup that prompts cause and that more
    cycles do not reduce; 0 if requests are served together.
    """
    noise = noise_of_sessions(cell)
    return None if noise is None else noise.prompts.standard_error


@metric(unit="requests", better="lower")
def num_preemptions(cell: CellData) -> int | None:
    """Requests that the server preempted for lack of KV cache, in all sessions of this K."""
    return sum_of_all(server.num_preemptions for server in cell.servers)


@metric(unit="s/event", better="lower")
def client_cpu_s_per_event(cell: CellData) -> float | None:
    """CPU seconds of the client / events that were streamed to it."""
    events = sum(load.num_events for load in cell.loads)
    return sum(load.cpu_s for load in cell.loads) / events if events else None


def noise_of_sessions(cell: CellData) -> SessionNoise | None:
    """What makes a server's speedup vary; None without cycles, and for a single prompt, which shows
    no variation between prompts."""
    seconds = paired_decode(cell) if cell.servers else None
    if seconds is None or not seconds.has_cycles:
        return None
    if seconds.base_s.shape[1] == 1 and not cell.key.condition.is_stream:
        return None
    return session_noise(*seconds, prior=machine_prior(cell))


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
    """Failed requests; they meet no limit of an SLO, and are in no other metric."""
    return len(cell.requests) - len(cell.finished)
