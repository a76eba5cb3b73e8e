"""Line charts: acceptance per position, and a history."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from specbench.gate.history import History, Series
from specbench.records import CellSummary
from specbench.report.charts.canvas import (
    DASHED,
    SERIES,
    VERIFY,
    Chart,
    Label,
    Panels,
    SeriesStyle,
    drawing,
)
from specbench.report.sections import Section, drafter_of
from specbench.words.numbers import Scale, list_of, plural, scale_of

_ENOUGH_ROUNDS = 20  # fewer make a conditional rate jump
_ACCEPTANCE = (
    "Solid: share of all rounds that accept at least this many draft tokens. Dotted: share "
    f"of the rounds that accepted the previous position, if these are at least {_ENOUGH_ROUNDS}. "
    "Each drafter at its largest valid K."
)
_DOTTED = (0, (1, 1.8))


def acceptance_chart(group: Sequence[Section], styles: Mapping[str, SeriesStyle]) -> Chart | None:
    """Joint and conditional rates of each pairing; None if no rounds are known."""
    drawn = [section for section in group if section.deepest]
    if not drawn:
        return None
    cells = [cell for section in drawn for cell in section.deepest]
    last = max(2, *(cell.key.draft.k for cell in cells))
    panels = Panels(
        [section.condition.workload_label for section in drawn],
        [drafter_of(c.key.source) for c in cells],
    )
    for ax, section in zip(panels.axes, drawn, strict=True):
        for cell in section.deepest:
            _draw_lines(ax, cell, styles[cell.key.source])
        ax.set_ylim(-0.02, 1.04)
    panels.set_x(1, last, "position in the draft")
    panels.name_y("accepted", lambda y, _: f"{y:.0%}")
    panels.label_ends([_acceptance_names(section, styles) for section in drawn])
    return panels.chart("Acceptance per position", drawn[0].condition.label, _ACCEPTANCE)


def _draw_lines(ax: Axes, cell: CellSummary, style: SeriesStyle) -> None:
    joint, conditional = _joint(cell), _conditional(cell)
    positions = range(1, len(joint) + 1)
    ax.plot(positions, joint, color=style.color, marker=style.marker, markersize=4)
    ax.plot(
        positions[: len(conditional)],
        conditional,
        color=style.color,
        linestyle=_DOTTED,
        linewidth=1.2,
    )


def _acceptance_names(section: Section, styles: Mapping[str, SeriesStyle]) -> list[Label]:
    return [
        Label(_joint(cell)[-1], drafter_of(label), styles[label].color)
        for cell in section.deepest
        for label in [cell.key.source]
    ]


def _joint(cell: CellSummary) -> tuple[float, ...]:
    return list_of(cell.metrics, "acceptance_rate_per_position")


def _conditional(cell: CellSummary) -> tuple[float, ...]:
    """The conditional rates that enough rounds support."""
    histogram = list_of(cell.metrics, "acceptance_histogram")
    rates = list_of(cell.metrics, "conditional_acceptance_rate")
    return tuple(rate for i, rate in enumerate(rates) if sum(histogram[i:]) >= _ENOUGH_ROUNDS)


_NAME_CHARACTERS = 27  # that fit above a panel
_HISTORY = (
    "One point per run, oldest on the left, with its 95% interval if it has one. Lines are the "
    "levels between change points; a dashed line marks a change point, a slanted line is a trend."
)


def history_charts(history: History) -> tuple[Chart, ...]:
    """One chart per metric with one panel per cell; none for a series of one run."""
    drawn = [series for series in history.series if len(series.points) > 1]
    with drawing():
        return tuple(_history_charts(drawn))


def _history_charts(drawn: Sequence[Series]) -> Iterator[Chart]:
    for metric in dict.fromkeys(series.metric for series in drawn):
        group = [series for series in drawn if series.metric == metric]
        names = [series.key.label for series in group]
        # A name is above its panel, which is widened for long names.
        panels = Panels(names, [" " * max(3, max(map(len, names)) - _NAME_CHARACTERS)])
        largest = max(max(series.values) for series in group)
        scale = scale_of(group[0].unit, largest)
        for ax, series in zip(panels.axes, group, strict=True):
            _draw_series(ax, series, scale)
        panels.name_y(f"{metric.replace('_', ' ')}, {scale.unit}")
        panels.axes[0].yaxis.set_major_locator(MaxNLocator(nbins=5))
        panels.set_x(1, max(len(series.points) for series in group), "run")
        yield panels.chart(metric, plural(len(group), "cell"), _HISTORY)


def _draw_series(ax: Axes, series: Series, scale: Scale) -> None:
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
