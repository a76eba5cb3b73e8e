"""Whether the client, and not the server, set the pace."""

from collections.abc import Iterable

from specbench.records import ClientLoad, RequestRecord

MAX_CLIENT_SHARE = 0.5  # of its core
MAX_CLIENT_LAG = 0.05  # of the seconds between two events of one stream


def mean_event_interval_s(
    loads: Iterable[ClientLoad], requests: Iterable[RequestRecord]
) -> float | None:
    """Seconds between two events of a stream: tokens of one round come in one event.

    It is of all loads of a setting: by its own, a fast one would be called client-bound sooner than
    a slow one, and the speedup of the rest would be off.
    """
    num_events = sum(load.num_events for load in loads)
    streamed_s = sum(request.decode_s or 0.0 for request in requests)
    return streamed_s / num_events if num_events and streamed_s else None


def why_bound(load: ClientLoad, event_interval_s: float | None) -> str:
    """Why the client was too slow for streams with this interval between events; empty: it was
    not."""
    if load.cpu_s > MAX_CLIENT_SHARE * load.seconds:
        return (
            f"the client used {load.cpu_s / load.seconds:.0%} of a core, more than "
            f"{MAX_CLIENT_SHARE:.0%}; ask fewer at once, or from a faster machine"
        )
    if event_interval_s is not None and load.mean_lag_s > MAX_CLIENT_LAG * event_interval_s:
        return (
            f"the client's event loop lagged by {load.mean_lag_s * 1e3:.1f} ms on average, more "
            f"than {MAX_CLIENT_LAG:.0%} of the {event_interval_s * 1e3:.1f} ms between two events; "
            "keep a core free for it"
        )
    return ""
