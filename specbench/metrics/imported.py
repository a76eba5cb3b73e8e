"""Cells that another tool measured: its figures, judged as far as aggregates allow."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from specbench.metrics.validity import suspicious_acceptance
from specbench.records import CellKey, CellSummary, ImportedRecord

Figures = Mapping[str, float | tuple[float, ...]]

# A speed-up that follows from a rate on both sides.
_SPEEDUPS = {
    "decode_speedup": "decode_tokens_per_s",
    "end_to_end_speedup": "aggregate_tokens_per_s",
}
_ROUNDING = 1e-6  # of figures that another tool rounded


def summarise_imported(
    keys: Sequence[CellKey], records: Sequence[ImportedRecord]
) -> tuple[CellSummary, ...]:
    """One summary an imported cell, in the order of `keys`.

    Speed-ups over a K = 0 of the same setting are figures without an interval: whether both
    sides saw the same prompts cannot be told from aggregates.
    """
    by_id = {record.cell_id: record for record in records}
    bases = {k.condition: by_id[k.id] for k in keys if k.is_baseline and k.id in by_id}
    return tuple(
        _summary(key, by_id[key.id], None if key.is_baseline else bases.get(key.condition))
        for key in keys
        if key.id in by_id
    )


def import_warnings(records: Sequence[ImportedRecord]) -> tuple[str, ...]:
    """What a reader must know of a run that was not measured here; empty for one that was."""
    if not records:
        return ()
    tools = ", ".join(dict.fromkeys(f"{r.tool} {r.tool_version or ''}".strip() for r in records))
    return (
        f"imported from {tools}: figures as reported by that tool, without individual requests: "
        "no intervals, and no K is recommended",
    )


def _summary(key: CellKey, record: ImportedRecord, base: ImportedRecord | None) -> CellSummary:
    reasons = tuple(_broken(key, record))
    curve = record.figures.get("acceptance_rate_per_position")
    finished = (record.num_requests or 0) - (record.num_failed or 0)
    metrics = dict(record.figures)
    for name, rate in _SPEEDUPS.items():
        ratio = _ratio(record.figures, base.figures, rate) if base else None
        if ratio is not None:
            metrics[name] = ratio
    return CellSummary(
        key=key,
        valid=not reasons,
        invalid_reasons=reasons,
        num_prompts=finished,
        num_requests=record.num_requests or 0,
        metrics=dict(sorted(metrics.items())),
        speedup=None,
        warnings=(*record.warnings, *suspicious_acceptance(curve)),
    )


def _ratio(spec: Figures, base: Figures, rate: str) -> float | None:
    ours, theirs = spec.get(rate), base.get(rate)
    if not isinstance(ours, float | int) or not isinstance(theirs, float | int) or theirs <= 0:
        return None
    return ours / theirs


def _broken(key: CellKey, record: ImportedRecord) -> Iterator[str]:
    """Identities that hold in whatever tool: as in validity.py, over aggregates."""
    if record.num_requests is not None and record.num_requests == (record.num_failed or 0):
        yield "no request finished"
    elif record.num_failed:
        yield f"{record.num_failed} of {record.num_requests} requests failed"
    deepest = key.draft.k + 1
    for name in ("mean_acceptance_length", "mean_acceptance_length_when_drafted"):
        length = record.figures.get(name)
        if isinstance(length, float) and not 1 <= length <= deepest + _ROUNDING:
            yield f"identity broken: {name} {length:.2f} outside 1 .. K + 1"
    rate = record.figures.get("acceptance_rate")
    if isinstance(rate, float) and not 0 <= rate <= 1 + _ROUNDING:
        yield f"identity broken: acceptance rate {rate:.2f} outside 0 .. 1"
    curve = record.figures.get("acceptance_rate_per_position")
    if isinstance(curve, tuple) and any(b > a + _ROUNDING for a, b in pairwise(curve)):
        yield "identity broken: acceptance per position rises"
