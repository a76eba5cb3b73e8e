"""Tables that compare cells (engines, their arguments, K = auto, concurrency, context, samples),
and runs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from specbench.decide.comparisons import (
    AdaptiveComparison,
    BestOf,
    ContextCurve,
    Crossover,
    SideBySide,
    may_be_equal,
    pooled,
)
from specbench.doc import Key, keys_of
from specbench.records import NO_DRAFTER, CellKey, Interval, Kind, Reason
from specbench.records.keys import Question
from specbench.report.document import Document
from specbench.report.forecasts import forecast_grid
from specbench.report.grids import setting_column
from specbench.report.provenance import provenance
from specbench.report.sections import drafter_of, setting_name
from specbench.settings.words import BUILTIN, TRANSFORMERS
from specbench.words.answers import answer_text
from specbench.words.numbers import gain_text, listed, measured, plural
from specbench.words.table import Table, column, labeled


def comparison_grids(document: Document) -> tuple[Table, ...]:
    """The tables of a run that have rows."""
    tables: tuple[tuple[Sequence[Any], Callable[[Any], Table]], ...] = (
        (document.forecasts, forecast_grid),
        (document.side_by_side, side_by_side_grid),
        (document.variants, variants_grid),
        (document.adaptive, adaptive_grid),
        (document.crossovers, crossover_grid),
        (document.context_curves, context_grid),
        (document.best_of, best_of_grid),
    )
    return tuple(grid(rows) for rows, grid in tables if rows)


def _comparison_grid(
    title: str, names: Sequence[Key], figures: Iterable[Key], rows: Sequence[Any], **layout: Any
) -> Table:
    """Names and figures; an invalid row is marked and has no intervals, which show nothing."""
    return Table(
        title=title,
        columns=[*names, *map(_without_bounds, figures), column("", _validity)],
        records=rows,
        num_names=len(names),
        mark=_validity,
        **layout,
    )


def _without_bounds(key: Key) -> Key:
    def value(row: Any) -> Any:
        figure = key.of(row)
        is_hidden = isinstance(figure, Interval) and not row.valid
        return replace(figure, low=None, high=None) if is_hidden else figure

    return key._replace(value=value)


def _validity(row: SideBySide | AdaptiveComparison | BestOf) -> str:
    return "" if row.valid else "invalid"


def side_by_side_grid(pairs: Sequence[SideBySide]) -> Table:
    """The built-in decoder compared with other engines, one row per pair of cells."""
    engines = list(dict.fromkeys(pair.peer.condition.engine for pair in pairs))
    several = len(engines) > 1

    def peer(pair: SideBySide) -> str:
        work = _work_of(pair.peer)
        return f"{pair.peer.condition.engine} {work}" if several else work

    return _comparison_grid(
        f"Side by side: speed relative to {listed(engines)}",
        [
            setting_column(pairs, lambda pair: pair.cell.condition),
            column(BUILTIN, lambda pair: _work_of(pair.cell)),
            column("other" if several else engines[0], peer),
        ],
        labeled(keys_of(SideBySide)),
        pairs,
        brief=range(5),
    )


def variants_grid(pairs: Sequence[SideBySide]) -> Table:
    """The same K under several sets of engine arguments, one row per pair of cells."""
    return _comparison_grid(
        "Engine arguments: speed relative to another variant at the same K",
        [
            setting_column(pairs, lambda pair: pair.cell.condition.without("variant")),
            column("cell", attrgetter("cell.draft.label")),
            column("variant", attrgetter("cell.condition.variant")),
            column("other", attrgetter("peer.condition.variant")),
        ],
        labeled(keys_of(SideBySide, without=("cpu",))),
        pairs,
        brief=range(6),
    )


def variant_reasons(document: Document, cell: CellKey | None = None) -> Iterator[Reason]:
    """Which variant is faster, at K = 0 and at the K of decisions, or only for `cell`."""
    pairs = [pair for pair in document.variants if pair.valid]
    settings = [pair.cell.condition.without("variant") for pair in pairs]
    shown = {cell} if cell else {decision.leader for decision in document.decisions}
    for setting, pair in zip(settings, pairs, strict=True):
        # Of an engine's own schemes the K = 0 are the same, and in the table only.
        is_plain = pair.cell.is_baseline and cell is None and not document.adaptive
        if not (is_plain or shown & {pair.cell, pair.peer}):
            continue
        ratio, names = pair.decode, [str(key.condition.variant) for key in (pair.cell, pair.peer)]
        if ratio.low and ratio.high and ratio.high < 1:
            names.reverse()
            ratio = Interval(estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low)
        yield (Kind.OPEN_VARIANTS if may_be_equal(pair.decode) else Kind.FASTER_VARIANT)(
            cell=f"{setting_name(setting, settings)}, {pair.cell.draft.label}",
            variant=names[0],
            other=names[1],
            speedup=ratio,
        )


def adaptive_reasons(document: Document) -> Iterator[Reason]:
    """What an adaptive K gains or loses against the best fixed K, a reason per drafter and setting
    with all its concurrencies."""
    groups: dict[CellKey, list[AdaptiveComparison]] = {}
    for row in document.adaptive:
        if row.valid:
            groups.setdefault(row.adaptive.without("concurrency"), []).append(row)
    settings = [key.condition.without("variant") for key in groups]
    for setting, (key, rows) in zip(settings, groups.items(), strict=True):
        is_alone = all(row.adaptive.condition.concurrency == 1 for row in rows)
        favored = () if all(row.is_confirmed for row in rows) else (Kind.FAVORS_FIXED(),)
        yield Kind.ADAPTIVE(
            cell=f"{setting_name(setting, settings)}, {drafter_of(key.source)}",
            scheme=_scheme(key),
            because=tuple(
                (Kind.ADAPTIVE_OPEN if may_be_equal(row.decode) else Kind.ADAPTIVE_DIFFERS)(
                    speed=row.decode,
                    k=row.best_fixed.draft.k,
                    concurrency=None if is_alone else row.adaptive.condition.concurrency,
                )
                for row in rows
            ),
            bound=(*favored, *_bound(document, rows)),
            rule=key.draft.lossy,
        )


def _bound(document: Document, rows: Sequence[AdaptiveComparison]) -> Iterator[Reason]:
    """What any adaptive K could gain; nothing where a forecast says it, or for a server."""
    questions = {row.adaptive.question for row in rows}
    if any(check.forecast.key.question in questions for check in document.forecasts):
        return
    bounds = [bound for bound in document.bounds if bound.key.question in questions]
    for bound in bounds:
        reason = Kind.ADAPTIVE_BOUND(ks=bound.ks, hindsight=bound.hindsight, k=bound.best)
        is_open = gain_text(bound.least) != gain_text(bound.hindsight)
        yield (
            reason if not is_open else Kind.ADAPTIVE_BY_ROUNDS(**reason.figures, least=bound.least)
        )
    if not bounds and rows[0].adaptive.condition.engine == BUILTIN:
        yield Kind.ADAPTIVE_UNKNOWN(because=(Kind.ROUNDS_DO_NOT_SHOW(),))


def _scheme(adaptive: CellKey) -> str:
    """The name of what chooses K: a serving engine's own scheme, or K = auto."""
    return adaptive.condition.variant or "K=auto"


