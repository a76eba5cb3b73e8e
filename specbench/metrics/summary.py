"""A cell after analysis: metrics, validity, speedup; measured here or by another tool."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from specbench.metrics.cell import CellData, finished
from specbench.metrics.machine import SERVER, machine_noise, machine_prior
from specbench.metrics.pairs import (
    PairedSeconds,
    Span,
    paired_decode,
    paired_end_to_end,
    paired_goodput,
    prompt_seconds,
    whole_span,
)
from specbench.metrics.registry import measure, number_of
from specbench.metrics.stalls import stalls, without
from specbench.metrics.validity import cell_warnings, judge_cell, suspicious_acceptance
from specbench.records import (
    CellKey,
    CellSummary,
    Goodput,
    ImportedRecord,
    Kind,
    Margin,
    Reason,
    Screening,
)
from specbench.records.keys import Question
from specbench.settings.words import limits_text
from specbench.stats.crossed import crossed_speedup
from specbench.stats.intervals import (
    LogRatio,
    interval,
    log_ratio,
    minimum_detectable_effect,
    speedup_ratio,
    with_count_noise,
)
from specbench.stats.paired_fit import fitted_ratios
from specbench.stats.spread import Uncertainty, cautiously_combined


def summarize(cells: Iterable[CellData]) -> tuple[CellSummary, ...]:
    """One summary per cell, in order; an invalid cell has its metrics and the reasons.

    If the K of a drafter served other prompts, as under a time budget, their speedups are fitted
    over all of these prompts (stats/paired_fit.py).
    """
    cells = [*cells]
    decode, whole = _comparable(cells, whole=False), _comparable(cells, whole=True)
    return tuple(_summarize(cell, decode.get(cell.key), whole.get(cell.key)) for cell in cells)


def _comparable(cells: Sequence[CellData], *, whole: bool) -> dict[CellKey, LogRatio]:
    """The fitted speedups of cells that are compared with others on other prompts."""
    groups: dict[Question, list[CellData]] = {}
    for cell in cells:
        if cell.key.draft.k and not cell.servers and not cell.key.condition.overlaps:
            groups.setdefault(cell.key.question, []).append(cell)
    fitted: dict[CellKey, LogRatio] = {}
    for group in groups.values():
        columns = {cell.key: prompt_seconds(cell, whole=whole) for cell in group}
        columns = {key: rows for key, rows in columns.items() if rows}
        prompts = list(dict.fromkeys(prompt for rows in columns.values() for prompt in rows))
        if len({len(rows) for rows in columns.values()} | {len(prompts)}) < 2:
            continue
        # A K that was dropped has fewer repeats than others, on both sides.
        base = [max(rows[p][0] for rows in columns.values() if p in rows) for p in prompts]
        served = [*zip(prompts, base, strict=True)]
        spec = [
            [rows[p][1] * base_s / rows[p][0] if p in rows else math.nan for p, base_s in served]
            for rows in columns.values()
        ]
        ratios = fitted_ratios(base, spec)
        noise = {cell.key: machine_noise(cell) for cell in group}
        fitted |= {key: r.on(noise[key]) for key, r in zip(columns, ratios, strict=True)}
    return fitted


def _summarize(cell: CellData, decode: LogRatio | None, whole: LogRatio | None) -> CellSummary:
    reasons, metrics = judge_cell(cell), measure(cell)
    if decode is not None:
        metrics = {**metrics, "decode_speedup": math.exp(decode.log)}
    if whole is not None:
        metrics = {**metrics, "end_to_end_speedup": math.exp(whole.log)}
    decode = decode or log_speedup(cell, paired_decode(cell))
    end_to_end = whole or log_speedup(cell, paired_end_to_end(cell))
    return CellSummary(
        key=cell.key,
        valid=not reasons,
        invalid_reasons=reasons,
        num_prompts=len({request.prompt_id for request in cell.finished}),
        num_requests=len(cell.requests),
        metrics=metrics,
        speedup=interval(decode) if decode else None,
        speedup_end_to_end=interval(end_to_end) if end_to_end else None,
        minimum_detectable_effect=minimum_detectable_effect(decode) if decode else None,
        margin=margin_of(decode) if decode else None,
        speed_margin=_speed_margin(cell),
        screening=_screening(cell),
        goodput=_goodput(cell),
        warnings=cell_warnings(cell),
    )


def margin_of(ratio: LogRatio) -> Margin | None:
    """What each part of a speedup's uncertainty makes of its interval; None without an interval."""
    if ratio.prompts is None or ratio.machine is None:
        return None
    return Margin(
        prompts=math.expm1(ratio.prompts.margin()),
        machine=math.expm1(ratio.machine.of_run.margin()),
        machine_kind=ratio.machine.kind.value,
        largest_prompt=ratio.largest_prompt,
        num_parts=ratio.machine.num_parts,
        num_earlier=ratio.machine.num_earlier,
    )


