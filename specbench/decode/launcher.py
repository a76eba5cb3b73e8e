"""Starts rounds on the device and reads their reports when they arrive.

Shape suffixes: N numbers per row in a report (round.py).
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specbench.decode.clock import Clock, Mark
from specbench.decode.round import Verifier, finish_round, propose
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.footprint import rounded_up

GraphKind = Literal["off", "step", "round"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLaunch:
    """A round in progress. `drafted` is None if its two halves were not timed separately."""

    began: Mark
    drafted: Mark | None
    ended: Mark
    report_BN: Tensor  # on the host; complete once `ended` is reached
    graph: GraphKind = "off"  # how much of the round one graph contained


class Launcher:
    """Runs rounds over the first rows, operation by operation."""

    num_captures = 0  # attempts so far, including failed ones

    def __init__(
        self,
        rows: Rows,
        sampler: Sampler,
        verifier: Verifier,
        clock: Clock,
        *,
        readback: "Readback | None" = None,
        reason: str | None = None,
    ) -> None:
        self.rows = rows
        self.sampler = sampler
        self.verifier = verifier
        self.clock = clock
        self._readback = make_readback(rows.state.length_B.device) if readback is None else readback
        self._heads: dict[int, State] = {}
        self.lag = self._readback.lag  # rounds that may be started before a report is read
        self._why = reason

    @property
    def graph(self) -> GraphKind:
        """How much of a round one graph contains; some rounds may have none (see `reason`)."""
        return "off"

    @property
    def reason(self) -> str | None:
        """Why `graph` is less than requested, or does not apply to all rounds; None if neither."""
        return self._why

    @property
    def reserved_bytes(self) -> int:
        """Device memory reserved for graphs, including those of launchers that share it."""
        return 0

    def rows_for(self, num_running: int) -> int:
        """The number of rows to compute if `num_running` are in use."""
        return num_running

    def span_for(self, num_tokens: int) -> int:
        """The number of slots to attend to if positions go up to `num_tokens` - 1."""
        return min(rounded_up(num_tokens), self.rows.state.capacity)

    def launch(self, num_rows: int, k: int, span: int, num_behind: int = 0) -> RoundLaunch:
        """Start one round over rows 0 .. num_rows - 1.

        The drafter has not seen up to `num_behind` of the last tokens per row, which were emitted
        at K = 0. It catches up first, and this counts as drafting.
        """
        rows, mark = self.rows, self.clock.mark
        state = self._heads.get(num_rows)
        if state is None:
            state = self._heads[num_rows] = rows.state.rows(0, num_rows)
        began = mark()
        catch_up(rows, state, num_behind, span)
        proposal = propose(rows.drafter, state, self.sampler, k, span)
        drafted = mark() if k else began
        report_BN = finish_round(
            rows.target, rows.drafter, state, self.sampler, proposal, span, self.verifier
        )
        report_BN = self._readback.fetch(report_BN)
        return RoundLaunch(began=began, drafted=drafted, ended=mark(), report_BN=report_BN)


def catch_up(rows: Rows, state: State, num_behind: int, span: int) -> None:
    """Let the drafter process up to `num_behind` tokens per row that were emitted without it."""
    if num_behind:
        # + 1: after a round that accepts every draft, the drafter has not read the last one.
        rows.drafter.catch_up(state, num_behind + 1, span)


class Readback:
    """Copies reports to the host; on a CPU they are already there when their rounds end."""

    lag = 0  # copies that may be in progress when the next one starts

    def fetch(self, report_BN: Tensor) -> Tensor:
        """The report in host memory, complete once the stream reaches this point."""
        return report_BN


class PinnedMemory(Readback):
    """Copies without waiting. A report can be read until `lag` + 1 later copies have started."""

    lag = 1

    def __init__(self) -> None:
        self._buffers: dict[torch.Size, deque[Tensor]] = {}

    def fetch(self, report_BN: Tensor) -> Tensor:
        # One buffer is read while the next one is written, so `lag` + 1 buffers rotate.
        turns = self._buffers.setdefault(report_BN.shape, deque())
        if len(turns) <= self.lag:
            turns.append(self.new_buffer(report_BN))
        turns.rotate()
        self.start_copy(report_BN, turns[0])
        return turns[0]

    def new_buffer(self, report_BN: Tensor) -> Tensor:
        """Pinned host memory, which the device can write to directly."""
        return torch.empty(report_BN.shape, dtype=report_BN.dtype, pin_memory=True)

    def start_copy(self, report_BN: Tensor, buffer_BN: Tensor) -> None:
        """Queue the copy in the stream, between this round and the next."""
        buffer_BN.copy_(report_BN, non_blocking=True)


def make_readback(device: torch.device) -> Readback:
    """The readback for a device."""
    return PinnedMemory() if device.type == "cuda" else Readback()
