"""One session of a server: a start of it at one K, or one that runs already, asked once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from specbench.records.doc import Doc

SESSIONS_PER_K = 2  # in a cycle: on the way up, and on the way down


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLoad:
    """What asking took of the client while one condition was served, and what the server counted.

    `counters` are differences over the condition's requests, by the names of `servers.Counters`.
    """

    cell_id: Annotated[str, Doc("the cell that was measured")]
    seconds: Annotated[float, Doc("of its requests", "s")]
    cpu_s: Annotated[float, Doc("CPU time of the client", "s")]
    num_events: Annotated[int, Doc("events streamed to the client", "events")]
    mean_lag_s: Annotated[float, Doc("mean time until the client read an event", "s")]
    counters: Annotated[Mapping[str, float], Doc("what the server counted for the cell")] = field(
        default_factory=dict
    )
    num_accepted_at: Annotated[
        tuple[float, ...], Doc("draft tokens accepted at position 1, 2 .. K", "tokens")
    ] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRecord:
    """One session; a figure that the server does not tell is None or absent.

    `counters` are the sums of those of its conditions.
    """

    session: Annotated[str, Doc("this attempt at the session, as in `requests`")]
    place: Annotated[str, Doc("the same for every attempt; one of them counts")]
    target: Annotated[str, Doc("name of the target")]
    engine: Annotated[str, Doc("what served")]
    drafter: Annotated[str, Doc("name of the drafter; `none` at K = 0")]
    method: Annotated[str, Doc("how tokens were drafted; `none` at K = 0")]
    num_speculative_tokens: Annotated[int, Doc("K", "tokens/round")]
    cycle: Annotated[
        int,
        Doc(
            "cycle of sessions, from 0; it has two sessions of each K, and figures are paired "
            "within it"
        ),
    ]
    version: Annotated[str, Doc("version of the engine; empty if it did not start")]
    model: Annotated[str, Doc("name of the model on the server")]
    addresses: Annotated[
        tuple[str, ...], Doc("of a server that was running; empty if we started it")
    ]
    command: Annotated[tuple[str, ...], Doc("what started it; empty if it was running")] = ()
    settings: Annotated[Mapping[str, str], Doc("effective settings that the server reports")] = (
        field(default_factory=dict)
    )
    template_clock: Annotated[
        str | None,
        Doc("date in its chat template, `server` for its own; absent if unknown", is_text=True),
    ] = None
    prefix_cache: Annotated[
        str, Doc("whether it kept prefixes: `off`, `on`, `unknown` or `by request`")
    ] = "unknown"
    acceptance_rule: Annotated[
        str | None, Doc("when a draft token is accepted; absent if unknown", is_text=True)
    ] = None
    num_gpus: Annotated[int | None, Doc("GPUs that it ran on", "GPUs")] = None
    kv_tokens: Annotated[int | None, Doc("capacity of its KV cache", "tokens")] = None
    start_s: Annotated[float | None, Doc("until it was healthy", "s")] = None
    started_s: Annotated[
        float | None, Doc("when its process started, in Unix seconds, as its counters report", "s")
    ] = None
    attempt: Annotated[
        int,
        Doc(
            "attempt at its cycle, from 1; only the sessions of one attempt count: the one "
            "with the most sessions, and of equal ones the last"
        ),
    ] = 1
    seconds: Annotated[float, Doc("of the measured requests", "s")] = 0.0
    counters: Annotated[
        Mapping[str, float],
        Doc(
            "what the server counted: `num_rounds`, `num_draft_tokens`, `num_accepted`, "
            "`num_tokens`; by its own convention, past the ends of outputs"
        ),
    ] = field(default_factory=dict)
    num_preemptions: Annotated[
        int | None, Doc("requests preempted because memory was short", "requests")
    ] = None
    queue_s: Annotated[float | None, Doc("that requests waited inside it, summed", "s")] = None
    power_w: Annotated[float | None, Doc("mean power of all its GPUs", "W")] = None
    memory_bytes: Annotated[int | None, Doc("peak memory in use, of all its GPUs", "bytes")] = None
    throttle_reasons: Annotated[
        tuple[str, ...], Doc("why a GPU lowered its clock; empty if none did", is_text=True)
    ] = ()
    client: Annotated[tuple[ClientLoad, ...], Doc("load of the client, by cell")] = ()
    sees_others: Annotated[
        bool, Doc("whether another client's requests would have been noticed")
    ] = False
    problems: Annotated[
        tuple[str, ...], Doc("why its figures are not used; empty if they are")
    ] = ()
    warnings: Annotated[tuple[str, ...], Doc("what deserves a second look")] = ()
    log: Annotated[str | None, Doc("file of its output, in the run's folder")] = None
    node: Annotated[
        str | None,
        Doc("node of a [cluster](cluster.md) that ran it; absent without one", is_text=True),
    ] = None
