"""Points of a curve: ways to decode, measured in turns and held against the roofline."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import NamedTuple

import torch

from benchmarks.gpu_suite.machine import Json, Machine
from benchmarks.gpu_suite.models import random_prompt
from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.serving import ServedRequests
from specbench.records import Request, Sampling
from specbench.stats.rounds import roofline_s

GREEDY = Sampler(Sampling())
READ_BYTES = {"cuda": 2**30, "cpu": 2**24}


def read_bandwidth(machine: Machine, *, repeats: int = 8) -> float:
    """Bytes read per second by the best of some sums over more than a cache holds."""
    numbers = torch.ones(READ_BYTES[machine.device.type] // 4, device=machine.device)
    clock, seconds = make_clock(machine.device), []
    for _ in range(repeats):
        began = clock.mark()
        numbers.sum()
        ended = clock.mark()
        seconds.append(clock.seconds(ended) - clock.seconds(began))
    return numbers.nbytes / min(seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A way to decode: `num_rows` requests at once, all of the same length."""

    decoder: Decoder
    k: int
    num_rows: int = 1
    context: int = 128  # tokens of each prompt
    new_tokens: int = 96
    bytes_per_round: int = 0

    def serve(self, seed: int) -> ServedRequests:
        vocab = self.decoder.target.vocab_size
        requests = [
            Request(
                prompt_ids=random_prompt(self.context, vocab, seed + row),
                max_new_tokens=self.new_tokens,
                seed=seed + row,
            )
            for row in range(self.num_rows)
        ]
        return self.decoder.serve(requests, GREEDY, FixedK(self.k), num_rows=self.num_rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A point's figures over the rounds in which every row was busy, medians over repeats."""

    name: str
    k: int
    num_rows: int
    context: int
    forward: str
    graph: str  # what the rounds really ran as
    graph_reason: str | None
    num_repeats: int
    num_rounds: int
    round_s: float  # median
    tokens_per_s: float  # over whole spans, waits between rounds included
    tokens_per_round: float  # of a row
    idle_share: float  # of a span between the end of a round and the start of the next
    warm_up_s: float  # the first pass, with what is captured in it
    roofline_s: float | None  # bytes a round must read over the copy bandwidth
    bandwidth_utilization: float | None


class _Span(NamedTuple):
    round_s: tuple[float, ...]
    seconds: float
    num_emitted: int


def measure_points(
    points: Mapping[str, Point], machine: Machine, copy_bytes_per_s: float, *, repeats: int
) -> list[Json]:
    """Every point warm first, then all in turns, as often as time allows."""
    warm_up_s: dict[str, float] = {}
    spans: dict[str, list[_Span]] = {}
    for name, point in points.items():
        if spans and not machine.has_time():
            break
        began_s = time.perf_counter()
        point.serve(0)
        machine.synchronize()
        warm_up_s[name], spans[name] = time.perf_counter() - began_s, []
    for repeat in range(repeats):
        if repeat and not machine.has_time():
            break
        for name in spans:
            spans[name].append(_busy(points[name].serve(repeat * 1000), points[name].num_rows))
    return [
        asdict(_measured(name, points[name], found, warm_up_s[name], machine, copy_bytes_per_s))
        for name, found in spans.items()
    ]


def _busy(served: ServedRequests, num_rows: int) -> _Span:
    """From the first round with all rows busy to the end of the last one."""
    line = served.timeline
    chosen = [i for i, live in enumerate(line.num_live) if live == num_rows]
    begin, end = line.at_s[chosen[0]], line.at_s[chosen[-1]] + line.seconds[chosen[-1]]
    return _Span(
        tuple(line.seconds[i] for i in chosen),
        end - begin,
        sum(line.num_emitted[i] for i in chosen),
    )


def _measured(
    name: str,
    point: Point,
    spans: list[_Span],
    warm_up_s: float,
    machine: Machine,
    copy_bytes_per_s: float,
) -> Measured:
    launcher = point.decoder.launcher
    assert launcher is not None, "it has served"
    rounds = [seconds for span in spans for seconds in span.round_s]
    round_s = median(rounds)
    least_s = roofline_s(point.bytes_per_round, copy_bytes_per_s) if point.bytes_per_round else None
    emitted = sum(span.num_emitted for span in spans)
    idle = [1 - sum(span.round_s) / span.seconds for span in spans]
    return Measured(
        name=name,
        k=point.k,
        num_rows=point.num_rows,
        context=point.context,
        forward=point.decoder.target.kind,
        graph=launcher.graph,
        graph_reason=launcher.reason,
        num_repeats=len(spans),
        num_rounds=len(rounds),
        round_s=round_s,
        tokens_per_s=median(span.num_emitted / span.seconds for span in spans),
        tokens_per_round=emitted / len(rounds) / point.num_rows,
        idle_share=max(median(idle), 0.0),
        warm_up_s=warm_up_s,
        roofline_s=least_s,
        # What fits a CPU's cache is read faster than memory: no such figure there.
        bandwidth_utilization=least_s / round_s if least_s and machine.is_cuda else None,
    )
