"""What an engine answered, as records."""

from collections.abc import Sequence
from typing import NamedTuple

from specbench.bench.blocks import Cell
from specbench.engines.engine import EngineRequest, ServedPass
from specbench.errors import first_line
from specbench.forward.scoring import likeliest
from specbench.records import (
    DeviceSample,
    PassRecord,
    RequestRecord,
    SamplesRecord,
    ids_sha256,
)


class Turn(NamedTuple):
    """One request of a block, before any cell runs it."""

    prompt_id: str
    turn: int
    repeat: int
    seed: int
    request: EngineRequest
    sample: int = 0


def make_pass(cell: Cell, served: ServedPass) -> PassRecord:
    """The rounds that served a cell's requests together."""
    return PassRecord(
        cell_id=cell.key.id,
        seconds=served.seconds,
        rounds=served.rounds,
        calibration_s=served.calibration_s,
        kv_bytes=served.kv_bytes,
    )


def make_samples(cell: Cell, turns: Sequence[Turn], served: ServedPass) -> SamplesRecord:
    """The samples of one turn, and the likeliest of them, of equals the first."""
    assert served.scores is not None, "the engine was asked to score"
    first, log_probs = turns[0], served.scores.log_probs
    return SamplesRecord(
        prompt_id=first.prompt_id,
        turn=first.turn,
        repeat=first.repeat,
        served=make_pass(cell, served),
        log_probs=log_probs,
        picked=likeliest(log_probs),
        scoring_s=served.scores.seconds,
    )


def make_records(
    cell: Cell,
    turns: Sequence[Turn],
    served: ServedPass,
    *,
    device: DeviceSample | None,
    energy_j: float | None,
) -> list[RequestRecord]:
    """The answered requests of a cell, each with its part of the energy; also of the CPU seconds,
    unless requests overlap."""
    is_shared = cell.key.condition.overlaps
    sizes = [len(r.output_ids) if is_shared else r.total_s for r in served.results]
    whole = sum(sizes) or 1
    records = []
    for i, (turn, result, size) in enumerate(zip(turns, served.results, sizes, strict=True)):
        part = size / whole
        records.append(
            RequestRecord(
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
                cpu_s=None if is_shared else served.cpu_s * part,
                rounds=result.rounds,
                energy_j=None if energy_j is None else energy_j * part,
                device=None if is_shared and i else device,  # of the whole pass, kept once
                arrived_s=result.arrived_s if is_shared else None,
                queue_s=result.queue_s if is_shared else None,
                sample=turn.sample,
                answer_check=result.answer_check,
                graph=result.graph,
                prompt_sha256=ids_sha256(turn.request.prompt_ids),
            )
        )
    return records


def failed_record(cell: Cell, turn: Turn, error: Exception) -> RequestRecord:
    """One request that could not be answered, and why."""
    return RequestRecord.failed(
        first_line(error),
        cell_id=cell.key.id,
        prompt_id=turn.prompt_id,
        turn=turn.turn,
        repeat=turn.repeat,
        seed=turn.seed,
        num_prompt_tokens=len(turn.request.prompt_ids),
        sample=turn.sample,
    )
