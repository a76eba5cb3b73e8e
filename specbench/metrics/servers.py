"""Metrics of serving engines: noise between sessions, KV cache capacity, preemptions, the
engine's own acceptance length, the load of the client.
"""

from collections.abc import Iterable

from specbench.metrics.cell import CellData, counted_by_server, sum_of_all
from specbench.metrics.pairs import paired_decode
from specbench.metrics.registry import metric
from specbench.records import RequestRecord, ServerRecord
from specbench.stats.crossed import SessionNoise, session_noise
from specbench.stats.rounds import mean_length


@metric(unit="cycles", better=None, label="cycles")
def num_cycles(cell: CellData) -> int | None:
    """Cycles of a server's sessions: each has two without speculation and two at this K."""
    return len(set(cell.cycles.values())) if cell.servers else None


@metric(unit="fraction", better=None)
def cycle_deviation(cell: CellData) -> float | None:
    """Standard deviation between cycles of log(decode_speedup), the variation between starts of a
    server.

    Divided by the root of num_cycles it is their part of the standard error.
    """
    noise = _noise(cell)
    return None if noise is None else noise.cycle_sd


@metric(unit="fraction", better=None)
def prompt_error(cell: CellData) -> float | None:
    """Standard error of the log of a server's decode_speedup that prompts cause and that more
    cycles do not reduce; 0 if requests are served together.
    """
    noise = _noise(cell)
    return None if noise is None else noise.prompts.standard_error


@metric(unit="tokens", better="higher")
def kv_capacity_tokens(cell: CellData) -> int | None:
    """Capacity of the server's KV cache in tokens, the least of its sessions."""
    return least_kv_tokens(cell.servers)


@metric(unit="tokens", better="lower")
def kv_capacity_lost_tokens(cell: CellData) -> int | None:
    """kv_capacity_tokens without speculation - with it: the context that it costs."""
    plain, speculative = least_kv_tokens(cell.baseline_servers), kv_capacity_tokens(cell)
    return None if plain is None or speculative is None or cell.k == 0 else plain - speculative


@metric(unit="requests", better="lower")
def num_preemptions(cell: CellData) -> int | None:
    """Requests that the server preempted for lack of KV cache, in all sessions of this K."""
    return sum_of_all(server.num_preemptions for server in cell.servers)


@metric(unit="tokens", better=None)
def num_overshot(cell: CellData) -> int | None:
    """Drafts accepted past the ends of answers: the engine's own figures include them, ours do
    not.
    """
    counts = [request.counts for request in cell.finished if request.counts]
    return sum(c.num_overshot for c in counts) if counts else None


@metric(unit="tokens/round", better=None, low=1, label="engine's length")
def mean_acceptance_length_of_engine(cell: CellData) -> float | None:
    """Mean acceptance length as the engine counts it, past the ends of outputs: 1 + accepted /
    rounds that drafted.
    """
    if not cell.k:
        return None
    by_requests = _length_by_requests(cell.finished)
    counts = None if by_requests else counted_by_server(cell)
    return counts.mean_acceptance_length_when_drafted if counts else by_requests


@metric(unit="s/event", better="lower")
def client_cpu_s_per_event(cell: CellData) -> float | None:
    """CPU seconds of the client / events that were streamed to it."""
    events = sum(load.num_events for load in cell.loads)
    return sum(load.cpu_s for load in cell.loads) / events if events else None


def _noise(cell: CellData) -> SessionNoise | None:
    seconds = paired_decode(cell) if cell.servers else None
    return session_noise(*seconds) if seconds is not None and seconds.has_cycles else None


def least_kv_tokens(servers: Iterable[ServerRecord]) -> int | None:
    """Room for context in the smallest KV cache of these sessions; None if no server reports it."""
    return min((s.kv_tokens for s in servers if s.kv_tokens is not None), default=None)


def _length_by_requests(requests: tuple[RequestRecord, ...]) -> float | None:
    """The length by the counts of requests; None if one lacks what its last round accepted past the
    end.
    """
    accepted, rounds = 0, 0
    for request in requests:
        if request.counts is None or request.counts.num_drafting is None:
            return None
        accepted += request.counts.num_accepted + request.counts.num_overshot
        rounds += request.counts.num_drafting
    return mean_length(accepted, rounds) if rounds else None
