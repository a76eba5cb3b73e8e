"""The report as one self-contained HTML page, which is readable without scripts, and its charts by
purpose: proof of the answer, costs, other evidence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined, Template

from specbench.records import Condition, SpeedupVerdict
from specbench.report.blocks import (
    ReportPart,
    RunReport,
    formulas_part,
    run_report,
    side_by_side_part,
)
from specbench.report.charts.bars import memory_chart, round_time_chart
from specbench.report.charts.canvas import Chart, drawing, series_styles
from specbench.report.charts.lines import acceptance_chart
from specbench.report.charts.speedups import (
    context_charts,
    crossover_charts,
    prompts_chart,
    speedup_chart,
)
from specbench.report.document import Document
from specbench.report.memory import memory_rows
from specbench.report.sections import Section, by_setting, sections
from specbench.untrusted import plain


class Pictures(NamedTuple):
    """The charts for which there is data; equal documents give equal bytes."""

    proof: tuple[Chart, ...]  # one at most: the first question's speedup
    costs: tuple[Chart, ...]
    evidence: tuple[Chart, ...]

    @property
    def all(self) -> tuple[Chart, ...]:
        """All charts, in reading order."""
        return (*self.proof, *self.costs, *self.evidence)


def pictures(document: Document) -> Pictures:
    """Draws the charts of a run."""
    settings = by_setting(sections(document))
    # In the order of the plan, so that a label has the same color in every run.
    styles = series_styles(key.source for key in document.run.keys if key.draft.k > 0)
    at_lowest = _at_lowest_concurrency(settings)
    with drawing():
        speedups = _known(speedup_chart(group, styles) for group in settings)
        return Pictures(
            proof=speedups[:1],
            costs=_known(_costs(document, at_lowest)),
            evidence=(
                *speedups[1:],
                *_known(prompts_chart(group, styles, document.prompts) for group in settings),
                *crossover_charts(document.crossovers),
                *context_charts(document.context_curves),
                *_known(acceptance_chart(group, styles) for group in at_lowest),
            ),
        )


def _costs(document: Document, at_lowest: Sequence[tuple[Section, ...]]) -> Iterator[Chart | None]:
    for group in at_lowest:
        for label in dict.fromkeys(label for section in group for label in section.labels):
            yield round_time_chart(group, label)
    rows = memory_rows(document)
    for target in dict.fromkeys(row.record.target for row in rows):
        yield memory_chart([row for row in rows if row.record.target == target])


def _known(charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in charts if chart is not None)


def _at_lowest_concurrency(
    settings: Sequence[tuple[Section, ...]],
) -> tuple[tuple[Section, ...], ...]:
    """The groups with the lowest concurrency, for charts that do not depend on it, such as
    acceptance.
    """
    groups: dict[Condition, tuple[Section, ...]] = {}
    for group in sorted(settings, key=lambda group: group[0].condition.concurrency):
        group_key = group[0].condition.without("workload", "concurrency")
        groups.setdefault(group_key, group)
    return tuple(group for group in settings if group in groups.values())


_TEMPLATE = Path(__file__).with_name("template.html")
_SCRIPT = Path(__file__).with_name("table.js")
_COLORS = {
    SpeedupVerdict.FASTER: "good",
    SpeedupVerdict.NO_SPEEDUP: "bad",
    SpeedupVerdict.UNDECIDED: "open",
    SpeedupVerdict.NOT_MEASURED: "muted",
}


def to_html(documents: Sequence[Document]) -> str:
    """One page for one or more runs, a comparison of several first; all text is escaped."""
    return page(
        side_by_side_part(documents),
        {},
        runs=[(run_report(document), pictures(document)) for document in documents],
        formulas=formulas_part(documents),
    )


def page(
    head: ReportPart,
    charts: Mapping[str, Sequence[Chart]],
    *,
    runs: Sequence[tuple[RunReport, Pictures]] = (),
    formulas: ReportPart | None = None,
) -> str:
    """A page of a part and the reports of runs; equal content gives equal bytes."""
    return plain(
        _template().render(
            head=head,
            charts=charts,
            runs=runs,
            formulas=formulas,
            colors=_COLORS,
            script=_SCRIPT.read_text(encoding="utf-8"),
        )
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
