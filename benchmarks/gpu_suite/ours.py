"""Our engine alone over the 8B-shaped pair: sampled text, and K chosen round by round."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.gpu_suite.machine import Json, Machine
from benchmarks.gpu_suite.side_by_side import decode_s
from benchmarks.gpu_suite.stage import GREEDY, Stage
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.records import Request, Result, Sampling

K = 4
FIXED = (0, 2, 4, 8)
NUM_REQUESTS = 3
WARM = {
    "greedy": GREEDY,
    "temperature 1": Sampling(temperature=1.0),
    "temperature 1, top-p 0.9": Sampling(temperature=1.0, top_p=0.9),
}


class _Way(NamedTuple):
    """How requests are decoded."""

    work: Work
    requests: Sequence[Request]


def sampled(stage: Stage, machine: Machine) -> Json:
    """Greedy, at temperature 1 and with top-p, at K = 0 and 4: what drawing adds to a round."""
    pair = stage.pair(machine)
    engine, name = pair.builtin(machine), pair.drafter.name
    ways = {
        f"{warmth}, K={k}": _Way(
            _work(engine, name, k), pair.requests(NUM_REQUESTS, machine, sampling=sampling)
        )
        for warmth, sampling in WARM.items()
        for k in (0, K)
    }
    return _in_turns(engine, ways, machine)


def by_choosing(stage: Stage, machine: Machine) -> Json:
    """`-k auto` beside fixed K."""
    pair = stage.pair(machine)
    engine, name = pair.builtin(machine), pair.drafter.name
    requests = pair.requests(NUM_REQUESTS, machine, new_tokens=192)
    ways = {f"K={k}": _Way(_work(engine, name, k), requests) for k in FIXED}
    auto = Work(drafter=name, method="draft_model", k=max(FIXED), adaptive=True, workload="made up")
    found = _in_turns(engine, {**ways, "auto": _Way(auto, requests)}, machine)
    rates = {one["name"]: one["tokens_per_s"] for one in found["ways"]}
    fixed = [rate for way, rate in rates.items() if way != "auto"]
    over_best = rates["auto"] / max(fixed) if "auto" in rates else None
    return {**found, "auto_over_best_fixed": over_best}


def _work(engine: BuiltinEngine, drafter: str, k: int) -> Work:
    return Work(drafter=drafter, method="draft_model", k=k) if k else engine.baseline


def _in_turns(engine: BuiltinEngine, ways: Mapping[str, _Way], machine: Machine) -> Json:
    """Every way warm first, then request by request all of them."""
    results: dict[str, list[Result]] = {}
    for name, way in ways.items():
        if results and not machine.has_time():
            break
        engine.generate(way.requests[0], way.work)
        results[name] = []
    for turn in range(NUM_REQUESTS):
        if turn and not machine.has_time():
            break
        for name, own in results.items():
            own.append(engine.generate(ways[name].requests[turn], ways[name].work))
    found = [_figures(name, own) for name, own in results.items()]
    columns = ["", "tokens/s", "round, us", "tokens a round"]
    rows = [
        [one["name"], one["tokens_per_s"], one["round_s"] * 1e6, one["tokens_per_round"]]
        for one in found
    ]
    return {
        "ways": found,
        "left_out_for_time": [name for name in ways if name not in results],
        "table": {"columns": columns, "rows": rows},
    }


def _figures(name: str, results: Sequence[Result]) -> Json:
    logs = [result.rounds for result in results if result.rounds is not None]
    rounds = [seconds for log in logs for seconds in log.round_s]
    emitted = sum(sum(log.num_emitted) for log in logs)
    tokens = sum(len(result.output_ids) - 1 for result in results)
    return {
        "name": name,
        "graph": results[0].graph,
        "num_requests": len(results),
        "tokens_per_s": tokens / sum(map(decode_s, results)),
        "round_s": median(rounds),
        "tokens_per_round": emitted / len(rounds),
    }
