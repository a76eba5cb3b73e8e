"""What an engine answered, as records."""

from collections.abc import Sequence
from typing import NamedTuple

from specbench.bench.blocks import Cell
from specbench.engines.engine import EngineRequest, EngineResult, ServedPass
from specbench.records import PassRecord, RequestRecord


class Turn(NamedTuple):
    """One request of a block, before any cell runs it."""

    prompt_id: str
    turn: int
    repeat: int
    seed: int
    request: EngineRequest


def first_line(error: Exception) -> str:
    """What an error says, short enough for a table; its kind where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def shares(results: Sequence[EngineResult]) -> list[float]:
    """Each result's part of all their seconds."""
    whole_s = sum(result.total_s for result in results)
    return [result.total_s / whole_s if whole_s else 0.0 for result in results]


def make_pass(cell: Cell, served: ServedPass) -> PassRecord:
    """The rounds that served a cell's requests together."""
    return PassRecord(
        cell_id=cell.key.id,
        seconds=served.seconds,
        rounds=served.rounds,
        calibration_s=served.calibration_s,
        kv_bytes=served.kv_bytes,
    )


def make_record(
    cell: Cell, turn: Turn, result: EngineResult, *, keep_arrival: bool
) -> RequestRecord:
    return RequestRecord(
        cell_id=cell.key.id,
        prompt_id=turn.prompt_id,
        turn=turn.turn,
        repeat=turn.repeat,
        seed=turn.seed,
        num_prompt_tokens=len(turn.request.prompt_ids),
        output_ids=result.output_ids,
        finish_reason="eos" if result.hit_eos else "length",
        prefill_s=result.prefill_s,
        ttft_s=result.ttft_s,
        decode_s=result.decode_s,
        total_s=result.total_s,
        cpu_s=result.cpu_s,
        rounds=result.rounds,
        arrived_s=result.arrived_s if keep_arrival else None,
        queue_s=result.queue_s if keep_arrival else None,
    )


def failed_record(cell: Cell, turn: Turn, error: Exception) -> RequestRecord:
    """One request that could not be answered, and why."""
    return RequestRecord(
        cell_id=cell.key.id,
        prompt_id=turn.prompt_id,
        turn=turn.turn,
        repeat=turn.repeat,
        seed=turn.seed,
        num_prompt_tokens=len(turn.request.prompt_ids),
        output_ids=(),
        finish_reason="failed",
        prefill_s=None,
        ttft_s=None,
        decode_s=None,
        total_s=None,
        cpu_s=None,
        rounds=None,
        error=first_line(error),
    )