def _speed_margin(cell: CellData) -> float | None:
    """The margin of the cell's own speed, over prompts, or over passes if requests overlap."""
    if cell.key.condition.is_stream:
        spans = [whole_span(served) for served in cell.passes]
    else:
        sums: dict[str, Span] = {}
        for request in cell.finished:
            seconds, tokens = sums.get(request.prompt_id, Span(0.0, 0.0))
            sums[request.prompt_id] = Span(
                seconds + (request.total_s or 0.0), tokens + request.num_output_tokens
            )
        spans = [*sums.values()]
    if not all(span.seconds > 0 and span.tokens for span in spans) or not spans:
        return None
    of_units = np.array(spans).T  # seconds and tokens
    noise = machine_noise(cell)
    noise = noise.of_seconds if cell.key.is_baseline else noise  # K's change less
    spread = log_ratio([of_units[1]], [of_units[0]]).on(noise).spread
    return None if spread is None else math.expm1(spread.margin())


def _screening(cell: CellData) -> Screening | None:
    """Both figures with and without stalls; None without a stall."""
    stalled_pairs = stalls(cell)
    if not stalled_pairs.all:
        return None
    parts = without(cell, ()), without(cell, stalled_pairs.all)
    every, sound = (log_speedup(part, paired_decode(part)) for part in parts)
    if every is None or sound is None:
        return None
    return Screening(
        num_baseline=len(stalled_pairs.base),
        num_draft=len(stalled_pairs.proven),
        num_kept=len(stalled_pairs.unproven),
        with_all=interval(every),
        without_any=interval(sound),
    )


def _goodput(cell: CellData) -> Goodput | None:
    counts = paired_goodput(cell)
    ratio = log_speedup(cell, counts)
    if counts is None or ratio is None:
        return None
    ratio = with_count_noise(ratio, counts.base_tokens, counts.spec_tokens)
    return Goodput(
        limits=limits_text(cell.slo),
        ratio=interval(ratio),
        minimum_detectable_effect=minimum_detectable_effect(ratio),
        margin=margin_of(ratio),
    )


def log_speedup(cell: CellData, seconds: PairedSeconds | None) -> LogRatio | None:
    """The log of baseline seconds / seconds, over prompts and states of the machine, or over
    prompts and cycles for a server."""
    if seconds is None:
        return None
    if not seconds.has_cycles:
        return speedup_ratio(*seconds).on(machine_noise(cell))
    ratio = crossed_speedup(*seconds, prior=machine_prior(cell))
    is_alone = ratio.num_prompts == 1 and not cell.key.condition.is_stream
    return replace(ratio, prompts=None) if is_alone else ratio  # one prompt shows no variation


# Speedups as ratios of a rate on both sides. In open loop, arrivals determine the throughput, so
# they are ratios of seconds.
_RATES = {
    "decode_speedup": "decode_tokens_per_s",
    "end_to_end_speedup": "aggregate_tokens_per_s",
}
_SECONDS = {"decode_speedup": "tpot_s", "end_to_end_speedup": "request_latency_s"}
_ROUNDING = 1e-6  # of figures that another tool rounded


def summarize_imported(
    keys: Sequence[CellKey],
    records: Sequence[ImportedRecord],
    slo: Mapping[str, float] | None = None,
) -> tuple[CellSummary, ...]:
    """One summary per imported cell, in the order of `keys`.

    Speedups over a K = 0 of the same setting have an interval over prompts if both files have the
    times of requests that were sent one at a time, or else over repeats if both were repeated. In
    open loop they are ratios of the median TPOT and latency.
    """
    by_id = {record.cell_id: record for record in records}
    bases = {k.condition: by_id[k.id] for k in keys if k.is_baseline and k.id in by_id}
    return tuple(
        _imported_summary(
            key, by_id[key.id], None if key.is_baseline else bases.get(key.condition), slo or {}
        )
        for key in keys
        if key.id in by_id
    )


def import_warnings(records: Sequence[ImportedRecord]) -> tuple[Reason, ...]:
    """Warnings about a run that was imported; empty for one measured here."""
    rows = [record for record in records if record.stated]
    if rows:
        rest = [record for record in records if not record.stated]
        return (Kind.THEIRS(tools=_tools(rows)), *import_warnings(rest))
    if not records:
        return ()
    tools = _tools(records)
    units = (
        *(["requests"] if any(record.requests for record in records) else []),
        *(["repeats"] if any(record.num_repeats > 1 for record in records) else []),
    )
    if not units:
        return (Kind.IMPORTED_POINTS(tools=tools),)
    return (Kind.IMPORTED(tools=tools, units=units),)


