"""A history as one HTML page that needs nothing beside it. Imports matplotlib."""

from collections.abc import Iterator
from html import escape

from specbench.gate.history import History
from specbench.report.charts.history import history_charts
from specbench.report.history_lines import change_lines, history_grid, left_out_lines

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; border-bottom: 1px solid #8884; }
svg { max-width: 100%; height: auto; }
figcaption { opacity: .75; }
"""


def to_page(history: History) -> str:
    """Equal histories give equal bytes."""
    return "\n".join(_lines(history)) + "\n"


def _lines(history: History) -> Iterator[str]:
    grid = history_grid(history)
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f"<title>specbench history</title><style>{_STYLE}</style></head><body>"
    yield "<h1>History</h1><ul>"
    yield from (
        f"<li>{escape(line)}</li>"
        for line in change_lines(history) or [("No change points or trends found")]
    )
    yield "</ul>"
    for chart in history_charts(history):
        yield f"<figure><h2>{escape(chart.title)}</h2>{chart.svg}"
        yield f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    yield f"<table><tr>{_cells('th', grid.headers)}</tr>"
    yield from (f"<tr>{_cells('td', row)}</tr>" for row in grid.rows)
    yield "</table>"
    notes = [history.false_alarms, *left_out_lines(history)]
    yield from (f"<p>{escape(line)}</p>" for line in notes)
    yield "</body></html>"


def _cells(tag: str, texts: tuple[str, ...]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
