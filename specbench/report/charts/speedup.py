"""Speed-up against K, a panel a workload: where is the top, and is it above 1?"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from specbench.decide.reasons import k_text, units_of
from specbench.records import CellSummary
from specbench.report.charts.canvas import Chart, Label, Panels, SeriesStyle, draw_speedup
from specbench.report.numbers import scalar
from specbench.report.sections import Section, drafter_of
from specbench.stats.spread import MIN_UNITS

_OF_REQUESTS = "Decode seconds at K=0 / decode seconds at K, over the same prompts."
_OF_PASSES = "Tokens per second at K / at K=0 with a full batch."
_OF_ARRIVALS = "Seconds per token of each request at K=0 / at K, with the same arrival times."
_MARKS = (
    "Dashed: no speculation. The large point is the chosen K; hollow points are invalid and not "
    "used; pale ones have fewer prompts than an interval needs. A star is an adaptive K, at its "
    "mean. All points are from the first pass."
)
_PALE = 0.35


def speedup_chart(group: Sequence[Section], styles: Mapping[str, SeriesStyle]) -> Chart | None:
    """One line a pairing, with its intervals; None without a speed-up."""
    drawn = [section for section in group if any(cell.speedup for cell in section.cells)]
    if not drawn:
        return None
    names = [drafter_of(label) for section in drawn for label in section.series]
    panels = Panels([section.condition.workload for section in drawn], names)
    for ax, section in zip(panels.axes, drawn, strict=True):
        panels.reference_line(ax)
        for i, label in enumerate(section.series):
            shift = 0.1 * (i - (len(section.series) - 1) / 2)  # intervals stay apart
            _draw_line(ax, section, label, styles[label], shift)
    last = max(c.key.draft.k for s in drawn for c in s.cells)
    panels.set_x(0, last, "K, drafted tokens per round")
    panels.name_y("decode speed-up")
    panels.axes[0].margins(y=0.12)  # room for the mark of the chosen K
    panels.axes[0].yaxis.set_major_formatter("{x:g}x")
    panels.label_ends([_names(section, styles) for section in drawn])
    return panels.chart("Speed-up against K", drawn[0].condition.label, _caption(drawn))


def _caption(drawn: Sequence[Section]) -> str:
    question = drawn[0].condition
    what = _OF_PASSES if question.concurrency > 1 else _OF_REQUESTS
    if question.request_rate is not None:
        what = _OF_ARRIVALS
    over = "passes" if question.is_stream else "prompts"
    if any(units_of(cell).are_cycles for section in drawn for cell in section.cells):
        over = "cycles of sessions" if question.is_stream else "prompts and cycles of sessions"
    return f"{what} Bars: 95% intervals over {over}. {_MARKS}"


def _draw_line(ax: Axes, section: Section, label: str, style: SeriesStyle, shift: float) -> None:
    points = [
        (0.0, 1.0),
        *(
            (_k(c) + shift, c.speedup.estimate)
            for c in section.fixed(label)
            if c.valid and c.speedup
        ),
    ]
    ax.plot(*zip(*points, strict=True), color=style.colour, zorder=3)
    for cell in section.of(label):
        if cell.speedup is None:
            continue
        x, speedup, is_chosen = _k(cell) + shift, cell.speedup, section.is_chosen(cell.key)
        star = None if cell.key.draft.is_fixed else "*"
        size = 8 if is_chosen or star else 3.5
        draw_speedup(
            ax,
            x,
            speedup,
            style,
            size=size,
            valid=cell.valid,
            says=f"{drafter_of(label)}, {k_text(cell)}",
            alpha=1.0 if section.is_stream or cell.num_prompts >= MIN_UNITS else _PALE,
            marker=star,
        )
        if is_chosen:
            ax.annotate(
                f"K={cell.key.draft.length.label}",
                (x, speedup.high or speedup.estimate),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=style.colour,
                fontweight="bold",
            )


def _names(section: Section, styles: Mapping[str, SeriesStyle]) -> list[Label]:
    ends = {
        label: cell.speedup.estimate
        for label in section.series
        for cell in sorted(section.of(label), key=_from_star_to_end)
        if cell.speedup
    }
    return [Label(y, drafter_of(label), styles[label].colour) for label, y in ends.items()]


def _from_star_to_end(cell: CellSummary) -> tuple[bool, int]:
    """The order in which the last one is where the line ends."""
    return cell.key.draft.is_fixed, cell.key.draft.k


def _k(cell: CellSummary) -> float:
    """Where on the axis a cell stands."""
    mean_k = scalar(cell.metrics.get("mean_num_speculative_tokens"))
    return cell.key.draft.k if mean_k is None else mean_k
