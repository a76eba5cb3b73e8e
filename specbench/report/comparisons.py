"""Tables that compare cells (engines, their arguments, K = auto, concurrency, context, samples),
and runs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from specbench.decide.comparisons import (
    AdaptiveComparison,
    BestOf,
    ContextCurve,
    Crossover,
    Point,
    SideBySide,
    pooled,
)
from specbench.decide.explanation import k_of
from specbench.decide.recommend import finding
from specbench.records import NO_DRAFTER, CellKey, Decision, Interval, Kind, Reason
from specbench.records.keys import Question
from specbench.report.document import Document
from specbench.report.forecasts import forecast_grid
from specbench.report.grids import Grid, grid_of, setting_column
from specbench.report.provenance import provenance
from specbench.report.sections import drafter_of, setting_name
from specbench.settings import BUILTIN
from specbench.words.answers import answer_text
from specbench.words.numbers import (
    ABSENT,
    break_even_text,
    interval_text,
    listed,
    measured,
    plural,
    speedup_text,
    value_text,
)


def comparison_grids(document: Document) -> tuple[Grid, ...]:
    """The tables of a run that have rows."""
    tables: tuple[tuple[Sequence[Any], Callable[[Any], Grid]], ...] = (
        (document.forecasts, forecast_grid),
        (document.side_by_side, side_by_side_grid),
        (document.variants, variants_grid),
        (document.adaptive, adaptive_grid),
        (document.crossovers, crossover_grid),
        (document.context_curves, context_grid),
        (document.best_of, best_of_grid),
    )
    return tuple(grid(rows) for rows, grid in tables if rows)


def side_by_side_grid(pairs: Sequence[SideBySide]) -> Grid:
    """The built-in decoder compared with other engines, one row per pair of cells."""
    engines = list(dict.fromkeys(pair.peer.condition.engine for pair in pairs))
    several, peers = len(engines) > 1, [pair.peer for pair in pairs]
    works = [f"{k.condition.engine} {work_of(k)}" if several else work_of(k) for k in peers]
    return grid_of(
        f"Side by side: speed relative to {listed(engines)}",
        setting_column([pair.cell.condition for pair in pairs]),
        (BUILTIN, [work_of(pair.cell) for pair in pairs]),
        ("other" if several else engines[0], works),
        *_speed_columns(pairs),
        ("CPU", [interval_text(pair.cpu) for pair in pairs]),
        ("prompts", [str(pair.num_prompts) for pair in pairs]),
        ("", _validity(pairs)),
        num_names=3,
        brief=range(5),
        marks=_validity(pairs),
    )


def variants_grid(pairs: Sequence[SideBySide]) -> Grid:
    """The same K under several sets of engine arguments, one row per pair of cells."""
    return grid_of(
        "Engine arguments: speed relative to another variant at the same K",
        setting_column([pair.cell.condition.without("variant") for pair in pairs]),
        ("cell", [pair.cell.draft.label for pair in pairs]),
        ("variant", [str(pair.cell.condition.variant) for pair in pairs]),
        ("other", [str(pair.peer.condition.variant) for pair in pairs]),
        *_speed_columns(pairs),
        ("prompts", [str(pair.num_prompts) for pair in pairs]),
        ("", _validity(pairs)),
        num_names=4,
        brief=range(6),
        marks=_validity(pairs),
    )


def _speed_columns(pairs: Sequence[SideBySide]) -> Iterator[tuple[str, list[str]]]:
    """Speeds and texts; without the intervals of invalid pairs, which show nothing."""
    yield "decode [95%]", [_ratio_text(pair.decode, valid=pair.valid) for pair in pairs]
    yield "same text", [value_text(pair.equal_text, "{:.0%}") for pair in pairs]
    yield "whole", [_ratio_text(pair.end_to_end, valid=pair.valid) for pair in pairs]


def _ratio_text(ratio: Interval | None, *, valid: bool) -> str:
    return interval_text(ratio if valid or ratio is None else replace(ratio, low=None, high=None))


def _validity(rows: Sequence[SideBySide | AdaptiveComparison | BestOf]) -> list[str]:
    return ["" if row.valid else "invalid" for row in rows]


def variant_reasons(document: Document, cell: CellKey | None = None) -> Iterator[Reason]:
    """Which variant is faster, at K = 0 and at the K of decisions, or only for `cell`."""
    pairs = [pair for pair in document.variants if pair.valid]
    settings = [pair.cell.condition.without("variant") for pair in pairs]
    shown = {cell} if cell else {decision.leader for decision in document.decisions}
    for setting, pair in zip(settings, pairs, strict=True):
        is_plain = pair.cell.is_baseline and cell is None
        if not (is_plain or shown & {pair.cell, pair.peer}):
            continue
        ratio, names = pair.decode, [str(key.condition.variant) for key in (pair.cell, pair.peer)]
        if ratio.low and ratio.high and ratio.high < 1:
            names.reverse()
            ratio = Interval(estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low)
        yield (Kind.OPEN_VARIANTS if pair.is_undecided else Kind.FASTER_VARIANT)(
            cell=f"{setting_name(setting, settings)}, {pair.cell.draft.label}",
            variant=names[0],
            other=names[1],
            speedup=ratio,
        )


def adaptive_grid(rows: Sequence[AdaptiveComparison]) -> Grid:
    """K = auto compared with the best fixed K, one row per question."""
    overall = pooled(rows)
    mean = (
        f", {overall.ratio:.3f}x geometric mean over "
        f"{plural(overall.num_settings, 'setting')} of the confirmation run"
        if overall
        else ""
    )
    units = ["passes" if row.adaptive.condition.is_stream else "prompts" for row in rows]
    return grid_of(
        f"K=auto against the best fixed K: relative speed{mean}",
        setting_column([row.adaptive.condition for row in rows]),
        ("drafter", [drafter_of(row.adaptive.source) for row in rows]),
        ("best K", [str(row.best_fixed.draft.k) for row in rows]),
        ("decode [95%]", [speedup_text(row.decode) for row in rows]),
        ("mean K", [value_text(row.mean_num_speculative_tokens, "{:.1f}") for row in rows]),
        ("whole", [interval_text(row.end_to_end) for row in rows]),
        ("over", [f"{row.num_units} {unit}" for row, unit in zip(rows, units, strict=True)]),
        ("", _validity(rows)),
        num_names=2,
        brief=range(5),
        marks=_validity(rows),
    )


def crossover_grid(curves: Sequence[Crossover]) -> Grid:
    """Speedup by concurrent requests, and the number at which it stops; one row per K."""
    return grid_of(
        "Speedup by concurrent requests, and up to how many it is shown",
        *_curve_names(curves, "concurrency"),
        *((plural(n, "request"), [_y_at(c.points, n) for c in curves]) for n in _x_values(curves)),
        ("shown up to", [_shown_up_to(curve) for curve in curves]),
        ("1.00x at", [_crosses_1_at(curve) for curve in curves]),
        num_names=2,
    )


def context_grid(curves: Sequence[ContextCurve]) -> Grid:
    """Speedup and KV cache by context length, one row per K."""
    lengths = _x_values(curves)
    ends = [break_even_text(c.break_even) if c.break_even else ABSENT for c in curves]
    return grid_of(
        "Speedup and KV cache by tokens of context",
        *_curve_names(curves, "context"),
        *((f"{n:,}", [_y_at(curve.points, n) for curve in curves]) for n in lengths),
        ("drops to 1 at [95%]", ends),
        *((f"KV, {n:,}", [_kv(curve.points, n) for curve in curves]) for n in lengths),
        num_names=2,
        brief=range(4 + len(lengths)),
    )


def _curve_names(
    curves: Sequence[Crossover | ContextCurve], axis: str
) -> Iterator[tuple[str, Sequence[str]]]:
    yield setting_column([curve.key.condition.without(axis) for curve in curves])
    yield "drafter", [drafter_of(curve.key.source) for curve in curves]
    yield "K", [curve.key.draft.length.label for curve in curves]


def best_of_grid(cells: Sequence[BestOf]) -> Grid:
    """Cost and gain of several samples per prompt, one row per cell."""
    counts = [str(n) for n in dict.fromkeys(best.key.condition.num_samples for best in cells)]
    return grid_of(
        f"Best of {listed(counts)}: speed relative to no drafts, time relative to one output, "
        "gain of the picked output over the first in nats per token",
        setting_column([best.key.condition for best in cells]),
        ("drafter", [work_of(best.key) for best in cells]),
        ("faster [95%]", [interval_text(best.speedup) for best in cells]),
        ("cost [95%]", [interval_text(best.cost) for best in cells]),
        ("gain [95%]", [_difference(best.gain) for best in cells]),
        ("picked", [f"{best.picked_log_prob:.3f}" for best in cells]),
        ("first", [f"{best.first_log_prob:.3f}" for best in cells]),
        ("scoring", [f"{best.scoring_share:.0%}" for best in cells]),
        ("prompts", [str(best.num_prompts) for best in cells]),
        ("", _validity(cells)),
        num_names=2,
        brief=range(5),
        marks=_validity(cells),
    )


def work_of(key: CellKey) -> str:
    """A name such as `K=0`, `draft K=4`, `draft auto`; for a peer `generate`, `assisted K=4`."""
    if key.condition.engine == BUILTIN or key.draft.method == NO_DRAFTER:
        return key.draft.label
    return f"{key.draft.method} {key.draft.length.named}" if key.draft.k else key.draft.method


def _x_values(curves: Sequence[Crossover | ContextCurve]) -> list[int]:
    return sorted({point.at for curve in curves for point in curve.points})


def _points_at(points: Sequence[Point], at: int) -> Iterator[Point]:
    return (point for point in points if point.at == at)


def _y_at(points: Sequence[Point], at: int) -> str:
    """The estimate at an x value, without its interval, which is in the results."""
    for point in _points_at(points, at):
        if point.speedup is not None:
            return f"{point.speedup.estimate:.2f}x{'' if point.valid else ' invalid'}"
    return ABSENT


def _kv(points: Sequence[Point], at: int) -> str:
    known = [p.kv_bytes for p in _points_at(points, at) if p.kv_bytes is not None]
    return measured(known[0], "bytes") if known else ABSENT


def _shown_up_to(crossover: Crossover) -> str:
    """The highest concurrency with a proven speedup."""
    known, stop = crossover.with_interval, crossover.concurrency
    shown = [at for at in known if stop is None or at < stop]
    if not known:
        return "unknown"
    return plural(max(shown), "request") if shown else "none"


def _crosses_1_at(crossover: Crossover) -> str:
    """Where the estimate falls to 1, also if that is outside of what was measured."""
    if crossover.estimated is not None:
        return f"{crossover.estimated:.1f}"
    points = [(p.at, p.speedup.estimate > 1) for p in crossover.points if p.valid and p.speedup]
    if len({is_faster for _, is_faster in points}) != 1:
        return "unknown"
    return f"> {points[-1][0]}" if points[0][1] else f"< {points[0][0]}"


def _difference(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:+.3f}"
    return f"{interval.estimate:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def answers_grid(documents: Sequence[Document]) -> Grid:
    """One row per question and drafter, one column per run."""
    keys = decided_cells(documents)
    answers = [[_answer(d) + run.mark for d, run in by_run(documents, key)] for key in keys]
    return grid_of(
        "Answers of the runs",
        ("question", setting_column([key.condition for key in keys])[1]),
        ("drafter", [drafter_of(key.source) for key in keys]),
        *((f"run {i + 1}", [row[i] for row in answers]) for i in range(len(documents))),
        num_names=2,
        num_remarks=len(documents),
    )


def differences_grid(documents: Sequence[Document]) -> Grid:
    """The facts in which the runs differ, one column per run."""
    facts = [{fact.name: fact.value for fact in provenance(document)} for document in documents]
    names = dict.fromkeys(name for run_facts in facts for name in run_facts)
    differing = [name for name in names if len({of_run.get(name) for of_run in facts}) > 1]
    return grid_of(
        "Where the runs differ",
        ("", differing),
        *(
            (f"run {i + 1}", [of_run.get(name, ABSENT) for name in differing])
            for i, of_run in enumerate(facts)
        ),
        num_remarks=len(documents),
    )


def decided_cells(documents: Sequence[Document]) -> list[CellKey]:
    """The first decision's cell for each question and drafter."""
    cells: dict[Question, CellKey] = {}
    for document in documents:
        for decision in document.decisions:
            cells.setdefault(decision.leader.question, decision.leader)
    return list(cells.values())


def by_run(
    documents: Sequence[Document], key: CellKey
) -> Iterator[tuple[Decision | None, Document]]:
    """Each run's decision for that question and drafter, or None, with the run."""
    for document in documents:
        decisions = (d for d in document.decisions if d.leader.question == key.question)
        yield next(decisions, None), document


def _answer(decision: Decision | None) -> str:
    if decision is None:
        return ABSENT
    if decision.speedup is None:
        return "undecided"
    said = finding(decision.speedup, k_of(decision.leader.draft.length))
    return answer_text(decision.verdict, [said])
