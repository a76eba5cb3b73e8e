"""The report as one HTML page that needs no network, no script and no other file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from specbench.decide.recommend import Verdict
from specbench.records import Condition
from specbench.report.answers import Answer, answer, compromise_lines, without_workload
from specbench.report.charts.acceptance import acceptance_chart
from specbench.report.charts.canvas import MARKERS, SERIES, Chart, SeriesStyle, drawing
from specbench.report.charts.forecast import forecast_chart
from specbench.report.charts.memory import memory_chart
from specbench.report.charts.pareto import memory_pareto_charts, rows_pareto_charts
from specbench.report.charts.round_time import round_time_chart
from specbench.report.charts.scaling import context_charts, crossover_charts
from specbench.report.charts.side_by_side import side_by_side_charts
from specbench.report.charts.speedup import speedup_chart
from specbench.report.charts.time_line import time_line_charts
from specbench.report.comparisons import comparison_grids
from specbench.report.document import Document
from specbench.report.forecasts import forecast_legend, forecast_lines
from specbench.report.grids import (
    Grid,
    memory_grid,
    metric_grids,
    position_grid,
    result_grid,
    result_legend,
)
from specbench.report.notes import notes
from specbench.report.prose import question, setup, which_pass
from specbench.report.provenance import Fact, formulas, model_grid, provenance
from specbench.report.sections import Section, by_setting, sections
from specbench.report.sessions import sessions_grid, sessions_legend


def charts(document: Document) -> tuple[Chart, ...]:
    """Every chart for which there is data, speed-up first; equal documents give equal bytes."""
    with drawing():
        return tuple(chart for chart in _charts(document) if chart is not None)


def _charts(document: Document) -> Iterator[Chart | None]:
    settings = by_setting(sections(document))
    styles = _styles(document)
    yield from (speedup_chart(group, styles) for group in settings)
    yield from (forecast_chart(group, styles) for group in settings)
    yield from side_by_side_charts(document.side_by_side, document.cells)
    yield from crossover_charts(document.crossovers)
    yield from context_charts(document.context_curves)
    yield from rows_pareto_charts(sections(document), styles)
    yield from memory_pareto_charts(settings, styles)
    yield from time_line_charts(document.time_lines)
    # What is accepted does not depend on the batch size: the fewest stand for all.
    fewest = _fewest_rows(settings)
    yield from (acceptance_chart(group, styles) for group in fewest)
    for group in fewest:
        for label in dict.fromkeys(label for section in group for label in section.series):
            yield round_time_chart(group, label)
    for target in dict.fromkeys(record.target for record in document.memory):
        records = [record for record in document.memory if record.target == target]
        yield memory_chart(records, document.longest_context.get(target, 0), document.run.keys)


def _fewest_rows(settings: Sequence[tuple[Section, ...]]) -> tuple[tuple[Section, ...], ...]:
    groups: dict[Condition, tuple[Section, ...]] = {}
    for group in sorted(settings, key=lambda group: group[0].condition.concurrency):
        across = group[0].condition.without("workload", "concurrency")
        groups.setdefault(across, group)
    return tuple(group for group in settings if group in groups.values())


def _styles(document: Document) -> Mapping[str, SeriesStyle]:
    """Colours by the order of the plan, so that a label keeps its own from run to run."""
    keys = [plan.key for plan in document.run.cells if plan.key.draft.k > 0]
    return {
        label: SeriesStyle(colour=SERIES[i % len(SERIES)], marker=MARKERS[i % len(MARKERS)])
        for i, label in enumerate(dict.fromkeys(key.source for key in keys))
    }


_TEMPLATE = Path(__file__).with_name("template.html")
_CHIPS = {
    Verdict.HELPS: ("good", "speculate"),
    Verdict.GAINS_NOTHING: ("bad", "do not speculate"),
    Verdict.NOT_SHOWN: ("open", "undecided"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What the template shows of one run."""

    id: str
    question: str
    setup: str
    answers: tuple[Answer, ...]
    compromises: list[str]
    which_pass: str
    notes: dict[str, list[str]]  # by heading
    charts: tuple[Chart, ...]
    comparisons: tuple[Grid, ...]
    results: tuple[Grid, ...]
    legend: str
    sessions: Grid | None
    sessions_legend: str
    positions: tuple[Grid, ...]
    memory: Grid | None
    metrics: tuple[Grid, ...]
    facts: tuple[Fact, ...]
    models: Grid | None


def to_html(documents: Sequence[Document]) -> str:
    """One page for one or more runs, one after the other; all text is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["without_workload"] = without_workload
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        runs=[_run(document) for document in documents],
        chips=_CHIPS,
        formulas=formulas(tuple(documents)),
    )


def _run(document: Document) -> _Run:
    every = sections(document)
    return _Run(
        id=document.run.run_id,
        question=question(document),
        setup=setup(document),
        answers=tuple(map(answer, every)),
        compromises=[*compromise_lines(document), *forecast_lines(document)],
        which_pass=which_pass(document),
        notes=notes(document),
        charts=charts(document),
        comparisons=comparison_grids(document),
        results=tuple(result_grid(section) for section in every if section.measured),
        legend=" ".join(filter(None, (result_legend(every), forecast_legend(document)))),
        sessions=sessions_grid(document),
        sessions_legend=sessions_legend(document),
        positions=tuple(grid for grid in map(position_grid, every) if grid),
        memory=memory_grid(document),
        metrics=tuple(grid for section in every for grid in metric_grids(section)),
        facts=provenance(document),
        models=model_grid(document),
    )
