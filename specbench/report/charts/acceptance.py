"""Acceptance per position, a panel a workload: how deep do drafts hold?"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from specbench.records import CellSummary
from specbench.report.charts.canvas import Chart, Label, Panels, SeriesStyle
from specbench.report.numbers import series
from specbench.report.sections import Section, drafter_of

_ENOUGH_ROUNDS = 20  # fewer make a conditional rate jump
_CAPTION = (
    "Solid: share of all rounds that accept at least this many drafted tokens. Dotted: share "
    f"among rounds that accepted the previous position, where at least {_ENOUGH_ROUNDS} rounds "
    "got that far. Each drafter at its largest valid K."
)
_DOTTED = (0, (1, 1.8))


def acceptance_chart(group: Sequence[Section], styles: Mapping[str, SeriesStyle]) -> Chart | None:
    """Joint and conditional rates of each pairing; None where no rounds are known."""
    drawn = [section for section in group if section.deepest]
    if not drawn:
        return None
    cells = [cell for section in drawn for cell in section.deepest]
    last = max(2, *(cell.key.draft.k for cell in cells))
    panels = Panels(
        [section.condition.workload for section in drawn],
        [drafter_of(c.key.source) for c in cells],
    )
    for ax, section in zip(panels.axes, drawn, strict=True):
        for cell in section.deepest:
            _draw_lines(ax, cell, styles[cell.key.source])
        ax.set_ylim(-0.02, 1.04)
    panels.set_x(1, last, "position in the draft")
    panels.name_y("accepted", lambda y, _: f"{y:.0%}")
    panels.label_ends([_names(section, styles) for section in drawn])
    return panels.chart("Acceptance per position", drawn[0].condition.label, _CAPTION)


def _draw_lines(ax: Axes, cell: CellSummary, style: SeriesStyle) -> None:
    joint, conditional = _joint(cell), _conditional(cell)
    positions = range(1, len(joint) + 1)
    ax.plot(positions, joint, color=style.colour, marker=style.marker, markersize=4)
    ax.plot(
        positions[: len(conditional)],
        conditional,
        color=style.colour,
        linestyle=_DOTTED,
        linewidth=1.2,
    )


def _names(section: Section, styles: Mapping[str, SeriesStyle]) -> list[Label]:
    return [
        Label(_joint(cell)[-1], drafter_of(label), styles[label].colour)
        for cell in section.deepest
        for label in [cell.key.source]
    ]


def _joint(cell: CellSummary) -> tuple[float, ...]:
    return series(cell.metrics.get("acceptance_rate_per_position"))


def _conditional(cell: CellSummary) -> tuple[float, ...]:
    """The conditional rates that enough rounds support."""
    histogram = series(cell.metrics.get("acceptance_histogram"))
    rates = series(cell.metrics.get("conditional_acceptance_rate"))
    return tuple(rate for i, rate in enumerate(rates) if sum(histogram[i:]) >= _ENOUGH_ROUNDS)
