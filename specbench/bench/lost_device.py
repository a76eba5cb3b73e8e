"""Work at which the device is lost: the next process tries it again, a third leaves it out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from specbench.bench.blocks import Cell
from specbench.errors import DeviceLostError, ModelError, first_line
from specbench.records import FailureRecord
from specbench.runs import RunStore

MOST_LOSSES = 2  # of a cell, in processes that end there


@contextmanager
def losses_kept(
    store: RunStore, cells: Sequence[Cell], stage: Literal["load", "warm_up", "decode"]
) -> Iterator[None]:
    """Around work for cells of one pairing: if the device is lost, the run stops and has it stored.

    ModelError where that has happened to all of them too often.
    """
    losses = Counter(
        cell_id for f in store.stored.failures if f.ended_process for cell_id in f.cell_ids
    )
    if cells and all(losses[cell.key.id] >= MOST_LOSSES for cell in cells):
        raise ModelError(f"the device was lost at it {MOST_LOSSES} times; it is not tried again")
    try:
        yield
    except DeviceLostError as error:
        failure = FailureRecord(
            pairing=cells[0].key.pairing if cells else "",
            workload="",
            stage=stage,
            reason=first_line(error),
            cell_ids=tuple(cell.key.id for cell in cells),
            ended_process=True,
        )
        store.append(failure)
        raise
