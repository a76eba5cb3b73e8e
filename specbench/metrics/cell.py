"""A cell's stored records, gathered: what every metric is a function of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from specbench.records import (
    NO_DRAFTER,
    BlockPurpose,
    BlockRecord,
    CellKey,
    ForwardCost,
    LimitRecord,
    MemoryRecord,
    PassRecord,
    RequestRecord,
    RoundLog,
    SamplesRecord,
)
from specbench.runs import StoredRun
from specbench.stats.acceptance import RoundCounts


class RequestPair(NamedTuple):
    """The same prompt, turn, repeat and sample, decoded at K = 0 and at the cell's K."""

    base: RequestRecord
    spec: RequestRecord


class Pass(NamedTuple):
    """One pass of a cell over its prompts, with the requests that it served."""

    block_id: str
    record: PassRecord
    requests: tuple[RequestRecord, ...]


class PassPair(NamedTuple):
    """The passes of one block, at K = 0 and at the cell's K."""

    base: Pass
    spec: Pass


class Samples(NamedTuple):
    """The samples of one turn, which were decoded together."""

    record: SamplesRecord
    requests: tuple[RequestRecord, ...]


class SamplesPair(NamedTuple):
    """The samples of the same turn, at K = 0 and at the cell's K."""

    base: Samples
    spec: Samples


@dataclass(frozen=True, kw_only=True)
class CellData:
    """One cell's requests with the baseline's of the same blocks (none for the baseline itself).

    `requests` and `baseline` hold failed requests too, so that they are counted; every number
    is taken from `finished`, `rounds` and `pairs`, which leave them out.
    """

    key: CellKey
    requests: tuple[RequestRecord, ...]
    baseline: tuple[RequestRecord, ...] = ()
    passes: tuple[Pass, ...] = ()  # where requests overlapped, or K is adaptive
    baseline_passes: tuple[Pass, ...] = ()
    samples: tuple[Samples, ...] = ()  # where the best of several is picked
    baseline_samples: tuple[Samples, ...] = ()
    memory_target: MemoryRecord | None = None
    memory_pair: MemoryRecord | None = None
    forwards: tuple[ForwardCost, ...] = ()
    limits: tuple[LimitRecord, ...] = ()

    @property
    def k(self) -> int:
        """K, the largest of an adaptive cell."""
        return self.key.draft.k

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
    def acceptance(self) -> RoundCounts | None:
        """Counts of the rounds of a cell that speculates."""
        log = self.speculative_rounds
        if log is None:
            return None
        return RoundCounts.of_rounds(log.num_drafted, log.num_accepted, log.num_emitted, self.k)

    @cached_property
    def baseline_rounds(self) -> RoundLog | None:
        return pooled_rounds(finished(self.baseline))

    @cached_property
    def pairs(self) -> tuple[RequestPair, ...]:
        """Requests that finished on both sides, in the order of `requests`."""
        return paired_requests(self.baseline, self.requests)

    @cached_property
    def pass_pairs(self) -> tuple[PassPair, ...]:
        """Passes of the same block on both sides, in the order of `passes`."""
        base = {served.block_id: served for served in self.baseline_passes}
        return tuple(
            PassPair(base[spec.block_id], spec) for spec in self.passes if spec.block_id in base
        )

    @cached_property
    def samples_pairs(self) -> tuple[SamplesPair, ...]:
        """Samples of the same turn on both sides, in the order of `samples`."""
        base = {turn_of(own.record): own for own in self.baseline_samples}
        return tuple(
            SamplesPair(base[turn_of(spec.record)], spec)
            for spec in self.samples
            if turn_of(spec.record) in base
        )

    @property
    def memory(self) -> MemoryRecord | None:
        """What this cell needs: the pair's memory, or the target's alone at K = 0."""
        return self.memory_pair if self.k > 0 else self.memory_target


def against(cell: CellData, other: CellData) -> CellData:
    """The cell with another one in place of its baseline."""
    return replace(
        cell,
        baseline=other.requests,
        baseline_passes=other.passes,
        baseline_samples=other.samples,
    )


