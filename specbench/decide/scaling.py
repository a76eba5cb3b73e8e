"""What becomes of a speed-up as more requests are decoded together, or prompts grow longer."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from specbench.records import CellKey, CellSummary, Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One measured cell of a curve."""

    at: int  # concurrent requests, or tokens of context
    speedup: Interval | None
    kv_bytes: float | None
    valid: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossover:
    """Where larger batches make speculation stop paying."""

    key: CellKey  # of the curve's first cell
    points: tuple[Point, ...]  # by batch size
    concurrency: int | None  # the least measured one from which on no interval is above 1
    estimated: float | None  # where the estimate passes 1, between two measured ones


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextCurve:
    """Speed-up and KV cache of one K against the length of the prompts."""

    key: CellKey  # of the curve's first cell
    points: tuple[Point, ...]  # by tokens of context


def crossovers(cells: Sequence[CellSummary]) -> tuple[Crossover, ...]:
    """One for each K > 0 that was measured at two concurrencies or more."""
    groups: dict[CellKey, list[CellSummary]] = {}
    for cell in _drafting(cells):
        groups.setdefault(cell.key.without("concurrency"), []).append(cell)
    found = []
    for group in _of_two_or_more(groups):
        group.sort(key=lambda cell: cell.key.condition.order)
        points = tuple(_point(cell, cell.key.condition.concurrency) for cell in group)
        found.append(
            Crossover(
                key=group[0].key,
                points=points,
                concurrency=_stops_paying(points),
                estimated=_passes_1(points),
            )
        )
    return tuple(found)


def context_curves(cells: Sequence[CellSummary]) -> tuple[ContextCurve, ...]:
    """One for each K > 0 that was measured at two context lengths or more."""
    groups: dict[CellKey, list[CellSummary]] = {}
    for cell in _drafting(cells):
        if cell.key.condition.context is not None:
            groups.setdefault(cell.key.without("context"), []).append(cell)
    found = []
    for group in _of_two_or_more(groups):
        points = (_point(cell, cell.key.condition.context or 0) for cell in group)
        by_length = tuple(sorted(points, key=lambda point: point.at))
        found.append(ContextCurve(key=group[0].key, points=by_length))
    return tuple(found)


def _drafting(cells: Sequence[CellSummary]) -> Iterator[CellSummary]:
    return (cell for cell in cells if cell.key.draft.k > 0)


def _of_two_or_more(groups: dict[CellKey, list[CellSummary]]) -> Iterator[list[CellSummary]]:
    return (group for group in groups.values() if len(group) > 1)


def _point(cell: CellSummary, at: int) -> Point:
    kv_bytes = cell.metrics.get("kv_bytes")
    return Point(
        at=at,
        speedup=cell.speedup,
        kv_bytes=None if isinstance(kv_bytes, tuple) else kv_bytes,
        valid=cell.valid,
    )


def _stops_paying(points: Sequence[Point]) -> int | None:
    """Points without an interval show nothing; a gain at more rows is one, whatever fewer show."""
    lows = [(p.at, p.speedup.low) for p in points if p.valid and p.speedup]
    shown = [(at, low) for at, low in lows if low is not None]
    lost = list(takewhile(lambda one: one[1] <= 1, reversed(shown)))
    return lost[-1][0] if lost else None


def _passes_1(points: Sequence[Point]) -> float | None:
    """The first fall below 1, on straight lines of log speed-up over log concurrency."""
    known = [
        (math.log(p.at), math.log(p.speedup.estimate)) for p in points if p.valid and p.speedup
    ]
    for (x, above), (next_x, below) in pairwise(known):
        if above >= 0 > below:
            return math.exp(x + (next_x - x) * above / (above - below))
    return None
