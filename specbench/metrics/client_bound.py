"""Whether the client, and not the server, set the pace."""

from collections.abc import Iterable

from specbench.records import ClientLoad, ServerRecord

MAX_CLIENT_SHARE = 0.5  # of its core
MAX_CLIENT_LAG = 0.05  # of the seconds per token


def why_client_bound(servers: Iterable[ServerRecord], cell_id: str, tpot_s: float | None) -> str:
    """What kept the client from keeping up while these sessions served a cell that takes so many
    seconds per token; empty where nothing did."""
    loads = (load for server in servers for load in server.client if load.cell_id == cell_id)
    return next(filter(None, (why_bound(load, tpot_s) for load in loads)), "")


def why_bound(load: ClientLoad, tpot_s: float | None) -> str:
    """Why the client was too slow for a server of so many seconds per token; empty: it was not."""
    if load.cpu_s > MAX_CLIENT_SHARE * load.seconds:
        return (
            f"the client used {load.cpu_s / load.seconds:.0%} of a core, more than "
            f"{MAX_CLIENT_SHARE:.0%}; ask fewer at once, or from a faster machine"
        )
    if tpot_s is not None and load.mean_lag_s > MAX_CLIENT_LAG * tpot_s:
        return (
            f"the client's event loop lagged by {load.mean_lag_s * 1e3:.1f} ms on average, more "
            f"than {MAX_CLIENT_LAG:.0%} of the {tpot_s * 1e3:.1f} ms per output token; keep a "
            "core free for it"
        )
    return ""
