"""The pictures that people look at first. Imports matplotlib."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from specbench.records import Condition
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
from specbench.report.document import Document
from specbench.report.sections import Section, by_setting, sections


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
        across = replace(group[0].condition, workload="", concurrency=1)
        groups.setdefault(across, group)
    return tuple(group for group in settings if group in groups.values())


def _styles(document: Document) -> Mapping[str, SeriesStyle]:
    """Colours by the order of the plan, so that a label keeps its own from run to run."""
    keys = [plan.key for plan in document.run.cells if plan.key.draft.k > 0]
    return {
        label: SeriesStyle(colour=SERIES[i % len(SERIES)], marker=MARKERS[i % len(MARKERS)])
        for i, label in enumerate(dict.fromkeys(key.source for key in keys))
    }
