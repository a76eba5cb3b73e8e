"""A small stored run of a serving engine, in sessions: same call, same numbers."""

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.cell import CellData
from specbench.records import (
    ALL_PROMPTS,
    NO_DRAFTER,
    SESSIONS_PER_K,
    BlockPurpose,
    BlockRecord,
    CellKey,
    CellPlan,
    ClientLoad,
    PassRecord,
    RequestCounts,
    RequestRecord,
    RunRecord,
    ServerRecord,
)
from specbench.runs import StoredRun
from tests.cell_keys import BASE_KEY, KEY, with_axes
from tests.made_records import made_request
from tests.report.synthetic_records import environment, model
from tests.settings.flat_settings import changed, settings_of

NUM_TOKENS = 25  # the first comes with the prompt
TTFT_S = 0.05
# Rounds that accept 0, 1 .. K: with each round's own token they make 24.
ACCEPTED = {2: (4, 4, 4), 4: (1, 3, 1, 1, 2)}
SECONDS = {0: 0.48, 2: 0.36, 4: 0.24}  # of 24 tokens of one request
MAX_KV_TOKENS = 20_000
KV_TOKENS_LOST = 500  # by each drafted token
FIRST_CONFIRMING = 100  # cycle


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Contents of the synthetic run."""

    engine: str = "vllm"
    version: str = "0.32.1"
    ks: tuple[int, ...] = (2, 4)
    cycles: int = 4
    num_prompts: int = 6
    rows: tuple[int, ...] = (1, 4)
    wobble: float = 0.02  # of the log speed of a session
    differing: float = 0.05  # from prompt to prompt, of the log speedup
    confirmed: int | None = 4  # the K that was measured again
    lost: tuple[tuple[int, int, int], ...] = ()  # K, cycle and leg that were never completed
    again: tuple[tuple[int, int, int], ...] = ()  # the ones held in a second attempt
    is_attached: bool = False  # to a server that was running
    slower: dict[int, float] = field(default_factory=dict)  # K -> factor of its seconds
    variant: str | None = None
    context: int | None = None


SMALL = Sweep()


def served_sweep(sweep: Sweep = SMALL) -> StoredRun:
    """K = 0 and every K on `code`, in cycles, and the winner again."""
    blocks: list[BlockRecord] = []
    servers: list[ServerRecord] = []
    for purpose, ks, cycles in _passes(sweep):
        for cycle in cycles:
            for k, leg in [*((k, 0) for k in ks), *((k, 1) for k in reversed(ks))]:
                session_servers, session_blocks = _session(sweep, purpose, k, cycle, leg)
                servers += session_servers
                blocks += session_blocks
    return StoredRun(
        folder=Path("reports/20261122-010203-5e55"),
        run=RunRecord(
            schema_version=1,
            run_id="20261122-010203-5e55",
            environment=environment(is_gpu=False),
            settings=settings_of(
                command="sweep-k",
                pairings=("demo/draft",),
                workloads=("code",),
                num_speculative_tokens=(0, *sweep.ks),
                concurrency=sweep.rows,
                engines=(sweep.engine,),
                base_urls=("http://localhost:8000",) if sweep.is_attached else (),
            ),
            workload_sha256={"code": "ef" * 32},
            workload_prompts={"demo": {"code": 40}},
            cells=tuple(
                CellPlan(key=key, num_prompts=sweep.num_prompts, num_repeats=1)
                for key in keys(sweep)
            ),
        ),
        is_complete=True,
        blocks=tuple(blocks),
        servers=tuple(servers),
        models=(model("demo"), model("draft")),
    )


def varied_sweep(variants: dict[str, float], sweep: Sweep = SMALL) -> StoredRun:
    """The sweep under each variant in the same cycles; the values are factors of its seconds.

    The arguments of a variant are `--NAME`.
    """
    runs = [
        served_sweep(replace(sweep, variant=name, slower=dict.fromkeys((0, *sweep.ks), times)))
        for name, times in variants.items()
    ]
    settings = changed(runs[0].run.settings, variants={name: (f"--{name}",) for name in variants})
    cells = tuple(plan for stored in runs for plan in stored.run.cells)
    return replace(
        runs[0],
        run=replace(runs[0].run, cells=cells, settings=settings),
        blocks=tuple(block for stored in runs for block in stored.blocks),
        servers=tuple(server for stored in runs for server in stored.servers),
    )


def keys(sweep: Sweep = SMALL) -> Iterator[CellKey]:
    """Cell keys by concurrency, then by K."""
    for rows in sweep.rows:
        for k in (0, *sweep.ks):
            yield key_of(k, rows, sweep.engine, sweep.variant, sweep.context)


def key_of(
    k: int,
    rows: int = 1,
    engine: str = "vllm",
    variant: str | None = None,
    context: int | None = None,
) -> CellKey:
    key = with_axes(KEY, num_speculative_tokens=k) if k else BASE_KEY
    return with_axes(key, engine=engine, concurrency=rows, variant=variant, context=context)


def _passes(sweep: Sweep) -> Iterator[tuple[BlockPurpose, tuple[int, ...], range]]:
    yield "explore", (0, *sweep.ks), range(sweep.cycles)
    if sweep.confirmed is not None:
        cycles = range(FIRST_CONFIRMING, FIRST_CONFIRMING + sweep.cycles)
        yield "confirm", (0, sweep.confirmed), cycles


def _session(
    sweep: Sweep, purpose: BlockPurpose, k: int, cycle: int, leg: int
) -> tuple[list[ServerRecord], list[BlockRecord]]:
    """The attempts of a session, of which only the last can be complete, and their records."""
    place = f"demo|{sweep.engine}|K{k}|{sweep.variant or ''}{purpose}|c{cycle}.{leg}"
    whole = _run_session(sweep, purpose, k, cycle, leg, f"{place}#1", place)
    if (k, cycle, leg) not in (*sweep.lost, *sweep.again):
        return [whole[0]], whole[1]
    problem = "another client was served meanwhile: the server counted 900 tokens"
    attempts, blocks = [replace(whole[0], problems=(problem,))], whole[1]
    if (k, cycle, leg) in sweep.again:
        server, more = _run_session(sweep, purpose, k, cycle, leg, f"{place}#2", place)
        attempts, blocks = [*attempts, server], [*blocks, *more]
    return attempts, blocks


def _run_session(
    sweep: Sweep, purpose: BlockPurpose, k: int, cycle: int, leg: int, name: str, place: str
) -> tuple[ServerRecord, list[BlockRecord]]:
    cells = [key_of(k, rows, sweep.engine, sweep.variant, sweep.context) for rows in sweep.rows]
    blocks = [_block(sweep, purpose, key, cycle, leg, name) for key in cells]
    requests = [request for block in blocks for request in block.requests]
    speculation = f'--speculative-config={{"num_speculative_tokens": {k}}}'
    command = ("vllm", "serve", "models/target", *((speculation,) if k else ()), "--port", "41207")
    server = ServerRecord(
        session=name,
        place=place,
        target="demo",
        engine=sweep.engine,
        drafter="draft" if k else NO_DRAFTER,
        method="draft_model" if k else NO_DRAFTER,
        num_speculative_tokens=k,
        variant=sweep.variant,
        cycle=cycle,
        version=sweep.version,
        model="models/target",
        addresses=("http://localhost:8000",) if sweep.is_attached else (),
        command=() if sweep.is_attached else command,
        settings={"dtype": "float32", "block_size": "16"},
        prefix_cache="off",
        acceptance_rule="greedy: a draft is accepted if it is the target's argmax" if k else None,
        num_gpus=1,
        kv_tokens=MAX_KV_TOKENS - KV_TOKENS_LOST * k,
        start_s=20.0 + k,
        seconds=10.0 * len(blocks),
        counters=counters_of(requests),
        num_preemptions=leg,
        queue_s=0.5,
        power_w=300.0,
        memory_bytes=2**34,
        client=tuple(
            ClientLoad(
                cell_id=block.order[0],
                seconds=10.0,
                cpu_s=0.5,
                num_events=500,
                mean_lag_s=0.00001,
                counters=counters_of(block.requests),
                num_accepted_at=accepted_at(block.requests, k),
            )
            for block in blocks
        ),
        sees_others=not sweep.is_attached,
        log=None if sweep.is_attached else f"servers/{cycle}-{k}-{leg}.log",
    )
    return server, blocks


def counters_of(requests: Sequence[RequestRecord]) -> dict[str, float]:
    """The server's counts while it serves the requests."""
    counted = {
        "num_tokens": float(sum(request.num_output_tokens for request in requests)),
        "num_requests": float(len(requests)),
    }
    counts = [request.counts for request in requests if request.counts]
    if counts:
        counted |= {
            "num_rounds": float(sum(count.num_rounds for count in counts)),
            "num_draft_tokens": float(sum(count.num_drafted or 0 for count in counts)),
            "num_accepted": float(sum(count.num_accepted + count.num_overshot for count in counts)),
        }
    return counted


