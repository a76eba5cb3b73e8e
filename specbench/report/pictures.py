"""The charts of a run by what they are for: the proof of the answer, its costs, other evidence."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from specbench.records import Condition
from specbench.report.charts.bars import memory_chart, round_time_chart, side_by_side_charts
from specbench.report.charts.canvas import MARKERS, SERIES, Chart, SeriesStyle, drawing
from specbench.report.charts.lines import (
    acceptance_chart,
    machine_chart,
    memory_pareto_charts,
    rows_pareto_charts,
    time_line_charts,
)
from specbench.report.charts.speedups import (
    context_charts,
    crossover_charts,
    forecast_chart,
    prompts_chart,
    speedup_chart,
)
from specbench.report.document import Document
from specbench.report.memory import memory_rows
from specbench.report.sections import Section, by_setting, sections


class Pictures(NamedTuple):
    """The charts for which there is data; equal documents give equal bytes."""

    proof: tuple[Chart, ...]  # one at most: the first question's speed-up, else its forecast
    costs: tuple[Chart, ...]
    evidence: tuple[Chart, ...]

    @property
    def all(self) -> tuple[Chart, ...]:
        """In the order of a reader."""
        return (*self.proof, *self.costs, *self.evidence)


def pictures(document: Document) -> Pictures:
    """Draw them."""
    every = sections(document)
    settings, styles = by_setting(every), _styles(document)
    fewest = _fewest_rows(settings)
    with drawing():
        answering = _known(
            (speedup_chart(group, styles) for group in settings),
            (forecast_chart(group, styles) for group in settings),
        )
        return Pictures(
            proof=answering[:1],
            costs=_known(_costs(document, settings, fewest, styles)),
            evidence=(
                *answering[1:],
                *_known(prompts_chart(group, styles, document.prompts) for group in settings),
                *side_by_side_charts(document.side_by_side, document.cells),
                *crossover_charts(document.crossovers),
                *context_charts(document.context_curves),
                *rows_pareto_charts(every, styles),
                *time_line_charts(document.time_lines),
                *_known([machine_chart(document.moments, document.run.environment.device)]),
                *_known(acceptance_chart(group, styles) for group in fewest),
            ),
        )


def _costs(
    document: Document,
    settings: Sequence[tuple[Section, ...]],
    fewest: Sequence[tuple[Section, ...]],
    styles: Mapping[str, SeriesStyle],
) -> Iterator[Chart | None]:
    for group in fewest:
        for label in dict.fromkeys(label for section in group for label in section.series):
            yield round_time_chart(group, label)
    rows = memory_rows(document)
    for target in dict.fromkeys(row.record.target for row in rows):
        yield memory_chart([row for row in rows if row.record.target == target])
    yield from memory_pareto_charts(settings, styles)


def _known(*charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in chain(*charts) if chart is not None)


def _fewest_rows(settings: Sequence[tuple[Section, ...]]) -> tuple[tuple[Section, ...], ...]:
    """The groups with the lowest concurrency, for charts that do not depend on it, such as
    acceptance.
    """
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
