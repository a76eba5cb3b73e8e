"""The speed-up of every prompt, a row a drafter: is it all of the text, or a few prompts?"""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes

from specbench.decide.reasons import speedup_text
from specbench.records import CellKey, Decision
from specbench.report.charts.canvas import Chart, Label, Panels, SeriesStyle
from specbench.report.charts.svg import INK, hover
from specbench.report.sections import Section, drafter_of

_CAPTION = (
    "Each dot is a prompt: its decode seconds at K=0 / at the K that the answer is about, from the "
    "measurement that the answer quotes. Bar: 95% interval over prompts. Dashed: no speculation."
)
_MOST_DOTS = 300  # of a row: more only make a longer smear
_SWARM = (0.0, 0.16, -0.08, 0.08, -0.16)  # heights of neighbours, so that they do not hide another

Prompts = Mapping[CellKey, Mapping[str, float]]  # of a decision's cell: speed-up by prompt


def prompts_chart(
    group: Sequence[Section], styles: Mapping[str, SeriesStyle], found: Prompts
) -> Chart | None:
    """A panel a workload; None where no prompt is known by itself, as where requests overlap."""
    rows = {
        section.title: [decision for decision in section.decisions if found.get(decision.leader)]
        for section in group
    }
    drawn = [section for section in group if rows[section.title]]
    if not drawn:
        return None
    every = [one for section in drawn for one in rows[section.title]]
    panels = Panels([section.condition.workload for section in drawn], [*map(_name, every)])
    for ax, section in zip(panels.axes, drawn, strict=True):
        ax.axvline(1.0, color=INK, alpha=0.6, linewidth=0.8, linestyle=(0, (4, 3)))
        for row, decision in enumerate(rows[section.title]):
            style = styles[decision.leader.source]
            _draw(ax, -row, decision, found[decision.leader], style)
    most = max(len(rows[section.title]) for section in drawn)
    panels.axes[0].set_ylim(-most + 0.4, 0.6)
    panels.hide_y()
    fastest = max(max(found[decision.leader].values()) for decision in every)
    panels.set_amount(max(fastest, 1.0) * 1.02, "decode speed-up")
    panels.label_ends(
        [
            [
                Label(-row, _name(decision), styles[decision.leader.source].colour)
                for row, decision in enumerate(rows[section.title])
            ]
            for section in drawn
        ]
    )
    over = any(len(found[decision.leader]) > _MOST_DOTS for decision in every)
    caption = (
        f"{_CAPTION} Of more than {_MOST_DOTS} prompts every n-th is drawn." if over else _CAPTION
    )
    return panels.chart("Speed-up of each prompt", drawn[0].condition.label, caption)


def dots(speedups: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Prompts with their speed-ups from low to high, evenly picked where there are very many."""
    ranked = sorted(speedups.items(), key=lambda one: one[1])
    step = max(1, -(-len(ranked) // _MOST_DOTS))
    yield from ranked[::step]


def _name(decision: Decision) -> str:
    return f"{drafter_of(decision.leader.source)} {decision.leader.draft.length.named}"


def _draw(
    ax: Axes, row: int, decision: Decision, speedups: Mapping[str, float], style: SeriesStyle
) -> None:
    shown = list(dots(speedups))
    heights = [row + _SWARM[i % len(_SWARM)] for i in range(len(shown))]
    (line,) = ax.plot(
        [speedup for _, speedup in shown],
        heights,
        linestyle="none",
        marker=style.marker,
        markersize=4,
        color=style.colour,
        alpha=0.75,
    )
    hover(line, *(f"{prompt}: {speedup:.2f}x" for prompt, speedup in shown))
    interval = decision.speedup
    if interval is not None and interval.low is not None and interval.high is not None:
        bar = ax.hlines(row - 0.32, interval.low, interval.high, color=INK, linewidth=2.4)
        hover(bar, f"{_name(decision)}: {speedup_text(interval)}")
