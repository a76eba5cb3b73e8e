"""Makes the records of an engine's results."""

from collections.abc import Sequence

from specbench.bench.blocks import Cell
from specbench.engines.engine import ServedPass
from specbench.forward.scoring import likeliest
from specbench.records import (
    DeviceSample,
    PassRecord,
    Request,
    RequestRecord,
    SamplesRecord,
    ids_sha256,
)


def make_pass(cell: Cell, served: ServedPass) -> PassRecord:
    """The rounds that served a cell's requests together."""
    return PassRecord(
        cell_id=cell.key.id,
        seconds=served.seconds,
        rounds=served.rounds,
        calibration_s=served.calibration_s,
        kv_bytes=served.kv_bytes,
    )


def make_samples(cell: Cell, requests: Sequence[Request], served: ServedPass) -> SamplesRecord:
    """The samples of one turn, and the likeliest of them, or the first of equals."""
    assert served.scores is not None, "samples have scores"
    first, log_probs = requests[0], served.scores.log_probs
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
    requests: Sequence[Request],
    served: ServedPass,
    *,
    device: DeviceSample | None,
    energy_j: float | None,
) -> list[RequestRecord]:
    """The requests of a cell, each with its share of the energy and, unless requests overlap, of
    the CPU seconds."""
    is_shared = cell.key.condition.overlaps
    sizes = [len(r.output_ids) if is_shared else r.total_s or 0.0 for r in served.results]
    whole = sum(sizes) or 1
    records = []
    for i, (request, result, size) in enumerate(zip(requests, served.results, sizes, strict=True)):
        part = size / whole
        records.append(
            RequestRecord.of(
                cell.key.id,
                request,
                result,
                cpu_s=None if is_shared else served.cpu_s * part,
                energy_j=None if energy_j is None else energy_j * part,
                device=None if is_shared and i else device,  # of the whole pass, kept once
                arrived_s=result.arrived_s if is_shared else None,
                queue_s=result.queue_s if is_shared else None,
                prompt_sha256=ids_sha256(request.prompt_ids),
            )
        )
    return records
