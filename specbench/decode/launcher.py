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
    """A round in progress. `drafted` is None if the two halves cannot be distinguished."""

    began: Mark
    drafted: Mark | None
    ended: Mark
    report_BN: Tensor  # on the host; complete once `ended` has come
    graph: GraphKind = "off"  # how much of it one graph held


class Launcher:
    """Runs rounds over the first rows, operation by operation."""

    num_captures = 0  # tried so far, those that failed included

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
        """How much of a round one graph holds; some may be left out, as `reason` says."""
        return "off"

    @property
    def reason(self) -> str | None:
        """Why that is less than was asked for, or not in all rounds."""
        return self._why

    @property
    def reserved_bytes(self) -> int:
        """Device memory held for graphs, those of launchers that share it included."""
        return 0

    def rows_for(self, num_running: int) -> int:
        """How many rows are computed if `num_running` are in use."""
        return num_running

    def span_for(self, num_tokens: int) -> int:
        """How many slots are attended to when positions go up to `num_tokens` - 1."""
        return min(rounded_up(num_tokens), self.rows.state.capacity)

    def launch(self, num_rows: int, k: int, span: int, num_behind: int = 0) -> RoundLaunch:
        """Start one round over rows 0 .. num_rows - 1.

        `num_behind` tokens per row were emitted at K = 0 since the drafter last saw any; it catches
        up first, and that counts as drafting.
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
    """Show the drafter what was emitted without it, at most `num_behind` tokens per row."""
    if num_behind:
        # + 1: after a round that accepts every draft, the drafter has not read the last one.
        rows.drafter.catch_up(state, num_behind + 1, span)


class Readback:
    """Brings reports to the host; on a CPU they are complete when their rounds are over."""

    lag = 0  # reports that may be under way when the next one sets out

    def fetch(self, report_BN: Tensor) -> Tensor:
        """The same numbers in host memory, complete once the stream has come this far."""
        return report_BN


class PinnedMemory(Readback):
    """Copies without waiting. A report may be read until `lag` + 1 later ones have set out."""

    lag = 1

    def __init__(self) -> None:
        self._buffers: dict[torch.Size, deque[Tensor]] = {}

    def fetch(self, report_BN: Tensor) -> Tensor:
        # One buffer is read while the next is written, so lag + 1 of them rotate.
        turns = self._buffers.setdefault(report_BN.shape, deque())
        if len(turns) <= self.lag:
            turns.append(self.new_buffer(report_BN))
        turns.rotate()
        self.start_copy(report_BN, turns[0])
        return turns[0]

    def new_buffer(self, report_BN: Tensor) -> Tensor:
        """Host memory that the device can write to by itself."""
        return torch.empty(report_BN.shape, dtype=report_BN.dtype, pin_memory=True)

    def start_copy(self, report_BN: Tensor, buffer_BN: Tensor) -> None:
        """In the stream, after the round and before the next."""
        buffer_BN.copy_(report_BN, non_blocking=True)


def make_readback(device: torch.device) -> Readback:
    """The readback of a device."""
    return PinnedMemory() if device.type == "cuda" else Readback()
