"""Forecast mean acceptance lengths against measured ones on the embedded pair: counts, no seconds.

    python -m benchmarks.forecast_lengths [--repeats N] [--prompts N] [--drafters D..] [--out FILE]

What rounds at K emitted is a sample of the target's own distribution, so that very text is traced,
and K is replayed over it: no two texts are compared. What is left is luck, whose standard error
comes from the texts, independent given their tokens. Where nothing is drawn counts are equal.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.run import write
from specbench.bench.blocks import request_seed
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Load, Work
from specbench.engines.model_pool import ModelPool
from specbench.forecast.forecast import replay_one, serves
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import DrafterSpec, Pairing
from specbench.inputs.workloads import Workload, load_workload
from specbench.probes.environment import describe_environment
from specbench.probes.gpu import Probe
from specbench.records import Message, Request, RoundLog, Sampling
from specbench.shipped import shipped
from specbench.stats.intervals import log_ratio
from specbench.stats.rounds import RoundCounts, mean_length
from specbench.tracing.trace import TargetText, trace_conversation

DRAFTERS = ("draft", "ngram", "medusa", "eagle")
# How often a prompt is decoded where drafts are drawn: about as many tokens of every workload.
REPEATS = {"chat": 3, "code": 2, "creative": 2, "qa": 8, "edit": 5}
MOST, ROWS, FEW = 8, 16, 10  # FEW prompts where nothing is drawn: their counts must be equal
BOUNDS = {"draft_model": 0.02, "ngram": 0.02, "medusa": 0.05, "eagle": 0.05}  # above temperature 0
DRAWN = {"draft_model": 1, "eagle": 3}  # drawn drafts; a wider bound needs a third of them


class Counts(NamedTuple):
    """All rounds of one text, as measured or as replayed."""

    rounds: float
    drafted: float
    accepted: float
    emitted: float

    @classmethod
    def of_log(cls, log: RoundLog) -> "Counts":
        return cls(len(log), *map(sum, (log.num_drafted, log.num_accepted, log.num_emitted)))

    @classmethod
    def of_replay(cls, one: RoundCounts) -> "Counts":
        return cls(one.num_rounds, one.num_drafted, one.num_accepted, one.num_emitted)


class Compared(NamedTuple):
    """One text that rounds at one K emitted."""

    request: int  # is decoded at every K, with the same noise
    measured: Counts
    replayed: Counts


class Judged(NamedTuple):
    """Replayed / measured mean acceptance length - 1, pooled over texts."""

    error: float
    standard_error: float | None
    is_beyond: bool  # the bound
    is_off: bool  # beyond it by more than two standard errors


def main(arguments: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else list(arguments)
    asked = _parse(words)
    torch.set_num_threads(1)
    began_s = time.perf_counter()
    document = {**_provenance(asked, words), **results(asked)}
    write({**document, "seconds": time.perf_counter() - began_s}, asked.out)
    print("\n".join(table(document)))


def results(asked: argparse.Namespace) -> dict[str, Any]:
    """A row a drafter, workload and temperature, with a point a K."""
    names = [f"demo/{drafter}" for drafter in asked.drafters]
    pairings = load_pairings(shipped("pairings.yaml")).select(names)
    target = pairings[0].target
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu"), "float32"))
    models = [engine.identity, *(engine.add_drafter(p.drafter) for p in pairings)]
    workloads = [load_workload(name, folder=target.workloads) for name in asked.workloads]
    rows = [
        _row(pairing, texts, compare(engine, pairing.drafter, texts, asked.most))
        for workload in workloads
        for pairing, texts in _questions(engine, workload, pairings, asked)
    ]
    return {
        "models": [asdict(model) for model in models if model is not None],
        "workload_sha256": {workload.name: workload.sha256 for workload in workloads},
        "rows": rows,
    }


def _questions(
    engine: BuiltinEngine, workload: Workload, pairings: Sequence[Pairing], asked: Any
) -> Iterator[tuple[Pairing, list[TargetText]]]:
    """What each drafter is asked at each temperature: texts without an answer yet."""
    turns = list(_turns(engine, workload, asked.prompts))
    few = {prompt.id for prompt in workload.take(FEW, seed=0)}
    for temperature in asked.temperatures:
        for pairing in pairings:
            print(workload.name, f"T={temperature:g}", pairing.name, file=sys.stderr, flush=True)
            part = DRAWN.get(pairing.drafter.method) if temperature else None
            repeats = -(-REPEATS[workload.path.stem] * asked.repeats // part) if part else 1
            texts = [
                replace(
                    turn,
                    sampling=Sampling(temperature=temperature),
                    repeat=repeat,
                    seed=request_seed(0, turn.prompt_id, repeat, turn.turn),
                )
                for repeat in range(repeats)
                for turn in turns
                if part or turn.prompt_id in few
            ]
            yield pairing, texts


def _turns(
    engine: BuiltinEngine, workload: Workload, num_prompts: int | None
) -> Iterator[TargetText]:
    """Every turn of a workload's prompts; later ones follow the target's greedy answers."""
    most = workload.max_new_tokens
    assert most is not None, "the embedded workloads have a card"
    for prompt in workload.take(num_prompts or len(workload.prompts), seed=0):
        history: list[Message] = []
        for turn, messages in enumerate(prompt.turns):
            history += messages
            ids = engine.tokenizer.prompt_ids(history, prompt.tools, prompt.template_args)
            text = TargetText(
                workload=workload.name,
                prompt_id=prompt.id,
                turn=turn,
                prompt_ids=ids,
                output_ids=(),
                max_new_tokens=most,
                sampling=Sampling(),
                seed=0,
            )
            yield text
            if turn + 1 < len(prompt.turns):
                answer = engine.generate(_request(text), engine.baseline).output_ids
                history.append(Message(role="assistant", content=engine.tokenizer.text(answer)))


def compare(
    engine: BuiltinEngine, drafter: DrafterSpec, asked: Sequence[TargetText], most: int
) -> dict[int, list[Compared]]:
    """By K: the rounds of every text beside those replayed over it."""
    ks = range(1, min(most, engine.record.max_k.get(drafter.name, most)) + 1)
    requests = [_request(text) for text in asked]
    # By request and text: the rounds of every K that emitted it, so that it is traced once.
    emitted: dict[tuple[int, tuple[int, ...]], dict[int, RoundLog]] = defaultdict(dict)
    for k in ks:
        work = Work(drafter=drafter.name, method=drafter.method, k=k)
        served = engine.serve(requests, work, Load(concurrency=min(ROWS, len(requests))))
        for i, result in enumerate(served.results):
            if result.rounds:  # none where the first token was the last
                emitted[i, result.output_ids][k] = result.rounds
    found: dict[int, list[Compared]] = {k: [] for k in ks}
    for (i, output_ids), logs in emitted.items():
        text = replace(asked[i], output_ids=output_ids)
        traces = trace_conversation(engine, drafter.name, drafter.method, [text], logs)
        for k, log in logs.items():
            (trace,) = (trace for trace in traces if serves(trace, k))
            replayed = Counts.of_replay(replay_one(trace, k))
            found[k].append(Compared(i, Counts.of_log(log), replayed))
    return found


def _request(text: TargetText) -> Request:
    return Request(
        prompt_ids=text.prompt_ids,
        max_new_tokens=text.max_new_tokens,
        sampling=text.sampling,
        seed=text.seed,
    )


def _row(
    pairing: Pairing, texts: Sequence[TargetText], by_k: Mapping[int, Sequence[Compared]]
) -> dict[str, Any]:
    method, temperature = pairing.drafter.method, texts[0].sampling.temperature
    bound = BOUNDS[method] if temperature else 0.0
    return {
        "pairing": pairing.name,
        "method": method,
        "workload": texts[0].workload,
        "temperature": temperature,
        "bound": bound,
        "points": [_point(k, compared, bound) for k, compared in by_k.items()],
        # What all K have in common shows best here.
        "pooled": judge([one for compared in by_k.values() for one in compared], bound)._asdict(),
    }


def _point(k: int, compared: Sequence[Compared], bound: float) -> dict[str, Any]:
    measured, replayed = (
        mean_length(sum(one.accepted for one in side), sum(one.rounds for one in side))
        for side in ([one.measured for one in compared], [one.replayed for one in compared])
    )
    return {
        "num_speculative_tokens": k,
        "measured": measured,
        "replayed": replayed,
        **judge(compared, bound)._asdict(),
        "num_texts": len(compared),
        "num_equal_texts": sum(one.measured == one.replayed for one in compared),
        "num_rounds": sum(one.measured.rounds for one in compared),
    }


def judge(compared: Sequence[Compared], bound: float) -> Judged:
    """Requests are the unit, as texts of one at several K share their noise.

    A bound of 0 asks for equal counts, text by text.
    """
    sums: dict[int, Any] = defaultdict(lambda: np.zeros(4))
    for one in compared:
        (rounds, _, kept, _), (replayed_rounds, _, replayed_kept, _) = one[1:]
        sums[one.request] += (kept, rounds, replayed_kept, replayed_rounds)
    kept, rounds, replayed_kept, replayed_rounds = np.array(list(sums.values())).T
    change = log_ratio([replayed_kept + replayed_rounds, rounds], [replayed_rounds, kept + rounds])
    if all(one.measured == one.replayed for one in compared):
        return Judged(0.0, change.standard_error, False, False)
    error = float(np.expm1(change.log))
    is_off = not bound or abs(error) - 2 * (change.standard_error or 0.0) > bound
    return Judged(error, change.standard_error, not bound or abs(error) > bound, is_off)


def table(document: Mapping[str, Any]) -> list[str]:
    """A line a drafter, workload and temperature, at the K where the error is worst."""
    lines = ["replayed / measured AL - 1 with its standard error: at the worst K, pooled over all"]
    rows = sorted(document["rows"], key=lambda row: (row["temperature"], row["pairing"]))
    for row in rows:
        points, bound = row["points"], row["bound"]
        counted = ("num_texts", "num_equal_texts", "num_rounds")
        texts, equal, rounds = (sum(point[name] for point in points) for name in counted)
        worst = max(points, key=lambda point: abs(point["error"]))
        off = [f"K={point['num_speculative_tokens']}" for point in points if point["is_off"]]
        verdict = f"OFF {bound:.0%} at {', '.join(off)}" if off else f"none off {bound:.0%}"
        lines.append(
            f"T={row['temperature']:g} {row['pairing']:<12} {row['workload']:<9}"
            f"K={worst['num_speculative_tokens']} AL {worst['measured']:.2f} {_error(worst)}  "
            f"pooled {_error(row['pooled'])}  {texts} texts, {equal} equal, {rounds} rounds  "
            f"{verdict}"
        )
    verdicts = [(point["is_beyond"], point["is_off"]) for row in rows for point in row["points"]]
    num_beyond, num_off = map(sum, zip(*verdicts, strict=True))
    lines.append(
        f"{len(verdicts)} points: {len(verdicts) - num_beyond} within their bounds, {num_beyond} "
        f"beyond, of these {num_off} by more than two standard errors"
    )
    return lines


def _error(one: Mapping[str, Any]) -> str:
    error = f"{one['error']:+.2%}"
    return error if one["standard_error"] is None else f"{error} +- {one['standard_error']:.2%}"


def _provenance(asked: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """What must be known to repeat it; of the command not the file that it writes."""
    at = words.index("--out") if "--out" in words else len(words)
    command = ("benchmarks.forecast_lengths", *words[:at], *words[at + 2 :])
    environment = describe_environment("cpu", 1, command, Probe("counts alone"))
    settings = {name: value for name, value in vars(asked).items() if name != "out"}
    settings |= {"dtype": "float32", "rows": ROWS, "seed": 0}
    return {"environment": asdict(environment), "settings": settings}


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.forecast_lengths", description=__doc__)
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=DRAFTERS)
    parser.add_argument("--workloads", nargs="+", choices=REPEATS, default=tuple(REPEATS))
    parser.add_argument("--temperatures", type=float, nargs="+", default=(0.0, 1.0))
    parser.add_argument("--most", type=int, default=MOST, help="the deepest K")
    parser.add_argument("--prompts", type=int, help="a workload; else all of them")
    parser.add_argument("--repeats", type=int, default=1, help="times as many drawn texts")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/forecast_lengths.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
