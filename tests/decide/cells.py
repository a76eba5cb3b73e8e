"""Measured cells with a chosen speed: 6 prompts of 13 tokens, or 6 passes over 2 rows."""

from dataclasses import replace
from typing import Any

from specbench.metrics.cell import CellData, Pass
from specbench.records import CellKey, PassRecord, RequestRecord, RoundLog, RoundTimeline
from tests.cell_keys import BASE_KEY, KEY, with_axes
from tests.made_records import made_request

NUM_UNITS = 6
NUM_TOKENS = 13  # the first is prefill's

BASE = BASE_KEY


def draft(k: int, **changes: Any) -> CellKey:
    """The key of demo/draft at K."""
    return with_axes(KEY, num_speculative_tokens=k, **changes)


def request(key: CellKey, prompt: str, decode_s: float, repeat: int) -> RequestRecord:
    """12 tokens in 12 rounds of K = 0, or in 6 rounds that keep one draft each."""
    num_rounds = 12 if key.draft.k == 0 else 6
    accepted = 0 if key.draft.k == 0 else 1
    rounds = RoundLog(
        num_drafted=(accepted,) * num_rounds,
        num_accepted=(accepted,) * num_rounds,
        num_emitted=(accepted + 1,) * num_rounds,
        round_s=(decode_s / num_rounds,) * num_rounds,
    )
    seconds = {"decode_s": decode_s, "cpu_s": 2 * decode_s, "arrived_s": 0.0, "queue_s": 0.0}
    return made_request(key.id, prompt, rounds, repeat=repeat, **seconds)


def cell(key: CellKey, seconds: list[float], *, repeat: int = 0) -> CellData:
    """One request per prompt, with these decode seconds."""
    return CellData(
        key=key,
        requests=tuple(request(key, f"p{i}", s, repeat) for i, s in enumerate(seconds)),
    )


def stream(key: CellKey, seconds: list[float], ks: tuple[int, ...] = ()) -> CellData:
    """One pass of two requests per entry; both rows are busy for these seconds."""
    passes = []
    for i, decode_s in enumerate(seconds):
        requests = tuple(request(key, prompt, decode_s, repeat=i) for prompt in ("a", "b"))
        log = requests[0].rounds
        assert log is not None
        n = len(log)
        timeline = RoundTimeline(
            at_s=tuple(0.1 + decode_s * r / n for r in range(n)),
            seconds=log.round_s,
            num_speculative_tokens=ks or (key.draft.k,) * n,
            num_live=(2,) * n,
            num_rows=(2,) * n,
            num_emitted=tuple(2 * e for e in log.num_emitted),
        )
        record = PassRecord(cell_id=key.id, seconds=0.1 + decode_s, rounds=timeline)
        passes.append(Pass(f"pass-{i}", record, requests))
    return CellData(
        key=key,
        requests=tuple(request for p in passes for request in p.requests),
        passes=tuple(passes),
    )


def with_timeline(cell: CellData, **columns: tuple[int, ...]) -> CellData:
    """The cell with columns of its first pass's time line changed."""
    first = cell.passes[0]
    assert first.record.rounds is not None
    rounds = replace(first.record.rounds, **columns)
    changed = first._replace(record=replace(first.record, rounds=rounds))
    return replace(cell, passes=(changed, *cell.passes[1:]))
