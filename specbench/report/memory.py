"""What a target needs in memory, alone and with a drafter beside it."""

from collections.abc import Iterable
from typing import NamedTuple

from specbench.records import NO_DRAFTER, CellKey, MemoryRecord


class Need(NamedTuple):
    """Bytes by purpose; `rest` is None where no peak was measured."""

    weights: int
    kv_cache: int
    rest: int | None

    @property
    def total(self) -> int:
        """All that is known."""
        return self.weights + self.kv_cache + (self.rest or 0)


def need(record: MemoryRecord, context: int) -> Need:
    """What `record` needs for `context` tokens in one row.

    The peak is of a short pass, so the KV cache of the whole context comes on top of it.
    """
    peak = peak_bytes(record)
    return Need(
        weights=record.weights_bytes,
        kv_cache=record.kv_bytes_per_token * context,
        rest=None if peak is None else max(peak - record.weights_bytes, 0),
    )


def peak_bytes(record: MemoryRecord) -> int | None:
    """Torch's own peak, else the process's: what the program itself holds."""
    if record.peak_allocated_bytes is not None:
        return record.peak_allocated_bytes
    return record.process_peak_bytes


def owner(record: MemoryRecord) -> str:
    """The pairing, or the target where it is alone."""
    return record.target if record.drafter == NO_DRAFTER else f"{record.target}/{record.drafter}"


def owner_label(record: MemoryRecord, keys: Iterable[CellKey]) -> str:
    """The owner as cells of these keys are labelled: marked where its text is not the target's."""
    name = owner(record)
    return next((key.draft.marked(name) for key in keys if key.pairing == name), name)
