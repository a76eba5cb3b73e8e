"""The report as one self-contained HTML page, which is readable without scripts."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from specbench.report.blocks import formulas_part, run_report
from specbench.report.charts.canvas import drawing
from specbench.report.charts.speedups import answers_charts
from specbench.report.comparisons import answers_grid, differences_grid
from specbench.report.document import Document
from specbench.report.pictures import pictures
from specbench.untrusted import plain

_TEMPLATE = Path(__file__).with_name("template.html")
_SCRIPT = Path(__file__).with_name("table.js")
_COLORS = {"faster": "good", "no speedup": "bad", "undecided": "open", "not measured": "muted"}


def to_html(documents: Sequence[Document]) -> str:
    """One page for one or more runs, a comparison of several first; all text is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["kind"] = lambda block: type(block).__name__
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    with drawing():
        charts_of_runs = tuple(answers_charts(documents))
    page: str = template.render(
        answers=answers_grid(documents),
        answers_charts=charts_of_runs,
        differences=differences_grid(documents),
        script=_SCRIPT.read_text(encoding="utf-8"),
        runs=[(run_report(document), pictures(document)) for document in documents],
        colors=_COLORS,
        formulas=formulas_part(documents),
    )
    return plain(page)
