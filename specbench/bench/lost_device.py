"""Records work that loses the device: it is tried in two processes, then left out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from specbench.bench.blocks import Cell
from specbench.errors import DeviceLostError, ModelError, first_line
from specbench.records import FailureRecord
from specbench.runs import RunStore

MOST_LOSSES = 2  # per cell; each ends a process


@contextmanager
def losses_kept(
    store: RunStore, cells: Sequence[Cell], stage: Literal["load", "warm_up", "decode"]
) -> Iterator[None]:
    """Store a failure if work for cells of one pairing loses the device, and stop the run.

    ModelError if all of the cells have lost the device `MOST_LOSSES` times.
    """
    losses = Counter(
        cell_id for f in store.stored.failures if f.ended_process for cell_id in f.cell_ids
    )
    if cells and all(losses[cell.key.id] >= MOST_LOSSES for cell in cells):
        raise ModelError(f"the device was lost here {MOST_LOSSES} times; it is not tried again")
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