def paired_requests(
    base: Iterable[RequestRecord], spec: Iterable[RequestRecord]
) -> tuple[RequestPair, ...]:
    """Requests that finished on both sides, in the order of `spec`."""
    known = {_unit(request): request for request in finished(base)}
    return tuple(
        RequestPair(known[_unit(request)], request)
        for request in finished(spec)
        if _unit(request) in known
    )


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
    limits: Sequence[LimitRecord] = (),
    purpose: BlockPurpose = "explore",
) -> tuple[CellData, ...]:
    """The cells, in the order of `keys`, from the blocks of one purpose.

    A cell without a request in those blocks is left out: it was not measured.
    """
    chosen = [_by_cell(block) for block in blocks if block.purpose == purpose]
    cells = (
        _gather(key, _baseline_of(key, keys), chosen, memories, forwards, limits) for key in keys
    )
    return tuple(cell for cell in cells if cell.requests)


def gather_run(stored: StoredRun, purpose: BlockPurpose = "explore") -> tuple[CellData, ...]:
    """The cells of a stored run, with all that was stored beside its blocks."""
    return gather_cells(
        [plan.key for plan in stored.run.cells],
        stored.blocks,
        memories=stored.memory,
        forwards=stored.forwards,
        limits=stored.limits,
        purpose=purpose,
    )


class _Share(NamedTuple):
    """What one block holds of one cell."""

    requests: tuple[RequestRecord, ...]
    served: Pass | None
    samples: tuple[Samples, ...] = ()


_NOTHING = _Share((), None)


def _by_cell(block: BlockRecord) -> dict[str, _Share]:
    requests: dict[str, list[RequestRecord]] = {}
    for request in block.requests:
        requests.setdefault(request.cell_id, []).append(request)
    passes = {record.cell_id: record for record in block.passes}
    samples: dict[str, list[Samples]] = {}
    for found in block.samples:
        cell_id = found.served.cell_id
        own_turn = tuple(r for r in requests[cell_id] if turn_of(r) == turn_of(found))
        samples.setdefault(cell_id, []).append(Samples(found, own_turn))
    shares = {}
    for cell_id, own in requests.items():
        record = passes.get(cell_id)
        served = Pass(block.block_id, record, tuple(own)) if record else None
        shares[cell_id] = _Share(tuple(own), served, tuple(samples.get(cell_id, ())))
    return shares


def _gather(
    key: CellKey,
    baseline: CellKey | None,
    blocks: Sequence[Mapping[str, _Share]],
    memories: Sequence[MemoryRecord],
    forwards: Sequence[ForwardCost],
    limits: Sequence[LimitRecord],
) -> CellData:
    cell_id, baseline_id = key.id, baseline.id if baseline else ""
    own = [block[cell_id] for block in blocks if cell_id in block]
    base = [block.get(baseline_id, _NOTHING) for block in blocks if cell_id in block]
    memory = {
        record.drafter: record for record in memories if record.target == key.condition.target
    }
    return CellData(
        key=key,
        requests=tuple(request for share in own for request in share.requests),
        baseline=tuple(request for share in base for request in share.requests),
        passes=tuple(share.served for share in own if share.served),
        baseline_passes=tuple(share.served for share in base if share.served),
        samples=tuple(one for share in own for one in share.samples),
        baseline_samples=tuple(one for share in base for one in share.samples),
        memory_target=memory.get(NO_DRAFTER),
        memory_pair=memory.get(key.draft.drafter) if key.draft.drafter != NO_DRAFTER else None,
        forwards=tuple(cost for cost in forwards if cost.cell_id == cell_id),
        limits=tuple(limit for limit in limits if limit.cell_id == cell_id),
    )


def _baseline_of(key: CellKey, keys: Sequence[CellKey]) -> CellKey | None:
    """The baseline of the same setting; None for the baseline itself."""
    if key.is_baseline:
        return None
    return next((k for k in keys if k.is_baseline and k.condition == key.condition), None)


def turn_of(record: RequestRecord | SamplesRecord) -> tuple[str, int, int]:
    """Prompt, turn and repeat: what samples of one turn have in common."""
    return record.prompt_id, record.turn, record.repeat


def _unit(request: RequestRecord) -> tuple[str, int, int, int]:
    return *turn_of(request), request.sample
