"""Which sessions of a server may be used."""

from collections.abc import Iterator, Mapping, Sequence

from specbench.records import NO_DRAFTER, FailureRecord, ServerRecord


def usable_sessions(servers: Sequence[ServerRecord]) -> Mapping[str, ServerRecord]:
    """The last try of each session, by name, unless it has a problem.

    Of a cycle only the sessions of its last attempt are usable, on the node that held it last, so
    that K = 0 and every K have the same machine and the same time.
    """
    last = {server.place: server for server in servers}
    latest = {_cycle(server): (server.node, server.attempt) for server in servers}
    return {
        server.session: server
        for server in last.values()
        if not server.problems and (server.node, server.attempt) == latest[_cycle(server)]
    }


def _cycle(server: ServerRecord) -> tuple[str, str, int]:
    return server.target, server.engine, server.cycle


def lost_sessions(servers: Sequence[ServerRecord]) -> Iterator[FailureRecord]:
    """Sessions whose last attempt is unusable; a resumed run holds them again."""
    last = {server.place: server for server in servers}
    for server in last.values():
        if server.problems:
            drafter = "" if server.drafter == NO_DRAFTER else f"/{server.drafter}"
            yield FailureRecord(
                pairing=f"{server.target}{drafter}",
                workload="",
                stage="decode" if server.version else "load",
                reason=f"{server.engine}, K={server.num_speculative_tokens}, "
                f"cycle {server.cycle + 1}: {'; '.join(server.problems)}",
            )
