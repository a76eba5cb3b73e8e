"""Derived figures stay in their ranges over random records of correct servers and decoders."""

import inspect
import math
import random
from dataclasses import replace

import pytest

from specbench.metrics.cell import CellData
from specbench.metrics.registry import all_metrics, is_between
from specbench.records import ClientLoad, RequestCounts, RequestRecord, RoundLog
from tests.cell_keys import BASE_KEY, KEY, with_axes
from tests.made_records import made_request
from tests.served_sessions import cell_of, served_sweep

NUM_CELLS = 1_000
SERVER = cell_of(served_sweep(), 4).servers[0]


def random_cell(rng: random.Random, kind: str) -> CellData:
    """A cell at K and its baseline. `kind` is the source of counts: rounds, requests, counters or
    none.

    A round takes longer than a step of K = 0, drafts at most K tokens and may draft none.
    """
    k, step_s = rng.randint(1, 8), 10 ** rng.uniform(-4, -1)
    key = with_axes(KEY, num_speculative_tokens=k)
    lengths = [(f"p{i}", rng.randint(2, 60)) for i in range(rng.randint(1, 8))]
    rounds = [_rounds(rng, num_tokens - 1, k, step_s) for _, num_tokens in lengths]
    spec, base = [], []
    for (prompt, num_tokens), (log, overshot) in zip(lengths, rounds, strict=True):
        ids = tuple(range(num_tokens))
        # Several tokens may come in the first event; only the others are timed.
        num_first = rng.randint(1, num_tokens)
        share = (num_tokens - num_first) / (num_tokens - 1)
        is_logged = kind == "rounds"
        spec.append(
            made_request(
                key.id,
                prompt,
                log if is_logged else None,
                output_ids=ids,
                ttft_s=0.1,
                decode_s=sum(log.round_s) * (1.0 if is_logged else share),
                num_first=1 if is_logged else num_first,
                counts=_counts(log, overshot, k) if kind == "requests" else None,
            )
        )
        ones = (1,) * (num_tokens - 1)
        steps = RoundLog(
            num_drafted=(0,) * len(ones),
            num_accepted=(0,) * len(ones),
            num_emitted=ones,
            round_s=(step_s,) * len(ones),
        )
        seconds = step_s * (num_tokens - 1)
        base.append(
            made_request(
                BASE_KEY.id,
                prompt,
                steps if is_logged else None,
                output_ids=ids,
                ttft_s=0.1,
                decode_s=seconds,
            )
        )
    load = _load(key.id, rounds, spec, k) if kind == "counters" else None
    servers = (replace(SERVER, client=(load,) if load else ()),)
    is_served = kind != "rounds"
    slo = {"ttft_s": 0.15, "tpot_s": step_s * rng.uniform(0.2, 1.2)}
    return CellData(
        key=key,
        slo=slo if rng.random() < 0.8 else {},
        requests=tuple(spec),
        baseline=tuple(base),
        servers=servers if is_served else (),
        baseline_servers=servers if is_served else (),
    )


def _rounds(rng: random.Random, later: int, k: int, step_s: float) -> tuple[RoundLog, int]:
    """Rounds that emit `later` tokens, and the tokens that the last one accepts past the end."""
    drafted, accepted, emitted, seconds = [], [], [], []
    overshot = 0
    while (left := later - sum(emitted)) > 0:
        d = rng.choice((0, k, rng.randint(0, k)))
        a = rng.randint(0, d)
        if a + 1 > left:  # the text ends inside this round's drafts
            overshot, a = a - (left - 1), left - 1
        drafted.append(d)
        accepted.append(a)
        emitted.append(a + 1)
        seconds.append(step_s * (1 + 0.2 * d + rng.random()))
    log = RoundLog(
        num_drafted=tuple(drafted),
        num_accepted=tuple(accepted),
        num_emitted=tuple(emitted),
        round_s=tuple(seconds),
    )
    return log, overshot


def _counts(log: RoundLog, overshot: int, k: int) -> RequestCounts:
    drafting = [d > 0 for d in log.num_drafted]
    return RequestCounts(
        num_rounds=len(log.round_s),
        num_drafted=sum(log.num_drafted),
        num_accepted=sum(log.num_accepted),
        num_drafting=sum(drafting),
        num_rejecting=sum(a < d for a, d in zip(log.num_accepted, log.num_drafted, strict=True)),
        num_by_accepted=tuple(log.num_accepted.count(i) for i in range(k + 1)),
        num_overshot=overshot,
    )


def _load(
    cell_id: str, rounds: list[tuple[RoundLog, int]], spec: list[RequestRecord], k: int
) -> ClientLoad:
    """The total counts of a server: rounds that drafted, and drafts accepted past the ends."""
    logs = [log for log, _ in rounds]
    whole = [
        a + (overshot if i == len(log.round_s) - 1 else 0)
        for log, overshot in rounds
        for i, a in enumerate(log.num_accepted)
    ]
    return ClientLoad(
        cell_id=cell_id,
        seconds=1.0,
        cpu_s=0.1,
        num_events=10,
        mean_lag_s=0.0,
        counters={
            "num_tokens": float(sum(r.num_output_tokens for r in spec)),
            "num_requests": float(len(spec)),
            "num_rounds": float(sum(d > 0 for log in logs for d in log.num_drafted)),
            "num_draft_tokens": float(sum(sum(log.num_drafted) for log in logs)),
            "num_accepted": float(sum(whole)),
        },
        num_accepted_at=tuple(float(sum(a >= i for a in whole)) for i in range(1, k + 1)),
    )


@pytest.mark.parametrize("kind", ["rounds", "requests", "counters", "nobody"])
def test_every_metric_of_valid_records_is_in_its_range(kind: str) -> None:
    rng = random.Random(f"ranges of {kind}")
    bounded = {n: m for n, m in all_metrics().items() if (m.low, m.high) != (-math.inf, math.inf)}
    seen: set[str] = set()
    for _ in range(NUM_CELLS // 4):
        cell = random_cell(rng, kind)
        for name, known in bounded.items():
            value = inspect.unwrap(known.function)(cell)  # without its range
            if value is not None:
                seen.add(name)
                assert is_between(value, known.low, known.high), (name, value)
        length = all_metrics()["mean_acceptance_length"].function(cell)
        assert length is None or length <= cell.k + 1
    assert {"break_even_length", "mean_acceptance_length", "round_s"} <= seen or kind == "nobody"
    if kind == "nobody":
        assert not {"break_even_length", "mean_acceptance_length", "round_s"} & seen


def test_a_metric_outside_its_range_is_absent() -> None:
    """A round that would take less than a step of K = 0, which it contains."""
    cell = random_cell(random.Random(0), "requests")
    fast = tuple(replace(r, decode_s=r.decode_s * 0.01) for r in cell.requests)
    known = all_metrics()["break_even_length"]
    assert known.function(cell) is not None
    assert known.function(replace(cell, requests=fast)) is None