def accepted_at(requests: Sequence[RequestRecord], k: int) -> tuple[float, ...]:
    """Drafts that a server counts as accepted at position 1 .. K; those past an end count at 1."""
    counts = [request.counts for request in requests if request.counts]
    histogram = [sum((count.num_by_accepted or ())[i] for count in counts) for i in range(k + 1)]
    at = [float(sum(histogram[i:])) for i in range(1, k + 1)]
    return (at[0] + sum(count.num_overshot for count in counts), *at[1:]) if counts else ()


def _block(
    sweep: Sweep, purpose: BlockPurpose, key: CellKey, cycle: int, leg: int, name: str
) -> BlockRecord:
    rows, repeat = key.condition.concurrency, cycle * SESSIONS_PER_K + leg
    seed = f"{purpose}|{key.draft.k}|{cycle}|{leg}{sweep.variant or ''}"
    pace = random.Random(seed).gauss(0, sweep.wobble)
    free = [0.0] * rows
    requests = []
    for i in range(sweep.num_prompts * (1 if rows == 1 else 2)):
        request = _request(sweep, key, i % sweep.num_prompts, pace)
        began_s = heapq.heappop(free)
        heapq.heappush(free, began_s + request.total_s)
        times = 1 if rows == 1 else 2
        requests.append(
            replace(
                request,
                repeat=repeat * times + i // sweep.num_prompts,
                arrived_s=None if rows == 1 else began_s,
            )
        )
    whole = PassRecord(cell_id=key.id, seconds=max(free), rounds=None)
    return BlockRecord(
        block_id=f"{name}|{key.id}",
        workload="code",
        prompt_id=ALL_PROMPTS,
        repeat=repeat,
        purpose=purpose,
        order=(key.id,),
        started_at="2026-11-22T01:02:04+00:00",
        requests=tuple(requests),
        passes=() if rows == 1 else (whole,),
        session=name,
        cycle=cycle,
    )


