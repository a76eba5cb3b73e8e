"""A cell's stored records, gathered: what every metric is a function of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from specbench.records import (
    NO_DRAFTER,
    BlockPurpose,
    BlockRecord,
    CellKey,
    ForwardCost,
    MemoryRecord,
    RequestRecord,
    RoundLog,
)


class RequestPair(NamedTuple):
    """The same prompt, turn and repeat of one block, decoded at K = 0 and at the cell's K."""

    base: RequestRecord
    spec: RequestRecord


@dataclass(frozen=True, kw_only=True)
class CellData:
    """One cell's requests with the K = 0 requests of the same blocks (none for K = 0 itself).

    `requests` and `baseline` hold failed requests too, so that they are counted; every number
    is taken from `finished`, `rounds` and `pairs`, which leave them out.
    """

    key: CellKey
    requests: tuple[RequestRecord, ...]
    baseline: tuple[RequestRecord, ...] = ()
    memory_target: MemoryRecord | None = None
    memory_pair: MemoryRecord | None = None
    forwards: tuple[ForwardCost, ...] = ()

    @property
    def k(self) -> int:
        return self.key.num_speculative_tokens

    @cached_property
    def finished(self) -> tuple[RequestRecord, ...]:
        return finished(self.requests)

    @cached_property
    def rounds(self) -> RoundLog | None:
        """All rounds of the cell; None where there are none or the engine does not tell."""
        return pooled_rounds(self.finished)

    @property
    def speculative_rounds(self) -> RoundLog | None:
        """The rounds of a cell that speculates; None at K = 0, where nothing is accepted."""
        return self.rounds if self.k > 0 else None

    @cached_property
    def baseline_rounds(self) -> RoundLog | None:
        return pooled_rounds(finished(self.baseline))

    @cached_property
    def pairs(self) -> tuple[RequestPair, ...]:
        """Requests that finished on both sides, in the order of `requests`."""
        base = {_unit(request): request for request in finished(self.baseline)}
        return tuple(
            RequestPair(base[_unit(spec)], spec) for spec in self.finished if _unit(spec) in base
        )

    @property
    def memory(self) -> MemoryRecord | None:
        """What this cell needs: the pair's memory, or the target's alone at K = 0."""
        return self.memory_pair if self.k > 0 else self.memory_target


def finished(requests: Iterable[RequestRecord]) -> tuple[RequestRecord, ...]:
    """The requests that did not fail."""
    return tuple(request for request in requests if request.finish_reason != "failed")


def pooled_rounds(requests: Iterable[RequestRecord]) -> RoundLog | None:
    """One log of all requests' rounds; draft_s and verify_s only where every log has them."""
    logs = [request.rounds for request in requests if request.rounds]
    if not logs:
        return None
    drafts = [log.draft_s for log in logs if log.draft_s is not None]
    verifies = [log.verify_s for log in logs if log.verify_s is not None]
    return RoundLog(
        num_drafted=tuple(n for log in logs for n in log.num_drafted),
        num_accepted=tuple(n for log in logs for n in log.num_accepted),
        num_emitted=tuple(n for log in logs for n in log.num_emitted),
        round_s=tuple(s for log in logs for s in log.round_s),
        draft_s=tuple(s for d in drafts for s in d) if len(drafts) == len(logs) else None,
        verify_s=tuple(s for v in verifies for s in v) if len(verifies) == len(logs) else None,
    )


def gather_cells(
    keys: Sequence[CellKey],
    blocks: Sequence[BlockRecord],
    *,
    memories: Sequence[MemoryRecord] = (),
    forwards: Sequence[ForwardCost] = (),
    purpose: BlockPurpose = "explore",
) -> tuple[CellData, ...]:
    """The cells of a stored run, in the order of `keys`, from the blocks of one purpose.

    A cell without a request in those blocks is left out: it was not measured.
    """
    chosen = [_by_cell(block) for block in blocks if block.purpose == purpose]
    cells = (_gather(key, _baseline_of(key, keys), chosen, memories, forwards) for key in keys)
    return tuple(cell for cell in cells if cell.requests)


def _by_cell(block: BlockRecord) -> dict[str, list[RequestRecord]]:
    requests: dict[str, list[RequestRecord]] = {}
    for request in block.requests:
        requests.setdefault(request.cell_id, []).append(request)
    return requests


def _gather(
    key: CellKey,
    baseline: CellKey | None,
    blocks: Sequence[Mapping[str, Sequence[RequestRecord]]],
    memories: Sequence[MemoryRecord],
    forwards: Sequence[ForwardCost],
) -> CellData:
    cell_id, baseline_id = key.id, baseline.id if baseline else ""
    own = [block for block in blocks if cell_id in block]
    memory = {record.drafter: record for record in memories if record.target == key.target}
    return CellData(
        key=key,
        requests=tuple(request for block in own for request in block[cell_id]),
        baseline=tuple(request for block in own for request in block.get(baseline_id, ())),
        memory_target=memory.get(NO_DRAFTER),
        memory_pair=memory.get(key.drafter) if key.drafter != NO_DRAFTER else None,
        forwards=tuple(cost for cost in forwards if cost.cell_id == cell_id),
    )


def _baseline_of(key: CellKey, keys: Sequence[CellKey]) -> CellKey | None:
    """The K = 0 cell with the same target, workload and setting; None for K = 0 itself."""
    if key.num_speculative_tokens == 0:
        return None
    return next(
        (k for k in keys if k.num_speculative_tokens == 0 and _setting(k) == _setting(key)), None
    )


def _setting(key: CellKey) -> tuple[str, str, str, int, float, str]:
    return (
        key.target,
        key.workload,
        key.engine,
        key.concurrency,
        key.temperature,
        key.dtype,
    )


def _unit(request: RequestRecord) -> tuple[str, int, int]:
    return request.prompt_id, request.turn, request.repeat
