"""Memory of a target without drafter and with each drafter, for the table and the chart."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from specbench.metrics.registry import Value, number_of
from specbench.records import NO_DRAFTER, CellKey, Kind, MemoryRecord, Reason
from specbench.records.keys import pairing_name
from specbench.report.document import Document
from specbench.words.numbers import plural
from specbench.words.table import Table, column, with_values

EVERYTHING_ELSE = "Everything else: the measured peak of a short pass minus the weights."


class MemoryNeed(NamedTuple):
    """Bytes by purpose; `rest` is None if no peak was measured."""

    weights: int
    kv_cache: int
    rest: int | None

    @property
    def total(self) -> int:
        """The sum of the known parts."""
        return self.weights + self.kv_cache + (self.rest or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRow:
    """Memory of a target without drafter or with one; costs are None if unknown."""

    record: MemoryRecord
    name: str  # the target, or the pairing
    context: int  # tokens of the request that `need` is for
    need: MemoryNeed
    cost_bytes: float | None  # speculation_cost_bytes
    cost_tokens: float | None  # the same in tokens of the target's KV cache


def memory_rows(document: Document) -> tuple[MemoryRow, ...]:
    """One row per record, for a request as long as the longest of its target."""
    costs: dict[str, list[Mapping[str, Value]]] = {}
    for cell in document.cells:
        costs.setdefault(cell.key.pairing, []).append(cell.metrics)
    rows = []
    for record in document.memory:
        context = document.longest_context.get(record.target, 0)
        rows.append(
            MemoryRow(
                record=record,
                name=_label(record, document.run.keys),
                context=context,
                need=need(record, context),
                cost_bytes=_largest(costs, record, "speculation_cost_bytes"),
                cost_tokens=_largest(costs, record, "speculation_cost_tokens"),
            )
        )
    return tuple(rows)


def _largest(
    metrics: Mapping[str, Sequence[Mapping[str, Value]]], record: MemoryRecord, name: str
) -> float | None:
    values = (
        number_of(of_cell, name)
        for of_cell in metrics.get(pairing_name(record.target, record.drafter), ())
    )
    return max((value for value in values if value is not None), default=None)


def memory_left(document: Document, key: CellKey) -> Iterator[Reason]:
    """The tokens of context for which this GPU has memory left, if that is known."""
    left, context = tokens_left(document, key), key.condition.context
    if left is not None and context is not None and left <= 0:
        yield Kind.MEMORY_FULL(context=context)
    elif left is not None:
        yield Kind.MEMORY_LEFT(tokens=max(left, 0), context=context)


def tokens_left(document: Document, key: CellKey) -> int | None:
    """Tokens that each request could have beyond its context; None if that is not known.

    The peak is of a short pass, so the KV cache of the context is subtracted.
    """
    total = document.run.environment.gpu_memory_bytes
    drafter = key.draft.drafter if key.draft.k else NO_DRAFTER
    memory = next(
        (m for m in document.memory if (m.target == key.condition.target and m.drafter == drafter)),
        None,
    )
    if total is None or memory is None or memory.peak_reserved_bytes is None:
        return None
    if not memory.kv_bytes_per_token:
        return None
    left = (total - memory.peak_reserved_bytes) // memory.kv_bytes_per_token
    return left // key.condition.batch_size - (key.condition.context or 0)


def need(record: MemoryRecord, context: int) -> MemoryNeed:
    """The memory that `record` needs for one request of `context` tokens.

    The peak is of a short pass, so the KV cache of the whole context is added to it. It is that of
    torch's tensors, or else of the process.
    """
    peak = record.peak_allocated_bytes
    if peak is None:
        peak = record.process_peak_bytes
    return MemoryNeed(
        weights=record.weights_bytes,
        kv_cache=record.kv_bytes_per_token * context,
        rest=None if peak is None else max(peak - record.weights_bytes, 0),
    )


_COLUMNS = (
    column("", attrgetter("name")),
    column("weights", attrgetter("need.weights"), unit="bytes"),
    column("KV cache", attrgetter("need.kv_cache"), unit="bytes"),
    column("everything else", attrgetter("need.rest"), unit="bytes"),
    column("together", attrgetter("need.total"), unit="bytes"),
    column("speculation costs", attrgetter("cost_bytes"), unit="bytes"),
    column("in tokens of context", attrgetter("cost_tokens"), "{:,.0f}"),
)
_PEAKS = (
    column("KV cache per token", attrgetter("record.kv_bytes_per_token"), unit="bytes"),
    column("peak, live tensors", attrgetter("record.peak_allocated_bytes"), unit="bytes"),
    column("peak, reserved", attrgetter("record.peak_reserved_bytes"), unit="bytes"),
    column("peak, process", attrgetter("record.process_peak_bytes"), unit="bytes"),
    column("peak, device", attrgetter("record.device_peak_bytes"), unit="bytes"),
)


def memory_grid(document: Document) -> Table | None:
    """The memory of each target, and with each drafter; None if no memory was recorded."""
    rows = memory_rows(document)
    if not rows:
        return None
    return Table(
        title="Memory",
        columns=[*_COLUMNS, *with_values(_PEAKS, rows)],
        records=rows,
        has_title=False,
    )


def memory_legend(document: Document) -> str:
    """The meaning of the columns of `memory_grid` and the bars of its chart; empty without a
    record.
    """
    contexts = {row.record.target: row.context for row in memory_rows(document)}
    if not contexts:
        return ""
    longest = ", ".join(f"{plural(n, 'token')} ({target})" for target, n in contexts.items())
    if len(contexts) == 1:
        (tokens,) = contexts.values()
        longest = plural(tokens, "token")
    is_measured = any(record.peak_allocated_bytes is not None for record in document.memory)
    costs = "the measured peak with the drafter minus that without it"
    if not is_measured:
        costs = "computed, the drafter's weights and its KV cache for its longest request"
    return (
        f"KV cache: computed, for one request of {longest}, the longest of this run. "
        f"{EVERYTHING_ELSE} Together: the sum of these three. Speculation costs: {costs}."
    )


def _label(record: MemoryRecord, keys: Iterable[CellKey]) -> str:
    """The owner with the mark of a lossy pairing, as its cells are labeled."""
    name = pairing_name(record.target, record.drafter)
    return next((key.draft.marked(name) for key in keys if key.pairing == name), name)