def _request(sweep: Sweep, key: CellKey, prompt: int, pace: float) -> RequestRecord:
    """Requests of 25 tokens; the last round of odd prompts accepts one draft past the end."""
    k, rows = key.draft.k, key.condition.concurrency
    easier = sweep.differing * (prompt - (sweep.num_prompts - 1) / 2) if k else 0.0
    shared = 1 + 0.1 * (rows - 1) * (k + 1) / 2  # speculation pays less the more there are
    decode_s = SECONDS[k] * sweep.slower.get(k, 1.0) * shared * math.exp(pace - easier)
    return made_request(
        key.id,
        f"code-{prompt}",
        None,
        output_ids=tuple(range(prompt, prompt + NUM_TOKENS)),
        num_prompt_tokens=40,
        prefill_s=None,
        ttft_s=TTFT_S,
        decode_s=decode_s,
        text=f"answer {prompt}",
        counts=_counts(k, num_overshot=prompt % 2) if k else None,
    )


def _counts(k: int, num_overshot: int) -> RequestCounts:
    accepted = ACCEPTED[k]
    return RequestCounts(
        num_rounds=sum(accepted),
        num_drafted=k * sum(accepted),
        num_accepted=sum(i * n for i, n in enumerate(accepted)),
        num_drafting=sum(accepted),
        num_by_accepted=accepted,
        num_overshot=num_overshot,
    )


def cell_of(stored: StoredRun, k: int, rows: int = 1) -> CellData:
    return next(cell for cell in aggregate_run(stored) if cell.key == key_of(k, rows))
