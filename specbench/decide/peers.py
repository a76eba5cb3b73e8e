"""The built-in decoder beside other engines, over the same prompts of the same run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from specbench.metrics.cell import CellData, Pair, against, have_same_text
from specbench.metrics.pairs import (
    PairedSeconds,
    paired_cpu,
    paired_decode,
    paired_end_to_end,
)
from specbench.metrics.serving import aggregate_tokens_per_s, busy_tokens_per_s
from specbench.metrics.speed import decode_tokens_per_s, end_to_end_tokens_per_s
from specbench.metrics.validity import judge_cell
from specbench.records import ASSISTED_DEFAULT, CellKey, Interval, RequestRecord
from specbench.settings import BUILTIN
from specbench.stats.intervals import speedup_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """How many times as fast as a peer's cell a cell of ours is, with 95 % intervals.

    Beside a server there are estimates alone: nothing shows how another start of ours would do.
    """

    own: CellKey
    peer: CellKey
    decode: Interval  # the peer's decode seconds / ours, over the same prompts
    end_to_end: Interval | None
    cpu: Interval | None  # process CPU seconds of whole requests
    num_prompts: int
    equal_text: float | None  # share of requests with the same output tokens; None: not told
    valid: bool  # False: one of the two cells is not, and nothing follows from it


def side_by_side(cells: Sequence[CellData]) -> tuple[SideBySide, ...]:
    """Every built-in cell beside the cells of other engines that do the same work.

    The same work: the same target, workload and setting; and no drafts, or the same drafter
    at the same K, or on the peer's side the same drafter at its own defaults.
    """
    found = (
        _compare(own, peer)
        for own in cells
        for peer in cells
        if own.key.condition.engine == BUILTIN and _do_the_same(own.key, peer.key)
    )
    return tuple(pair for pair in found if pair is not None)


def _do_the_same(own: CellKey, peer: CellKey) -> bool:
    if peer.condition.engine == BUILTIN or own.draft.drafter != peer.draft.drafter:
        return False
    if own.condition.without("engine") != peer.condition.without("engine"):
        return False
    return peer.draft.method == ASSISTED_DEFAULT or own.draft.length == peer.draft.length


def _compare(own: CellData, peer: CellData) -> SideBySide | None:
    """None where the two have no request in common that both finished."""
    if peer.servers:
        return _beside_a_server(own, peer)
    both = against(own, peer)
    decode = paired_decode(both)
    if decode is None:
        return None
    return SideBySide(
        own=own.key,
        peer=peer.key,
        decode=speedup_interval(*decode),
        end_to_end=_interval(paired_end_to_end(both)),
        cpu=_interval(paired_cpu(both)),
        num_prompts=len(decode.base_s),
        equal_text=_equal_text(both.pairs),
        valid=not judge_cell(own) and not judge_cell(peer),
    )


def _beside_a_server(own: CellData, peer: CellData) -> SideBySide | None:
    """By the rates of all requests of prompts that both served, however often each did."""
    common = _prompts(own) & _prompts(peer)
    ours, theirs = _only(own, common), _only(peer, common)
    at = own.key.condition
    rates = (
        (busy_tokens_per_s, aggregate_tokens_per_s)
        if at.is_stream and at.request_rate is None
        else (decode_tokens_per_s, end_to_end_tokens_per_s)
    )
    decode, end_to_end = (_ratio(rate(ours), rate(theirs)) for rate in rates)
    if decode is None:
        return None
    first = {_turn(request): request for request in reversed(theirs.finished)}
    pairs = [Pair(first[_turn(r)], r) for r in ours.finished if _turn(r) in first]
    return SideBySide(
        own=own.key,
        peer=peer.key,
        decode=decode,
        end_to_end=end_to_end,
        cpu=None,
        num_prompts=len(common),
        equal_text=_equal_text(pairs),
        valid=not judge_cell(own) and not judge_cell(peer),
    )


def _turn(request: RequestRecord) -> tuple[str, int]:
    return request.prompt_id, request.turn


def _prompts(cell: CellData) -> set[str]:
    return {request.prompt_id for request in cell.finished}


def _only(cell: CellData, prompts: Collection[str]) -> CellData:
    """Passes are of all prompts together."""
    return replace(cell, requests=tuple(r for r in cell.finished if r.prompt_id in prompts))


def _ratio(own: float | None, peer: float | None) -> Interval | None:
    return Interval(estimate=own / peer, low=None, high=None) if own and peer else None


def _equal_text(pairs: Sequence[Pair[RequestRecord]]) -> float | None:
    """Of pairs in which both sides tell token ids, or neither does."""
    told = [pair for pair in pairs if bool(pair.base.output_ids) == bool(pair.spec.output_ids)]
    return sum(have_same_text(*pair) for pair in told) / len(told) if told else None


def _interval(seconds: PairedSeconds | None) -> Interval | None:
    return speedup_interval(*seconds) if seconds else None
