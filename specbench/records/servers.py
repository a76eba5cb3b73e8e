"""One session of a server: a start of it at one K, or one that runs already, asked once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SESSIONS_PER_K = 2  # in a cycle: on the way up, and on the way down


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLoad:
    """What asking took of the client while one condition was served, and what the server counted.

    `counters` are differences over the condition's requests, by the names of `servers.Counters`.
    """

    cell_id: str
    seconds: float
    cpu_s: float
    num_events: int
    mean_lag_s: float  # how long an event waited on average until it was read
    counters: Mapping[str, float] = field(default_factory=dict)
    num_accepted_at: tuple[float, ...] = ()  # draft tokens accepted at position 1, 2 .. K


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRecord:
    """One session; a figure that the server does not tell is None or absent.

    `counters` are the sums of those of its conditions.
    """

    session: str
    place: str  # the same for every attempt at this session
    target: str
    engine: str
    drafter: str  # NO_DRAFTER without speculation
    method: str
    num_speculative_tokens: int
    cycle: int
    version: str
    model: str  # as the server calls it
    addresses: tuple[str, ...]
    command: tuple[str, ...] = ()  # what started it; (): it was running
    settings: Mapping[str, str] = field(default_factory=dict)  # effective, as the server tells
    # The date in its chat template: as sent, or "server" for its own. "": none; None: unknown.
    template_clock: str | None = None
    prefix_cache: str = "unknown"  # off, on, unknown, by request
    acceptance_rule: str | None = None
    num_gpus: int | None = None  # visible on its machine: CUDA_VISIBLE_DEVICES names them
    kv_tokens: int | None = None  # tokens that its KV cache has room for
    start_s: float | None = None  # until it was healthy
    started_s: float | None = None  # when its process started, in Unix seconds, by its counters
    attempt: int = 1  # at its cycle, whose sessions count only together
    seconds: float = 0.0  # of the measured requests
    counters: Mapping[str, float] = field(default_factory=dict)
    num_preemptions: int | None = None
    queue_s: float | None = None  # summed over requests
    power_w: float | None = None  # mean over the measured requests, of all visible GPUs
    memory_bytes: int | None = None  # peak, of all visible GPUs
    throttle_reasons: tuple[str, ...] = ()  # of any of them
    client: tuple[ClientLoad, ...] = ()
    sees_others: bool = False  # whether another client's requests would have been noticed
    problems: tuple[str, ...] = ()  # why none of its figures may be used
    warnings: tuple[str, ...] = ()
    log: str | None = None  # the file of its output, in the run's folder
    node: str | None = None  # of a cluster, where it was held
