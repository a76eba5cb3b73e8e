"""Engines side by side over the same requests, in turns."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import NamedTuple

from benchmarks.gpu_suite.machine import Json, Machine, in_a_line
from specbench.engines.engine import Engine, Work
from specbench.records import Interval, Request, Result
from specbench.stats.intervals import interval, speedup_ratio

OWN = "builtin"


class Candidate(NamedTuple):
    """One engine at one piece of work."""

    name: str
    engine: Engine
    work: Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a candidate did; seconds are from its first token to its last."""

    name: str
    graph: str | None  # how much of a round one graph holds, where the engine tells
    num_requests: int
    tokens_per_s: float | None
    request_s: float  # median of whole requests
    acceptance_rate: float | None
    warm_up_s: float
    equal_texts: float  # share of texts equal to those of the first candidate


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """The other's seconds / ours, over the same requests."""

    own: str
    peer: str
    decode: Interval | None  # None where an answer came whole with its first token
    end_to_end: Interval


def compare_engines(
    candidates: Sequence[Candidate], requests: Sequence[Request], machine: Machine
) -> Json:
    """Every candidate warms up first, then request by request all of them, the first one turning.

    Who drafts is compared with who drafts, and who does not with who does not. A candidate that
    this machine refuses is left out with the reason, unless all are.
    """
    warm_up_s: dict[str, float] = {}
    refused: dict[str, str] = {}
    for candidate in candidates:
        if warm_up_s and not machine.has_time():
            break
        began_s = time.perf_counter()
        try:
            candidate.engine.generate(requests[0], candidate.work)
        except Exception as error:
            refused[candidate.name] = in_a_line(error)
            if len(refused) == len(candidates):
                raise
            continue
        warm_up_s[candidate.name] = time.perf_counter() - began_s
    runners = [candidate for candidate in candidates if candidate.name in warm_up_s]
    results: dict[str, list[Result]] = {candidate.name: [] for candidate in runners}
    for turn, request in enumerate(requests):
        if turn and not machine.has_time():
            break
        first = turn % len(runners)
        for candidate in (*runners[first:], *runners[:first]):
            results[candidate.name].append(candidate.engine.generate(request, candidate.work))
    texts = [result.output_ids for result in results[runners[0].name]]
    return {
        "finishes": [
            asdict(_outcome(candidate, results[candidate.name], warm_up_s[candidate.name], texts))
            for candidate in runners
        ],
        "ratios": [
            asdict(_ratio(own, peer, results))
            for own in runners
            for peer in runners
            if own.engine.name == OWN != peer.engine.name and (own.work.k > 0) == (peer.work.k > 0)
        ],
        "refused": refused,
        "left_out_for_time": [
            candidate.name
            for candidate in candidates
            if candidate not in runners and candidate.name not in refused
        ]
        + [f"request {number + 1}" for number in range(len(texts), len(requests))],
    }


def _outcome(
    candidate: Candidate, results: Sequence[Result], warm_up_s: float, texts: Sequence[object]
) -> Outcome:
    seconds = sum(map(decode_s, results))
    tokens = sum(len(result.output_ids) - 1 for result in results)
    logs = [result.rounds for result in results if result.rounds is not None]
    drafted = sum(sum(log.num_drafted) for log in logs)
    equal = sum(result.output_ids == text for result, text in zip(results, texts, strict=True))
    return Outcome(
        name=candidate.name,
        graph=candidate.engine.record.graph,
        num_requests=len(results),
        tokens_per_s=tokens / seconds if seconds else None,
        request_s=median(result.total_s for result in results),
        acceptance_rate=sum(sum(log.num_accepted) for log in logs) / drafted if drafted else None,
        warm_up_s=warm_up_s,
        equal_texts=equal / len(results),
    )


def _ratio(own: Candidate, peer: Candidate, results: dict[str, list[Result]]) -> Ratio:
    ours, theirs = results[own.name], results[peer.name]
    decode = [[decode_s(result) for result in side] for side in (theirs, ours)]
    return Ratio(
        own=own.name,
        peer=peer.name,
        decode=interval(speedup_ratio(*decode)) if all(map(all, decode)) else None,
        end_to_end=interval(speedup_ratio([r.total_s for r in theirs], [r.total_s for r in ours])),
    )


def decode_s(result: Result) -> float:
    """From its first token to its last."""
    assert result.decode_s is not None, "both engines tell it"
    return result.decode_s
