"""The charts of a history."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from specbench.gate.history import History, Series
from specbench.report.charts.canvas import DASHED, SERIES, VERIFY, Chart, Panels, drawing
from specbench.report.numbers import Scale, plural, scale_of

_FITTING = 27  # characters above a panel
_CAPTION = (
    "One point per run, oldest on the left, with its 95% interval if it has one. Lines are the "
    "levels between change points; a dashed line marks a change point, a slanted line is a trend."
)


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
        yield panels.chart(metric, plural(len(group), "cell"), _CAPTION)


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
        ax.axvline(step.run_index + 0.5, **DASHED)
