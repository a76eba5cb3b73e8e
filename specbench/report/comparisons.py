"""Tables that compare cells (engines, their arguments, K = auto, concurrency, context, samples),
and runs.
"""

from collections.abc import Iterator, Sequence
from math import inf

from specbench.decide.comparisons import Crossover, Point, pooled
from specbench.decide.contexts import break_even_text
from specbench.decide.explanation import range_text, speedup_text
from specbench.decide.recommend import SpeedupVerdict
from specbench.records import CellKey, Decision, Interval
from specbench.report.document import Document
from specbench.report.forecasts import forecast_grid
from specbench.report.grids import Grid
from specbench.report.numbers import ABSENT, interval_text, listed, measured, plural, value_text
from specbench.report.provenance import provenance
from specbench.report.sections import drafter_of, setting_name, verdict_of
from specbench.settings import BUILTIN


def comparison_grids(document: Document) -> tuple[Grid, ...]:
    """The tables of a run that have rows."""
    grids = (
        forecast_grid(document),
        side_by_side_grid(document),
        variants_grid(document),
        adaptive_grid(document),
        crossover_grid(document),
        context_grid(document),
        best_of_grid(document),
    )
    return tuple(grid for grid in grids if grid is not None)


def side_by_side_grid(document: Document) -> Grid | None:
    """The built-in decoder compared with other engines, one row per pair of cells."""
    pairs = document.side_by_side
    if not pairs:
        return None
    settings = [pair.cell.condition for pair in pairs]
    engines = list(dict.fromkeys(pair.peer.condition.engine for pair in pairs))
    several = len(engines) > 1
    return Grid(
        title=f"Side by side: speed relative to {listed(engines)}",
        headers=(
            "",
            BUILTIN,
            "other" if several else engines[0],
            "decode [95%]",
            "same text",
            "whole",
            "CPU",
            "prompts",
            "",
        ),
        rows=tuple(
            (
                setting_name(setting, settings),
                work_of(pair.cell),
                f"{pair.peer.condition.engine} {work_of(pair.peer)}"
                if several
                else work_of(pair.peer),
                speedup_text(pair.decode),
                value_text(pair.equal_text, "{:.0%}"),
                interval_text(pair.end_to_end),
                interval_text(pair.cpu),
                str(pair.num_prompts),
                "" if pair.valid else "invalid",
            )
            for setting, pair in zip(settings, pairs, strict=True)
        ),
        num_names=3,
        brief=range(5),
        marks=tuple("" if pair.valid else "invalid" for pair in pairs),
    )


def variants_grid(document: Document) -> Grid | None:
    """The same K under several sets of engine arguments, one row per pair of cells."""
    pairs = document.variants
    if not pairs:
        return None
    settings = [pair.cell.condition.without("variant") for pair in pairs]
    return Grid(
        title="Engine arguments: speed relative to another variant at the same K",
        headers=(
            "",
            "cell",
            "variant",
            "other",
            "decode [95%]",
            "same text",
            "whole",
            "prompts",
            "",
        ),
        rows=tuple(
            (
                setting_name(setting, settings),
                pair.cell.draft.label,
                str(pair.cell.condition.variant),
                str(pair.peer.condition.variant),
                speedup_text(pair.decode),
                value_text(pair.equal_text, "{:.0%}"),
                interval_text(pair.end_to_end),
                str(pair.num_prompts),
                "" if pair.valid else "invalid",
            )
            for setting, pair in zip(settings, pairs, strict=True)
        ),
        num_names=4,
        brief=range(6),
        marks=tuple("" if pair.valid else "invalid" for pair in pairs),
    )


def variant_lines(document: Document, only: CellKey | None = None) -> Iterator[str]:
    """Which variant is faster: `code, draft K=4: graphs is 1.21x faster than eager [1.15, 1.27]`.

    Comparisons at K = 0 and at the K of decisions, or those of the cell `only`; the table has all.
    """
    pairs = [pair for pair in document.variants if pair.valid]
    settings = [pair.cell.condition.without("variant") for pair in pairs]
    shown = {only} if only else {decision.leader for decision in document.decisions}
    for setting, pair in zip(settings, pairs, strict=True):
        is_plain = pair.cell.is_baseline and only is None
        if not (is_plain or shown & {pair.cell, pair.peer}):
            continue
        ratio, names = pair.decode, [str(key.condition.variant) for key in (pair.cell, pair.peer)]
        low, high = ratio.low or 0.0, ratio.high or inf
        if high < 1:
            names.reverse()
            ratio = Interval(estimate=1 / ratio.estimate, low=1 / high, high=1 / low)
        text = f"{names[0]} is {speedup_text(ratio, f' faster than {names[1]}')}"
        if low <= 1 <= high:
            text = f"undecided: {names[0]} against {names[1]} is {range_text(ratio)}"
        yield f"{setting_name(setting, settings)}, {pair.cell.draft.label}: {text}{document.mark}"


