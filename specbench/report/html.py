"""The report as one self-contained HTML page, which is readable without scripts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from specbench.report.blocks import (
    ReportPart,
    RunReport,
    formulas_part,
    run_report,
    side_by_side_part,
)
from specbench.report.charts.canvas import Chart, drawing
from specbench.report.charts.speedups import answers_charts
from specbench.report.document import Document
from specbench.report.pictures import Pictures, pictures
from specbench.untrusted import plain

_TEMPLATE = Path(__file__).with_name("template.html")
_SCRIPT = Path(__file__).with_name("table.js")
_COLORS = {"faster": "good", "no speedup": "bad", "undecided": "open", "not measured": "muted"}


def to_html(documents: Sequence[Document]) -> str:
    """One page for one or more runs, a comparison of several first; all text is escaped."""
    with drawing():
        charts_of_runs = tuple(answers_charts(documents))
    return page(
        side_by_side_part(documents),
        {"answers": charts_of_runs},
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
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["kind"] = lambda block: type(block).__name__
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return plain(
        template.render(
            head=head,
            charts=charts,
            runs=runs,
            formulas=formulas,
            colors=_COLORS,
            script=_SCRIPT.read_text(encoding="utf-8"),
        )
    )
