"""Which sessions of a server may be used."""

from collections.abc import Iterator, Mapping, Sequence

from specbench.records import NO_DRAFTER, FailureRecord, ServerRecord


def usable_sessions(servers: Sequence[ServerRecord]) -> Mapping[str, ServerRecord]:
    """The last try of each session, by name, unless it has a problem.

    Of a cycle only the sessions of one attempt on one node are usable, so that K = 0 and every K
    have the same machine and the same time: of the attempt with the most of K = 0, then the most.
    Of equal ones it is the latest.
    """
    cycles: dict[object, dict[object, dict[str, ServerRecord]]] = {}
    for server in reversed(servers):
        attempts = cycles.setdefault((server.target, server.engine, server.cycle), {})
        attempts.setdefault((server.node, server.attempt), {}).setdefault(server.place, server)
    usable: dict[str, ServerRecord] = {}
    for attempts in cycles.values():
        sound = [[s for s in last.values() if not s.problems] for last in attempts.values()]
        best = max(
            sound, key=lambda own: (sum(not s.num_speculative_tokens for s in own), len(own))
        )
        usable |= {server.session: server for server in best}
    return {s.session: s for s in servers if usable.get(s.session) is s}


def lost_sessions(servers: Sequence[ServerRecord]) -> Iterator[FailureRecord]:
    """Sessions without a usable attempt; a resumed run holds their cycles again."""
    held = {server.place for server in usable_sessions(servers).values()}
    last = {server.place: server for server in servers if server.place not in held}
    for server in last.values():
        problems = server.problems or ("its cycle was measured again without it",)
        drafter = "" if server.drafter == NO_DRAFTER else f"/{server.drafter}"
        yield FailureRecord(
            pairing=f"{server.target}{drafter}",
            workload="",
            stage="decode" if server.version else "load",
            reason=f"{server.engine}, K={server.num_speculative_tokens}, "
            f"cycle {server.cycle + 1}: {'; '.join(problems)}",
        )