def adaptive_grid(document: Document) -> Grid | None:
    """K = auto compared with the best fixed K, one row per question."""
    comparisons = document.adaptive
    if not comparisons:
        return None
    settings = [comparison.adaptive.condition for comparison in comparisons]
    together = pooled(comparisons)
    mean = (
        f", {together.ratio:.3f}x geometric mean over "
        f"{plural(together.num_settings, 'setting')} of the confirmation run"
        if together
        else ""
    )
    return Grid(
        title=f"K=auto against the best fixed K: relative speed{mean}",
        headers=("", "drafter", "best K", "decode [95%]", "mean K", "whole", "over", ""),
        rows=tuple(
            (
                setting_name(setting, settings),
                drafter_of(c.adaptive.source),
                str(c.best_fixed.draft.k),
                speedup_text(c.decode),
                value_text(c.mean_num_speculative_tokens, "{:.1f}"),
                interval_text(c.end_to_end),
                f"{c.num_units} {'passes' if c.adaptive.condition.is_stream else 'prompts'}",
                "" if c.valid else "invalid",
            )
            for setting, c in zip(settings, comparisons, strict=True)
        ),
        num_names=2,
        brief=range(5),
        marks=tuple("" if c.valid else "invalid" for c in comparisons),
    )


def crossover_grid(document: Document) -> Grid | None:
    """Speedup by concurrent requests, and the number at which it stops; one row per K."""
    curves = document.crossovers
    if not curves:
        return None
    settings = [crossover.key.condition.without("concurrency") for crossover in curves]
    levels = _x_values([crossover.points for crossover in curves])
    return Grid(
        title="Speedup by concurrent requests, and up to how many it is shown",
        headers=(
            "",
            "drafter",
            "K",
            *(plural(n, "request") for n in levels),
            "stops at",
            "drops to 1 at",
        ),
        rows=tuple(
            (
                setting_name(setting, settings),
                drafter_of(crossover.key.source),
                crossover.key.draft.length.label,
                *(_at(crossover.points, n) for n in levels),
                _stops(crossover),
                value_text(crossover.estimated, "{:.1f}"),
            )
            for setting, crossover in zip(settings, curves, strict=True)
        ),
        num_names=2,
    )


def context_grid(document: Document) -> Grid | None:
    """Speedup and KV cache by context length, one row per K."""
    curves = document.context_curves
    if not curves:
        return None
    settings = [curve.key.condition.without("context") for curve in curves]
    lengths = _x_values([curve.points for curve in curves])
    return Grid(
        title="Speedup and KV cache by tokens of context",
        headers=(
            "",
            "drafter",
            "K",
            *(f"{n:,}" for n in lengths),
            "drops to 1 at [95%]",
            *(f"KV, {n:,}" for n in lengths),
        ),
        rows=tuple(
            (
                setting_name(setting, settings),
                drafter_of(curve.key.source),
                curve.key.draft.length.label,
                *(_at(curve.points, n) for n in lengths),
                ABSENT if curve.break_even is None else break_even_text(curve.break_even),
                *(_kv(curve.points, n) for n in lengths),
            )
            for setting, curve in zip(settings, curves, strict=True)
        ),
        num_names=2,
        brief=range(4 + len(lengths)),
    )


def best_of_grid(document: Document) -> Grid | None:
    """Cost and gain of several samples per prompt, one row per cell."""
    cells = document.best_of
    if not cells:
        return None
    settings = [best.key.condition for best in cells]
    counts = listed([str(n) for n in dict.fromkeys(setting.num_samples for setting in settings)])
    return Grid(
        title=(
            f"Best of {counts}: speed relative to no drafts, time relative to one output, "
            "gain of the picked output over the first in nats per token"
        ),
        headers=(
            "",
            "drafter",
            "faster [95%]",
            "cost [95%]",
            "gain [95%]",
            "picked",
            "first",
            "scoring",
            "prompts",
            "",
        ),
        rows=tuple(
            (
                setting_name(setting, settings),
                work_of(best.key),
                interval_text(best.speedup),
                interval_text(best.cost),
                _difference(best.gain),
                f"{best.picked_log_prob:.3f}",
                f"{best.first_log_prob:.3f}",
                f"{best.scoring_share:.0%}",
                str(best.num_prompts),
                "" if best.valid else "invalid",
            )
            for setting, best in zip(settings, cells, strict=True)
        ),
        num_names=2,
        brief=range(5),
        marks=tuple("" if best.valid else "invalid" for best in cells),
    )


