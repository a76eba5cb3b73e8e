"""Cells during measurement: sums for a live view, and the lines of a log."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from specbench.bench.blocks import Block
from specbench.decide.explanation import speedup_text
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.summary import summarize
from specbench.records import BlockRecord, CellKey, Condition, Interval, RequestRecord
from specbench.report.numbers import plural

MOST_LINES = 12  # on a terminal, of the block's cells


@dataclass
class _LiveCell:
    """Sums over blocks; for concurrent requests, seconds are those of passes."""

    label: str
    prompts: set[str] = field(default_factory=set)
    num_tokens: int = 0
    seconds: float = 0.0
    num_emitted: int = 0
    num_rounds: int = 0
    num_failed: int = 0
    clock_mhz: int | None = None

    @property
    def speed(self) -> str:
        return f"{self.num_tokens / self.seconds:,.1f} tok/s" if self.seconds else ""

    @property
    def line(self) -> str:
        parts = [self.label, *filter(None, [self.speed])]
        if self.num_emitted > self.num_rounds:
            parts.append(f"{self.num_emitted / self.num_rounds:.2f} tokens per round")
        if self.clock_mhz is not None:
            parts.append(f"{self.clock_mhz} MHz")
        if self.num_failed:
            parts.append(f"{self.num_failed} failed")
        return ", ".join([*parts, plural(len(self.prompts), "prompt")])


class LiveCells:
    """Sums of the figures of cells over blocks."""

    def __init__(self) -> None:
        self._cells: dict[str, _LiveCell] = {}
        self._recent: list[str] = []

    def add(self, block: Block, record: BlockRecord) -> None:
        """Adds a finished block."""
        labels = {cell.key.id: cell.key.label for cell in block.cells}
        self._recent = [cell_id for cell_id in labels if cell_id in record.order]
        passes = {served.cell_id: served.seconds for served in record.passes}
        for request in record.requests:
            cell = self._cells.setdefault(request.cell_id, _LiveCell(labels[request.cell_id]))
            cell.prompts.add(request.prompt_id)
            _count(cell, request, is_alone=request.cell_id not in passes)
        for cell_id, seconds in passes.items():
            if cell_id in self._cells:
                self._cells[cell_id].seconds += seconds

    def figures(self, cell_id: str) -> tuple[str, str]:
        """The speed of a cell, empty if unknown, with its number of prompts."""
        cell = self._cells.get(cell_id, _LiveCell(""))
        return cell.speed, plural(len(cell.prompts), "prompt")

    def recent(self) -> list[str]:
        """One line per cell of the last block."""
        return [self._cells[cell_id].line for cell_id in self._recent if cell_id in self._cells][
            :MOST_LINES
        ]


def _count(cell: _LiveCell, request: RequestRecord, *, is_alone: bool) -> None:
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


_SIDES = "<<<<>><><"  # how the columns of a line are aligned


class FinishedCells:
    """A line per cell for a log, when later blocks of its setting omit it or its phase ends.

    A session of a server serves one cell per block, so its line follows that block.
    """

    def __init__(self) -> None:
        self._phase: tuple[str, str] | None = None
        self._sums, self._blocks = LiveCells(), list[BlockRecord]()
        self._keys: dict[str, CellKey] = {}
        self._unfinished: dict[Condition, dict[str, CellKey]] = {}
        self._widths = [1] * len(_SIDES)

    def add(self, block: Block, record: BlockRecord) -> list[str]:
        """The lines of the cells that are finished with this block."""
        phase, lines = (block.condition.target, block.purpose), list[str]()
        if phase != self._phase:
            lines = self.end()
            self._phase, self._sums, self._blocks, self._keys = phase, LiveCells(), [], {}
        self._sums.add(block, record)
        self._blocks.append(record)
        served = {cell.key.id: cell.key for cell in block.cells if cell.key.id in record.order}
        before = self._unfinished.get(block.condition, {})
        self._keys |= served
        self._unfinished[block.condition] = served
        lines += self._lines(key for cell_id, key in before.items() if cell_id not in served)
        return lines + self.end() if block.session else lines

    def end(self) -> list[str]:
        """The lines of all cells that are not finished yet."""
        keys = [key for group in self._unfinished.values() for key in group.values()]
        self._unfinished = {}
        return self._lines(keys)

    def _lines(self, keys: Iterable[CellKey]) -> list[str]:
        rows = [self._row(key) for key in keys]
        lengths = [[len(text) for text in row] for row in rows]
        self._widths = [max(column) for column in zip(*lengths, self._widths, strict=True)]
        forms = [f"{side}{width}" for side, width in zip(_SIDES, self._widths, strict=True)]
        return ["  ".join(map(format, row, forms)).rstrip() for row in rows]

    def _row(self, key: CellKey) -> list[str]:
        speed, prompts = self._sums.figures(key.id)
        speedup, is_again = self._speedup(key), self._blocks[-1].purpose == "confirm"
        ratio = f"{speedup.estimate:.2f}x" if speedup else ""
        bounds = speedup_text(speedup).removeprefix(ratio).strip() if speedup else ""
        name = key.source if key.draft.k else key.condition.target
        row = [time.strftime("%H:%M:%S"), name, key.condition.brief, key.draft.length.named]
        note = "confirmation run" if is_again else ""
        if speedup and not (bounds or is_again):
            note = "too few for an interval"
        return [*row, speed, ratio, bounds, prompts, note]

    def _speedup(self, key: CellKey) -> Interval | None:
        """The speedup over the prompts so far; None at K = 0 and in a session."""
        setting = [other for other in self._keys.values() if other.condition == key.condition]
        cells = aggregate_cells(setting, self._blocks, purpose=self._blocks[-1].purpose)
        return next((c.speedup for c in summarize(cells) if c.key == key), None)