def adaptive_grid(rows: Sequence[AdaptiveComparison]) -> Table:
    """An adaptive K compared with the best fixed K, one row per question."""
    overall = pooled(rows)
    mean = (
        f", {overall.ratio:.3f}x geometric mean over "
        f"{plural(overall.num_settings, 'setting')} of the confirmation run"
        if overall
        else ""
    )
    return _comparison_grid(
        f"Adaptive K against the best fixed K: relative speed{mean}",
        [
            setting_column(rows, lambda row: row.adaptive.condition.without("variant")),
            column("drafter", lambda row: drafter_of(row.adaptive.source)),
            column("adaptive", lambda row: _scheme(row.adaptive)),
        ],
        [
            column("best K", attrgetter("best_fixed.draft.k")),
            *labeled(keys_of(AdaptiveComparison)),
            column("over", _units),
        ],
        rows,
        brief=range(6),
    )


def _units(row: AdaptiveComparison) -> str:
    at = row.adaptive.condition
    of_passes = "pass" if at.engine in (BUILTIN, TRANSFORMERS) else "cycle"
    return plural(row.num_units, of_passes if at.is_stream else "prompt")


def crossover_grid(curves: Sequence[Crossover]) -> Table:
    """Speedup by concurrent requests, and the number at which it stops; one row per K."""
    return Table(
        title="Speedup by concurrent requests, and up to how many it is shown",
        columns=[
            *_curve_names(curves, "concurrency"),
            *(column(plural(n, "request"), _y_at(n)) for n in _x_values(curves)),
            column("shown up to", _shown_up_to),
            column("1.00x at", _crosses_1_at),
        ],
        records=curves,
        num_names=2,
    )


