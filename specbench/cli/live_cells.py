"""The cells of a run while they are measured: speed, acceptance and clocks so far."""

from dataclasses import dataclass, field

from specbench.bench.blocks import Block
from specbench.records import BlockRecord, RequestRecord

MOST_LINES = 12  # on a terminal, of the block's cells


@dataclass
class _Cell:
    """Sums over blocks; of concurrent requests the seconds of their passes."""

    label: str
    prompts: set[str] = field(default_factory=set)
    num_tokens: int = 0
    seconds: float = 0.0
    num_emitted: int = 0
    num_rounds: int = 0
    num_failed: int = 0
    clock_mhz: int | None = None

    @property
    def line(self) -> str:
        parts = [self.label]
        if self.seconds:
            parts.append(f"{self.num_tokens / self.seconds:,.1f} tok/s")
        if self.num_emitted > self.num_rounds:
            parts.append(f"{self.num_emitted / self.num_rounds:.2f} tokens per round")
        if self.clock_mhz is not None:
            parts.append(f"{self.clock_mhz} MHz")
        if self.num_failed:
            parts.append(f"{self.num_failed} failed")
        number = len(self.prompts)
        return ", ".join([*parts, f"{number} prompt{'' if number == 1 else 's'}"])


class LiveCells:
    """What blocks say of their cells, summed up."""

    def __init__(self) -> None:
        self._cells: dict[str, _Cell] = {}
        self._recent: list[str] = []

    def add(self, block: Block, record: BlockRecord) -> None:
        """A finished block."""
        labels = {cell.key.id: cell.key.label for cell in block.cells}
        self._recent = [cell_id for cell_id in labels if cell_id in record.order]
        passes = {one.cell_id: one.seconds for one in record.passes}
        for request in record.requests:
            cell = self._cells.setdefault(request.cell_id, _Cell(labels[request.cell_id]))
            cell.prompts.add(request.prompt_id)
            _count(cell, request, is_alone=request.cell_id not in passes)
        for cell_id, seconds in passes.items():
            if cell_id in self._cells:
                self._cells[cell_id].seconds += seconds

    def recent(self) -> list[str]:
        """A line for each cell of the last block."""
        return [self._cells[one].line for one in self._recent if one in self._cells][:MOST_LINES]


def _count(cell: _Cell, request: RequestRecord, *, is_alone: bool) -> None:
    if request.error is not None:
        cell.num_failed += 1
        return
    cell.num_tokens += request.num_timed_tokens if is_alone else request.num_output_tokens
    if is_alone:
        cell.seconds += request.decode_s or 0.0
    if request.rounds is not None:
        cell.num_emitted += sum(request.rounds.num_emitted)
        cell.num_rounds += len(request.rounds)
    if request.device is not None and request.device.sm_clock_mhz is not None:
        cell.clock_mhz = request.device.sm_clock_mhz
