"""Bar charts: round time by part, and memory by purpose."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.metrics.registry import number_of
from specbench.records import CellSummary
from specbench.report.charts.canvas import (
    DRAFT,
    INK,
    K_AXIS,
    PALE,
    REST,
    VERIFY,
    Chart,
    Label,
    Panels,
    chart,
    hover,
    shorten,
    text_inches,
)
from specbench.report.memory import EVERYTHING_ELSE, MemoryRow
from specbench.report.sections import Section
from specbench.words.numbers import measured, memory_scale

_ROUND_TIME = (
    "Bars: cost of a round, in steps of the target without drafts (dashed: one step, K=0). "
    "Line across each bar: tokens per round. Speculation pays off if the line is above the "
    "bar: the speedup is tokens / cost. Pale bars are invalid."
)
_BAR_WIDTH = 0.66
_YIELD = "tokens"


class RoundPart(NamedTuple):
    """A share of a round, in baseline steps."""

    name: str
    steps: float
    color: str


def round_time_chart(group: Sequence[Section], label: str) -> Chart | None:
    """One panel per workload and one bar per K; None if rounds are not timed."""
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
    panels.set_x(0, max(c.key.draft.k for c in cells), K_AXIS)
    panels.name_y("baseline steps")
    panels.label_ends([_part_names(section.fixed(label)) for section in drawn])
    title = f"Where the round time goes: {label}"
    return panels.chart(title, drawn[0].condition.label, _ROUND_TIME)


def parts(cell: CellSummary) -> tuple[RoundPart, ...]:
    """The parts of a round in order; one part if only the round is timed, or none."""
    whole = number_of(cell.metrics, "break_even_length")
    draft = number_of(cell.metrics, "draft_cost_ratio")
    verify = number_of(cell.metrics, "verify_cost_ratio")
    if whole is None:
        return ()
    if draft is None or verify is None:
        return (RoundPart("round", whole, REST),)
    drafting = draft * cell.key.draft.k
    return (
        RoundPart("draft", drafting, DRAFT),
        RoundPart("verify", verify, VERIFY),
        RoundPart("other", max(whole - drafting - verify, 0.0), REST),
    )


def _draw_bar(ax: Axes, cell: CellSummary) -> None:
    k, bottom = cell.key.draft.k, 0.0
    for part in parts(cell):
        (bar,) = ax.bar(
            k,
            part.steps,
            bottom=bottom,
            width=_BAR_WIDTH,
            color=part.color,
            alpha=1.0 if cell.valid else PALE,
        )
        hover(bar, f"K={k}, {part.name}: {part.steps:.2f} baseline steps")
        bottom += part.steps
    tokens = number_of(cell.metrics, "mean_acceptance_length")
    if tokens is not None:
        half = _BAR_WIDTH / 2 + 0.08
        line = ax.hlines(tokens, k - half, k + half, color=INK, linewidth=1.8)
        hover(line, f"K={k}: {tokens:.2f} tokens per round")


def _part_names(cells: Sequence[CellSummary]) -> list[Label]:
    """The names of the last bar's parts and of its line."""
    last = [cell for cell in cells if parts(cell)][-1]
    tokens = number_of(last.metrics, "mean_acceptance_length")
    labels = [] if tokens is None else [Label(tokens, _YIELD, INK)]
    bottom = 0.0
    for part in parts(last):
        labels.append(Label(bottom + part.steps / 2, part.name, part.color))
        bottom += part.steps
    return labels


def _panel_title(section: Section) -> str:
    step = number_of(section.baseline.metrics, "round_s") if section.baseline else None
    name = section.condition.workload_label
    return name if step is None else f"{name} (step: {measured(step, 's')})"


# As wide as a phone, so names are above their bars.
_PLOT_INCHES, _SIDE_INCHES = 3.5, 0.1
_TEXT_INCHES = 3.9  # digits are narrower than letters
_BAR_INCHES, _TOP_INCHES, _BOTTOM_INCHES = 0.48, 0.35, 0.5
_MEMORY = (
    "Weights and KV cache are computed, for the longest context of this run. "
    f"{EVERYTHING_ELSE} The table has the same figures."
)


def memory_chart(rows: Sequence[MemoryRow]) -> Chart:
    """A stacked bar for the target and one for each drafter."""
    bars = _BAR_INCHES * len(rows)
    size = _PLOT_INCHES + 2 * _SIDE_INCHES, _TOP_INCHES + bars + _BOTTOM_INCHES
    figure = Figure(figsize=size)
    ax = figure.add_axes(
        (
            _SIDE_INCHES / size[0],
            _BOTTOM_INCHES / size[1],
            _PLOT_INCHES / size[0],
            bars / size[1],
        )
    )
    scale = memory_scale(max(row.need.total for row in rows))
    left = [0.0] * len(rows)
    parts = (
        ("weights", VERIFY, [row.need.weights for row in rows]),
        ("KV cache", DRAFT, [row.need.kv_cache for row in rows]),
        ("everything else", REST, [row.need.rest or 0 for row in rows]),
    )
    for name, color, sizes in parts:
        if not any(sizes):
            continue
        widths = [size * scale.factor for size in sizes]
        drawn = ax.barh(range(len(rows)), widths, left=left, height=0.42, color=color, label=name)
        for bar, row, num_bytes in zip(drawn, rows, sizes, strict=True):
            hover(bar, f"{row.name}, {name}: {measured(num_bytes, 'bytes')}")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for i, row in enumerate(rows):
        ax.annotate(
            _memory_text(row), (0, i - 0.21), (0, 2), textcoords="offset points", va="bottom"
        )
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_ylim(len(rows) - 0.7, -0.7)
    ax.set_xlim(0, max(left) * 1.02 or 1)
    ax.set_xlabel(scale.unit, loc="left")
    ax.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(parts),
        handlelength=1,
        columnspacing=1,
        borderaxespad=0.2,
        borderpad=0,
    )
    first = rows[0]
    setting = f"{first.record.target}, one request of {first.context:,} tokens"
    title = "Memory of the target, and with each drafter"
    return chart([figure], title, setting, _MEMORY)


def _memory_text(row: MemoryRow) -> str:
    """The name, the total, and the cost of speculation."""
    figures = f": {measured(row.need.total, 'bytes')}"
    if row.cost_bytes is not None:
        figures += f", speculation costs {measured(row.cost_bytes, 'bytes')}"
    return shorten(row.name, _TEXT_INCHES - text_inches([figures])) + figures
