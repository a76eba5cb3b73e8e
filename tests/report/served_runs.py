"""A small stored run with concurrent requests, an adaptive K, contexts and another engine."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specbench.records import (
    ALL_PROMPTS,
    BlockRecord,
    CellKey,
    CellPlan,
    EngineRecord,
    PassRecord,
    RequestRecord,
    RoundTimeline,
)
from specbench.runs import StoredRun
from tests.cell_keys import with_axes
from tests.decide import cells
from tests.made_records import made_block
from tests.report.stored_runs import Wish, stored_run
from tests.settings.flat_settings import changed

ROWS = (1, 2, 4)
CONTEXTS = (512, 4096)
# What speculation loses at these lengths: K = 4 is 1.25x as fast, then 0.8x.
LOST_AT = {16_384: 1.6, 65_536: 2.5}
NUM_BLOCKS = 6
WORKLOADS = ("code", "creative")
GENERATE = with_axes(cells.BASE, engine="transformers", method="generate")
STATIC = with_axes(GENERATE, method="generate_static")
ASSISTED = with_axes(cells.draft(4), engine="transformers", method="assisted")
BY_DEFAULT = with_axes(ASSISTED, method="assisted_default", num_speculative_tokens=20)
PEERS = (GENERATE, STATIC, ASSISTED, BY_DEFAULT)
OWN = (cells.BASE, cells.draft(2), cells.draft(4), cells.draft(8, adaptive=True))
ENGINES = (
    EngineRecord(target="demo", engine="builtin", forward="fused", graph="off"),
    EngineRecord(target="demo", engine="transformers", notes=("draft: 20 tokens at first",)),
)
# Seconds of 12 tokens in one row; speculation pays less the more rows are in flight.
SECONDS = {0: 1.2, 2: 0.8, 4: 0.6, 8: 0.65, 20: 1.0}
LOST_PER_DOUBLING = 1.5
ADAPTIVE_KS = (8, 8, 4, 4, 2, 2)


def served_run() -> StoredRun:
    """Concurrency 1, 2 and 4, the last without a gain; both engines at concurrency 1."""
    keys = list(_keys())
    plain = stored_run(Wish(ks=(0, 2), drafters=("draft",), workloads=WORKLOADS, num_prompts=1))
    settings = changed(plain.run.settings, adaptive=True, concurrency=ROWS)
    plans = tuple(CellPlan(key=key, num_prompts=6, num_repeats=1) for key in keys)
    return replace(
        plain,
        run=replace(plain.run, settings=settings, cells=plans),
        blocks=tuple(_blocks(keys)),
        forwards=(),
        engines=ENGINES,
    )


def context_run(contexts: Sequence[int] = CONTEXTS) -> StoredRun:
    """K = 0 and 4 over prompts of several lengths."""
    keys = [
        with_axes(key, context=context)
        for context in contexts
        for key in (cells.BASE, cells.draft(4))
    ]
    plain = stored_run(Wish(ks=(0, 2), drafters=("draft",), workloads=("code",), num_prompts=1))
    plans = tuple(CellPlan(key=key, num_prompts=6, num_repeats=1) for key in keys)
    return replace(
        plain,
        run=replace(plain.run, cells=plans),
        blocks=tuple(_blocks(keys)),
        forwards=(),
    )


def _keys() -> Iterator[CellKey]:
    for workload in WORKLOADS:
        for rows in ROWS:
            for key in (*OWN, *PEERS) if rows == 1 else OWN:
                yield with_axes(key, workload=workload, concurrency=rows)


def _blocks(keys: list[CellKey]) -> Iterator[BlockRecord]:
    groups: dict[tuple[object, ...], list[CellKey]] = {}
    for key in keys:
        groups.setdefault(
            (key.condition.workload, key.condition.concurrency, key.condition.context), []
        ).append(key)
    for place, group in groups.items():
        rows = group[0].condition.concurrency
        for i in range(NUM_BLOCKS):
            requests = [request for key in group for request in _requests(key, i)]
            passes = [_pass(key, i) for key in group if rows > 1 or key.draft.is_adaptive]
            yield made_block(
                f"p{i}" if rows == 1 else ALL_PROMPTS,
                *requests,
                repeat=0 if rows == 1 else i,
                block_id=f"{place} {i}",
                workload=group[0].condition.workload,
                passes=tuple(passes),
            )


def _requests(key: CellKey, i: int) -> list[RequestRecord]:
    if key.condition.concurrency == 1:
        return [cells.request(key, f"p{i}", _seconds(key, i), repeat=0)]
    names = [f"r{row}" for row in range(key.condition.concurrency)]
    return [cells.request(key, name, _seconds(key, i), repeat=i) for name in names]


def _pass(key: CellKey, i: int) -> PassRecord:
    """All rows live in every round."""
    rows, seconds = key.condition.concurrency, _seconds(key, i)
    log = _requests(key, i)[0].rounds
    assert log is not None
    n = len(log)
    ks = ADAPTIVE_KS if key.draft.is_adaptive else (key.draft.k,) * n
    timeline = RoundTimeline(
        at_s=tuple(0.1 + seconds * r / n for r in range(n)),
        seconds=log.round_s,
        num_speculative_tokens=ks,
        num_live=(rows,) * n,
        num_rows=(rows,) * n,
        num_emitted=tuple(rows * emitted for emitted in log.num_emitted),
    )
    return PassRecord(cell_id=key.id, seconds=0.1 + seconds, rounds=timeline, kv_bytes=rows * 2**20)


def _seconds(key: CellKey, i: int) -> float:
    """Seconds of one request, a little different for every prompt and pass."""
    k = key.draft.k
    lost = LOST_PER_DOUBLING ** (key.condition.concurrency.bit_length() - 1) if k else 1.0
    lost *= LOST_AT.get(key.condition.context or 0, 1.0) if k else 1.0
    slower = 2.0 if key.condition.engine == "transformers" else 1.0
    return SECONDS[k] * lost * slower * (1 + 0.01 * ((i + k) % 3))
