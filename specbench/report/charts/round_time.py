"""Where the round time goes, against what it yields: the bar must stay below the tick."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from specbench.records import CellSummary
from specbench.report.charts.canvas import DRAFT, REST, VERIFY, Chart, Label, Panels
from specbench.report.charts.svg import INK, hover
from specbench.report.numbers import measured, scalar
from specbench.report.sections import Section

_CAPTION = (
    "Bars: cost of a round, in steps of the target alone (dashed: one step, the round at K=0). "
    "Line across each bar: tokens per round. Speculation pays off where the line is above the "
    "bar, by the ratio of the two. Pale bars are invalid."
)
_BAR_WIDTH = 0.66
_YIELD = "tokens"


class Part(NamedTuple):
    """A share of a round, in baseline steps."""

    name: str
    steps: float
    colour: str


def round_time_chart(group: Sequence[Section], label: str) -> Chart | None:
    """A panel a workload, a bar a K; None where rounds are not timed."""
    drawn = [section for section in group if any(map(parts, section.fixed(label)))]
    if not drawn:
        return None
    cells = [cell for section in drawn for cell in section.fixed(label)]
    names = [part.name for cell in cells for part in parts(cell)]
    panels = Panels([_panel_title(section) for section in drawn], [_YIELD, *names])
    for ax, section in zip(panels.axes, drawn, strict=True):
        panels.reference_line(ax)
        ax.bar(0, 1, width=_BAR_WIDTH, color=REST, alpha=0.6)
        for cell in section.fixed(label):
            _draw_bar(ax, cell)
    panels.set_x(0, max(c.key.draft.k for c in cells), "K, drafted tokens per round")
    panels.name_y("baseline steps")
    panels.label_ends([_names(section.fixed(label)) for section in drawn])
    setting = f"{label}: {drawn[0].condition.label}"
    return panels.chart("Where the round time goes", setting, _CAPTION)


def parts(cell: CellSummary) -> tuple[Part, ...]:
    """A round from its start to its end; one part where it cannot be told apart, or none."""
    whole = scalar(cell.metrics.get("break_even_length"))
    draft = scalar(cell.metrics.get("draft_cost_ratio"))
    verify = scalar(cell.metrics.get("verify_cost_ratio"))
    if whole is None:
        return ()
    if draft is None or verify is None:
        return (Part("round", whole, REST),)
    drafting = draft * cell.key.draft.k
    return (
        Part("draft", drafting, DRAFT),
        Part("verify", verify, VERIFY),
        Part("other", max(whole - drafting - verify, 0.0), REST),
    )


def _draw_bar(ax: Axes, cell: CellSummary) -> None:
    k, bottom = cell.key.draft.k, 0.0
    for part in parts(cell):
        (bar,) = ax.bar(
            k,
            part.steps,
            bottom=bottom,
            width=_BAR_WIDTH,
            color=part.colour,
            alpha=1.0 if cell.valid else 0.35,
        )
        hover(bar, f"K={k}, {part.name}: {part.steps:.2f} baseline steps")
        bottom += part.steps
    tokens = scalar(cell.metrics.get("mean_acceptance_length"))
    if tokens is not None:
        half = _BAR_WIDTH / 2 + 0.08
        line = ax.hlines(tokens, k - half, k + half, color=INK, linewidth=1.8)
        hover(line, f"K={k}: {tokens:.2f} tokens per round")


def _names(cells: Sequence[CellSummary]) -> list[Label]:
    """The parts of the last bar, and what its round yields."""
    last = [cell for cell in cells if parts(cell)][-1]
    tokens = scalar(last.metrics.get("mean_acceptance_length"))
    labels = [] if tokens is None else [Label(tokens, _YIELD, INK)]
    bottom = 0.0
    for part in parts(last):
        labels.append(Label(bottom + part.steps / 2, part.name, part.colour))
        bottom += part.steps
    return labels


def _panel_title(section: Section) -> str:
    step = scalar(section.baseline.metrics.get("round_s")) if section.baseline else None
    name = section.condition.workload
    return name if step is None else f"{name} (step: {measured(step, 's')})"
