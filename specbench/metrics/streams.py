"""Whether the times of streamed answers can be those of decoding, before a figure is made of them.

An engine sends the tokens of a round when it has them: one at K = 0, at most K + 1, as one event
or, in llama.cpp, as several at once. Thresholds have margins against 96 answers of vLLM 0.32 that
`vllm bench serve` recorded: at most two events of an answer have no gap before them, its last one
included; there are 0.98 arrivals per token at K = 0 or more, and 1.02 per K + 1 tokens at
K = 4. Events that an engine merges under load, or by its own `--stream-interval`, come at even
times and are no fault: the seconds between the first and the last are right.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import compress

from specbench.records import Kind, Reason, RequestRecord
from specbench.stats.summaries import median_of

MIN_TOKENS = 8  # of an answer whose times are judged
MARGIN = 1.5  # rounds per arrival, and events per token
NO_GAP_SHARE, NO_GAP_S = 0.1, 5e-4  # of the mean gap, and at most this long
MIN_JOINED = 0.25  # of the events; an engine's end-of-text event is one per answer
MIN_ROUND_S = 1e-3  # mean gap from which joined events are not the client's scheduling
# An answer that came in one burst: events faster than any engine decodes, after a wait in which an
# engine could have decoded them, and that is this many times longer.
BURST_GAP_S, BURST_WAIT = 2e-4, 10.0
MIN_UNSEEN = 0.2  # of the tokens, if only the delay of the first event shows them
MIN_EXPLAINED = 0.8  # of that delay, at the pace of the others
MOST_CHARS = 6.0  # of text per token seen; with more, merged events hold the others
MIN_AT_FIRST = 0.1  # of the events, joined with the first one
# Of the answers. A pause of the client joins the events that it hits, so most answers must have
# BURSTS: a busy machine did it to 27% of them. No pause makes tokens of which no event comes.
MAX_FAULTY = {Kind.BURSTS: 0.5, Kind.LATE_FIRST: 0.1}


def faulty_streams(requests: Iterable[RequestRecord], k: int) -> Reason | None:
    """The commonest fault of streamed answers at K; None if their times can be those of decoding,
    or if they have no times of chunks to tell it by.

    Its figures are the numbers of answers that have it and that were judged, the tokens that
    `usage` or token ids count in the former, and the tokens seen: those that the events can hold,
    or for BURSTS the arrivals.
    """
    streamed = [r for r in requests if r.finish_reason != "failed" and r.chunk_s is not None]
    judged = [r for r in streamed if r.num_output_tokens >= MIN_TOKENS]
    faults = [fault for request in streamed if (fault := _fault(request, k))]
    numbers = {
        kind: num
        for kind, num in Counter(kind for kind, _, _ in faults).items()
        if num > MAX_FAULTY.get(kind, 0.0) * len(judged)
    }
    if not numbers:
        return None
    kind = max(numbers, key=lambda kind: numbers[kind])
    return kind(
        k=k,
        answers=numbers[kind],
        judged=len(judged if kind in MAX_FAULTY else streamed),
        counted=sum(counted for of, counted, _ in faults if of == kind),
        seen=sum(seen for of, _, seen in faults if of == kind),
    )


def without_stream_times(request: RequestRecord) -> RequestRecord:
    """The request with the times of the whole, and without those within its stream."""
    return replace(request, ttft_s=None, decode_s=None, chunk_s=None)


def _fault(request: RequestRecord, k: int) -> tuple[Kind, int, int] | None:
    """The fault of one answer with its tokens `counted` and `seen`."""
    gaps_s, num_tokens = request.chunk_s or (), request.num_output_tokens
    num_events = len(gaps_s) + 1
    if request.num_uncounted or not num_tokens:
        by_total = max(num_tokens + request.num_uncounted, 0)
        return Kind.MISCOUNTED, num_tokens, by_total or num_events
    if request.num_unstreamed:
        return Kind.UNSTREAMED, num_tokens, max(num_tokens - request.num_unstreamed, 0)
    if num_events > MARGIN * num_tokens + 2:  # an end-of-text event and one of a tool's name
        return Kind.MISCOUNTED, num_tokens, num_events
    if num_tokens < MIN_TOKENS:
        return None
    decode_s, ttft_s = sum(gaps_s), request.ttft_s or 0.0
    mean_s = decode_s / max(len(gaps_s), 1)
    if mean_s >= MIN_ROUND_S:
        arrives = [gap_s > min(NO_GAP_SHARE * mean_s, NO_GAP_S) for gap_s in gaps_s]
    else:
        wait_s = max(BURST_WAIT * decode_s, MIN_ROUND_S * num_events)
        arrives = [mean_s > BURST_GAP_S or ttft_s < wait_s] * len(gaps_s)
    # A character of several bytes may take as many tokens, of which only the last makes an event.
    text = request.text or ""
    num_held = len(text.encode("utf-8", "replace")) - len(text)
    num_rounds = request.counts.num_rounds if request.counts else (num_tokens - 1) / (k + 1)
    num_arrivals = 1 + sum(arrives)
    is_joined = num_arrivals == 1 or arrives.count(False) > MIN_JOINED * len(gaps_s)
    num_at_first = next((i for i, apart in enumerate(arrives) if apart), 0)  # events after it
    if (is_joined and MARGIN * num_arrivals < 1 + num_rounds - num_held) or (
        num_at_first > max(MARGIN * (k + 1) + 1, MIN_AT_FIRST * len(gaps_s))
    ):
        return Kind.BURSTS, num_tokens, num_arrivals
    seen = request.num_first + len(gaps_s) * (k + 1) + num_held
    is_shown = request.output_ids or len(text) > MOST_CHARS * seen
    if is_shown or num_tokens - seen < MIN_UNSEEN * num_tokens:
        return None
    gap_s = median_of(compress(gaps_s, arrives))
    if gap_s and ttft_s > MIN_EXPLAINED * gap_s * (num_tokens - seen) / (k + 1):
        return Kind.LATE_FIRST, num_tokens, seen
    return None