def _tools(records: Iterable[ImportedRecord]) -> tuple[str, ...]:
    """Each tool with its version."""
    return tuple(dict.fromkeys(f"{r.tool} {r.tool_version or ''}".strip() for r in records))


def _imported_summary(
    key: CellKey,
    record: ImportedRecord,
    base: ImportedRecord | None,
    slo: Mapping[str, float],
) -> CellSummary:
    cell = CellData(key=key, requests=record.requests, slo=slo, device=SERVER)
    baseline = base.requests if base else ()
    # Requests are paired with those of K = 0 by position if all prompts have the same length, which
    # is 0 if it is unknown.
    lengths, theirs = ([r.num_prompt_tokens for r in side] for side in (cell.requests, baseline))
    if lengths == theirs and all(r.num_prompt_tokens for r in finished(cell.requests)):
        pairs = zip(cell.requests, baseline, strict=True)
        requests = tuple(replace(r, prompt_id=plain.prompt_id) for r, plain in pairs)
        cell = replace(cell, requests=requests, baseline=baseline)
    stated = record.stated
    reasons = (*(stated.invalid_reasons if stated else ()), *_broken_figures(key, record))
    curve = record.figures.get("acceptance_rate_per_position")
    (summary,) = summarize([cell])
    metrics = {**summary.metrics, **record.figures}
    is_open = key.condition.request_rate is not None
    figures = _SECONDS if is_open else _RATES
    for name, figure in figures.items():
        before = number_of(base.figures, figure) if base else None
        after = number_of(record.figures, figure)
        if before and after:
            metrics.setdefault(name, before / after if is_open else after / before)
    names = reversed(figures) if key.condition.overlaps and not is_open else figures
    speedups = [(x, figures[name]) for name in names if (x := number_of(metrics, name))]
    ratio = _over_repeats(*speedups[0], record, base) if speedups else None
    return replace(
        summary,
        valid=not reasons,
        invalid_reasons=reasons,
        num_prompts=(stated.num_prompts if stated else None)
        or summary.num_prompts
        or (record.num_requests or 0) - (record.num_failed or 0),
        num_requests=record.num_requests or 0,
        metrics=dict(sorted(metrics.items())),
        speedup=stated.speedup
        if stated
        else summary.speedup or (interval(ratio) if ratio else None),
        speedup_end_to_end=stated.end_to_end if stated else summary.speedup_end_to_end,
        warnings=(*record.warnings, *suspicious_acceptance(curve)),
    )


def _over_repeats(
    ratio: float, figure: str, record: ImportedRecord, base: ImportedRecord | None
) -> LogRatio:
    """A ratio of mean figures, with a spread if both were repeated and the repeats differ."""
    sides = [side for side in (base, record) if side and side.deviations.get(figure)]
    spreads = [
        Uncertainty(
            standard_error=side.deviations[figure]
            / ((number_of(side.figures, figure) or math.inf) * math.sqrt(side.num_repeats)),
            degrees_of_freedom=side.num_repeats - 1.0,
        )
        for side in sides
    ]
    return LogRatio(
        log=math.log(ratio),
        prompts=cautiously_combined(*spreads) if len(spreads) == 2 else None,
        num_prompts=0,
    )


def _broken_figures(key: CellKey, record: ImportedRecord) -> Iterator[Reason]:
    """Identities over aggregates that hold in every tool, as in validity.py."""
    if record.num_requests is not None and record.num_requests == (record.num_failed or 0):
        yield Kind.NOTHING_FINISHED()
    elif record.num_failed:
        yield Kind.REQUESTS_FAILED(
            failed=record.num_failed, requests=record.num_requests, error=None
        )
    deepest = key.draft.k + 1
    for name in ("mean_acceptance_length", "mean_acceptance_length_when_drafted"):
        length = record.figures.get(name)
        if isinstance(length, float) and not 1 <= length <= deepest + _ROUNDING:
            yield Kind.LENGTH_OUTSIDE(metric=name, length=length)
    rate = record.figures.get("acceptance_rate")
    if isinstance(rate, float) and not 0 <= rate <= 1 + _ROUNDING:
        yield Kind.RATE_OUTSIDE(rate=rate)
    curve = record.figures.get("acceptance_rate_per_position")
    if isinstance(curve, tuple) and any(b > a + _ROUNDING for a, b in pairwise(curve)):
        yield Kind.ACCEPTANCE_RISES()
