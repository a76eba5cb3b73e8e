"""The built-in decoder beside other engines, over the same prompts of the same run."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.metrics.cell import CellData, against
from specbench.metrics.pairs import (
    PairedSeconds,
    paired_cpu,
    paired_decode,
    paired_end_to_end,
)
from specbench.metrics.validity import judge_cell
from specbench.records import ASSISTED_DEFAULT, CellKey, Interval
from specbench.settings import BUILTIN
from specbench.stats.intervals import speedup_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """How many times as fast as a peer's cell a cell of ours is, with 95 % intervals."""

    own: CellKey
    peer: CellKey
    decode: Interval  # the peer's decode seconds / ours, over the same prompts
    end_to_end: Interval | None
    cpu: Interval | None  # process CPU seconds of whole requests
    num_prompts: int
    equal_text: float  # share of requests with the same output tokens
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
    both = against(own, peer)
    decode = paired_decode(both)
    if decode is None:
        return None
    equal = sum(theirs.output_ids == ours.output_ids for theirs, ours in both.pairs)
    return SideBySide(
        own=own.key,
        peer=peer.key,
        decode=speedup_interval(*decode),
        end_to_end=_interval(paired_end_to_end(both)),
        cpu=_interval(paired_cpu(both)),
        num_prompts=len(decode.base_s),
        equal_text=equal / len(both.pairs),
        valid=not judge_cell(own) and not judge_cell(peer),
    )


def _interval(seconds: PairedSeconds | None) -> Interval | None:
    return speedup_interval(*seconds) if seconds else None