def context_grid(curves: Sequence[ContextCurve]) -> Table:
    """Speedup and KV cache by context length, one row per K."""
    lengths = _x_values(curves)
    return Table(
        title="Speedup and KV cache by tokens of context",
        columns=[
            *_curve_names(curves, "context"),
            *(column(f"{n:,}", _y_at(n)) for n in lengths),
            *labeled(keys_of(ContextCurve)),
            *(column(f"KV, {n:,}", _kv_at(n)) for n in lengths),
        ],
        records=curves,
        num_names=2,
        brief=range(4 + len(lengths)),
    )


def _curve_names(curves: Sequence[Crossover | ContextCurve], axis: str) -> Iterator[Key]:
    yield setting_column(curves, lambda curve: curve.key.condition.without(axis))
    yield column("drafter", lambda curve: drafter_of(curve.key.source))
    yield column("K", attrgetter("key.draft.length.label"))


def best_of_grid(cells: Sequence[BestOf]) -> Table:
    """Cost and gain of several samples per prompt, one row per cell."""
    counts = [str(n) for n in dict.fromkeys(best.key.condition.num_samples for best in cells)]
    return _comparison_grid(
        f"Best of {listed(counts)}: speed relative to no drafts, time relative to one output, "
        "gain of the picked output over the first in nats per token",
        [
            setting_column(cells, lambda best: best.key.condition),
            column("drafter", lambda best: _work_of(best.key)),
        ],
        labeled(keys_of(BestOf)),
        cells,
        brief=range(5),
    )


def _work_of(key: CellKey) -> str:
    """A name such as `K=0`, `draft K=4`, `draft auto`; for a peer `generate`, `assisted K=4`."""
    if key.condition.engine == BUILTIN or key.draft.method == NO_DRAFTER:
        return key.draft.label
    return f"{key.draft.method} {key.draft.length.named}" if key.draft.k else key.draft.method


def _x_values(curves: Sequence[Crossover | ContextCurve]) -> list[int]:
    return sorted({point.at for curve in curves for point in curve.points})


def _y_at(at: int) -> Callable[[Any], str | None]:
    """The estimate at an x value, without its interval, which is in the results."""

    def text(curve: Crossover | ContextCurve) -> str | None:
        for point in curve.points:
            if point.at == at and point.speedup is not None:
                return f"{point.speedup.estimate:.2f}x{'' if point.valid else ' invalid'}"
        return None

    return text


def _kv_at(at: int) -> Callable[[Any], str | None]:
    def text(curve: ContextCurve) -> str | None:
        known = [p.kv_bytes for p in curve.points if p.at == at and p.kv_bytes is not None]
        return measured(known[0], "bytes") if known else None

    return text


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


def answers_grid(documents: Sequence[Document]) -> Table:
    """One row per question and drafter, one column per run."""
    keys: dict[Question, CellKey] = {}  # the first decision's cell for each question and drafter
    for document in documents:
        for decision in document.decisions:
            keys.setdefault(decision.leader.question, decision.leader)
    return Table(
        title="Answers of the runs",
        columns=[
            setting_column(keys.values(), attrgetter("condition"), "question"),
            column("drafter", lambda key: drafter_of(key.source)),
            *(column(f"run {i + 1}", _answer_of(run)) for i, run in enumerate(documents)),
        ],
        records=list(keys.values()),
        num_names=2,
        num_remarks=len(documents),
    )


def differences_grid(documents: Sequence[Document]) -> Table:
    """The facts in which the runs differ, one column per run."""
    facts = [_facts(document) for document in documents]
    names = dict.fromkeys(name for run_facts in facts for name in run_facts)
    return Table(
        title="Where the runs differ",
        columns=[
            column("", str),
            *(column(f"run {i + 1}", of_run.get) for i, of_run in enumerate(facts)),
        ],
        records=[name for name in names if len({of_run.get(name) for of_run in facts}) > 1],
        num_remarks=len(documents),
    )


def _facts(document: Document) -> dict[str, str]:
    """The provenance by name; values of one name, such as those of several targets, are joined."""
    values: dict[str, list[str]] = {}
    for fact in provenance(document):
        values.setdefault(fact.name, []).append(fact.value)
    return {name: "; ".join(of_name) for name, of_name in values.items()}


def _answer_of(document: Document) -> Callable[[Any], str | None]:
    def text(key: CellKey) -> str | None:
        decisions = (d for d in document.decisions if d.leader.question == key.question)
        decision = next(decisions, None)
        if decision is None:
            return None
        if decision.speedup is None:
            return f"undecided{document.mark}"
        first, *more = decision.answer
        whole = [reason for reason in more if reason.kind is Kind.ALSO_WHOLE]
        return answer_text(decision.verdict, [first, *whole], mark=document.mark)

    return text