def work_of(key: CellKey) -> str:
    """A name such as `K=0`, `draft K=4`, `draft auto`; for a peer `generate`, `assisted K=4`."""
    if key.condition.engine == BUILTIN:
        return key.draft.label
    return f"{key.draft.method} {key.draft.length.named}" if key.draft.k else key.draft.method


def _x_values(curves: Sequence[Sequence[Point]]) -> list[int]:
    return sorted({point.at for points in curves for point in points})


def _points_at(points: Sequence[Point], at: int) -> Iterator[Point]:
    return (point for point in points if point.at == at)


def _at(points: Sequence[Point], at: int) -> str:
    """The estimate at an x value, without its interval, which is in the results."""
    for point in _points_at(points, at):
        if point.speedup is not None:
            return f"{point.speedup.estimate:.2f}x{'' if point.valid else ' invalid'}"
    return ABSENT


def _kv(points: Sequence[Point], at: int) -> str:
    known = [p.kv_bytes for p in _points_at(points, at) if p.kv_bytes is not None]
    return measured(known[0], "bytes") if known else ABSENT


def _stops(crossover: Crossover) -> str:
    if crossover.concurrency is not None:
        return plural(crossover.concurrency, "request")
    shown = [p.at for p in crossover.points if p.valid and p.speedup and p.speedup.low]
    return f"not up to {max(shown)}" if shown else ABSENT


def _difference(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:+.3f}"
    return f"{interval.estimate:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def answers_grid(documents: Sequence[Document]) -> Grid:
    """One row per question and drafter, one column per run."""
    keys = decided_cells(documents)
    settings = [key.condition for key in keys]
    return Grid(
        title="Answers of the runs",
        headers=("question", "drafter", *(f"run {i + 1}" for i in range(len(documents)))),
        rows=tuple(
            (
                setting_name(key.condition, settings),
                drafter_of(key.source),
                *(_verdict_text(d) + document.mark for d, document in by_run(documents, key)),
            )
            for key in keys
        ),
        num_names=2,
        num_remarks=len(documents),
    )


def differences_grid(documents: Sequence[Document]) -> Grid:
    """The facts in which the runs differ, one column per run."""
    facts = [{fact.name: fact.value for fact in provenance(document)} for document in documents]
    names = dict.fromkeys(name for run_facts in facts for name in run_facts)
    return Grid(
        title="Where the runs differ",
        headers=("", *(f"run {i + 1}" for i in range(len(documents)))),
        rows=tuple(
            (name, *(run_facts.get(name, ABSENT) for run_facts in facts))
            for name in names
            if len({run_facts.get(name) for run_facts in facts}) > 1
        ),
        num_remarks=len(documents),
    )


def decided_cells(documents: Sequence[Document]) -> list[CellKey]:
    """The first decision's cell for each question and drafter."""
    cells: dict[tuple[object, ...], CellKey] = {}
    for document in documents:
        for decision in document.decisions:
            cells.setdefault(_question(decision), decision.leader)
    return list(cells.values())


def _question(decision: Decision) -> tuple[object, ...]:
    return decision.condition, decision.leader.draft.way


def by_run(
    documents: Sequence[Document], key: CellKey
) -> Iterator[tuple[Decision | None, Document]]:
    """Each run's decision for that question and drafter, or None, with the run."""
    for document in documents:
        decisions = (
            d for d in document.decisions if _question(d) == (key.condition, key.draft.way)
        )
        yield next(decisions, None), document


def _verdict_text(decision: Decision | None) -> str:
    if decision is None:
        return ABSENT
    if decision.speedup is None:
        return "undecided"
    k, verdict = decision.leader.draft.length.named, verdict_of(decision)
    if verdict is SpeedupVerdict.UNDECIDED:
        return f"undecided: {k}, {range_text(decision.speedup)}"
    answer = "no speedup: " if verdict is SpeedupVerdict.NO_SPEEDUP else ""
    return f"{answer}{k}, {speedup_text(decision.speedup)}"
