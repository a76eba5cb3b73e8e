"""A history as one self-contained HTML page. Imports matplotlib."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from specbench.gate.history import History, Series
from specbench.report.charts.canvas import INK, SERIES, VERIFY, Chart, Panels, drawing
from specbench.report.history_lines import change_lines, history_grid, left_out_lines
from specbench.report.numbers import Scale, scale_of
from specbench.untrusted import plain

_FITTING = 27  # characters above a panel
_CAPTION = (
    "One point per run, oldest on the left, with its 95% interval if it has one. Lines are the "
    "levels between change points; a dashed line marks a change point, a slanted line is a trend."
)
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; border-bottom: 1px solid #8884; }
svg { width: var(--width); max-width: 100%; height: auto; }
figcaption { opacity: .75; }
"""


def to_page(history: History) -> str:
    """The page of a history; equal histories give equal bytes."""
    return plain("\n".join(_lines(history))) + "\n"


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
        yield f"<figure><h2>{escape(chart.title)}</h2>"
        yield from chart.panels
        yield f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    yield f"<table><tr>{_cells('th', grid.headers)}</tr>"
    yield from (f"<tr>{_cells('td', row)}</tr>" for row in grid.rows)
    yield "</table>"
    notes = [history.false_alarms, *left_out_lines(history)]
    yield from (f"<p>{escape(line)}</p>" for line in notes)
    yield "</body></html>"


def _cells(tag: str, texts: tuple[str, ...]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def history_charts(history: History) -> tuple[Chart, ...]:
    """One chart per metric with one panel per cell; none for a series of one run."""
    drawn = [series for series in history.series if len(series.points) > 1]
    with drawing():
        return tuple(_charts(drawn))


def _charts(drawn: Sequence[Series]) -> Iterator[Chart]:
    for metric in dict.fromkeys(series.metric for series in drawn):
        group = [series for series in drawn if series.metric == metric]
        names = [series.key.label for series in group]
        # A name is above its panel, which is widened for long names.
        panels = Panels(names, [" " * max(3, max(map(len, names)) - _FITTING)])
        largest = max(max(series.values) for series in group)
        scale = scale_of(group[0].unit, largest)
        for ax, series in zip(panels.axes, group, strict=True):
            _draw(ax, series, scale)
        panels.name_y(f"{metric.replace('_', ' ')}, {scale.unit}")
        panels.axes[0].yaxis.set_major_locator(MaxNLocator(nbins=5))
        panels.set_x(1, max(len(series.points) for series in group), "run")
        yield panels.chart(metric, f"{len(group)} cells", _CAPTION)


def _draw(ax: Axes, series: Series, scale: Scale) -> None:
    runs = range(1, len(series.points) + 1)
    values = [value * scale.factor for value in series.values]
    ax.plot(runs, values, color=SERIES[0], marker="o", markersize=3, linestyle="none")
    for run, point in zip(runs, series.points, strict=True):
        if point.low is not None and point.high is not None:
            ends = [point.low * scale.factor, point.high * scale.factor]
            ax.plot([run, run], ends, color=SERIES[0], alpha=0.5, linewidth=0.8)
    if series.trend is not None:
        middle = (len(values) + 1) / 2
        height = sorted(values)[len(values) // 2]
        slope = series.trend.slope * scale.factor
        ax.plot(runs, [height + slope * (run - middle) for run in runs], color=VERIFY, linewidth=1)
        return
    borders = [0, *(step.run_index for step in series.steps), len(values)]
    for first, end in pairwise(borders):
        level = sum(values[first:end]) / (end - first)
        ax.plot([first + 0.6, end + 0.4], [level, level], color=VERIFY, linewidth=1)
    for step in series.steps:
        ax.axvline(step.run_index + 0.5, color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (4, 3)))
