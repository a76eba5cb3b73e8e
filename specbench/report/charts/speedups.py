"""Charts of speedups with intervals: against K, concurrency and context, and of each prompt."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from matplotlib.axes import Axes

from specbench.decide.comparisons import ContextCurve, Crossover
from specbench.decide.explanation import units_of
from specbench.metrics.registry import number_of
from specbench.records import CellKey, CellSummary, Condition, Decision
from specbench.report.charts.canvas import (
    DASHED,
    INK,
    K_AXIS,
    PALE,
    Chart,
    Label,
    Panels,
    SeriesStyle,
    draw_speedup,
    hover,
    series_styles,
)
from specbench.report.sections import Section, drafter_of
from specbench.stats.spread import MIN_UNITS
from specbench.words.numbers import break_even_text, k_text, speedup_text

_OF_REQUESTS = "Decode seconds at K=0 / decode seconds at K, over the same prompts."
_OF_PASSES = "Tokens per second at K / at K=0 with a full batch."
_OF_ARRIVALS = "Seconds per token of each request at K=0 / at K, with the same arrival times."
_MARKS = (
    "Dashed: no speculation. The large point is the chosen K; hollow points are invalid and not "
    "used; pale ones have fewer prompts than an interval needs. A star is an adaptive K, at its "
    "mean. All points are from the exploration phase."
)


def speedup_chart(group: Sequence[Section], styles: Mapping[str, SeriesStyle]) -> Chart | None:
    """One line per pairing, with its intervals; None without a speedup."""
    drawn = [section for section in group if any(cell.speedup for cell in section.cells)]
    if not drawn:
        return None
    names = [drafter_of(label) for section in drawn for label in section.labels]
    panels = Panels([section.condition.workload_label for section in drawn], names)
    for ax, section in zip(panels.axes, drawn, strict=True):
        panels.reference_line(ax)
        for i, label in enumerate(section.labels):
            shift = 0.1 * (i - (len(section.labels) - 1) / 2)  # intervals stay apart
            _draw_line(ax, section, label, styles[label], shift)
    last = max(c.key.draft.k for s in drawn for c in s.cells)
    panels.set_x(0, last, K_AXIS)
    panels.name_y("decode speedup", "{x:g}x")
    panels.axes[0].margins(y=0.12)  # space for the label of the chosen K
    panels.label_ends([_speedup_names(section, styles) for section in drawn])
    return panels.chart("Speedup against K", drawn[0].condition.label, _caption(drawn))


def _caption(drawn: Sequence[Section]) -> str:
    setting = drawn[0].condition
    definition = _OF_PASSES if setting.concurrency > 1 else _OF_REQUESTS
    if setting.request_rate is not None:
        definition = _OF_ARRIVALS
    over = "passes" if setting.is_stream else "prompts"
    if any(units_of(cell).are_cycles for section in drawn for cell in section.cells):
        over = "cycles of sessions" if setting.is_stream else "prompts and cycles of sessions"
    return f"{definition} Bars: 95% intervals over {over}. {_MARKS}"


def _draw_line(ax: Axes, section: Section, label: str, style: SeriesStyle, shift: float) -> None:
    points = [
        (0.0, 1.0),
        *(
            (_k(c) + shift, c.speedup.estimate)
            for c in section.fixed(label)
            if c.valid and c.speedup
        ),
    ]
    ax.plot(*zip(*points, strict=True), color=style.color, zorder=3)
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
            name=f"{drafter_of(label)}, {k_text(cell)}",
            alpha=1.0 if section.is_stream or cell.num_prompts >= MIN_UNITS else PALE,
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
                color=style.color,
                fontweight="bold",
            )


def _speedup_names(section: Section, styles: Mapping[str, SeriesStyle]) -> list[Label]:
    ends = {
        label: cell.speedup.estimate
        for label in section.labels
        for cell in sorted(section.of(label), key=_from_star_to_end)
        if cell.speedup
    }
    return [Label(y, drafter_of(label), styles[label].color) for label, y in ends.items()]


def _from_star_to_end(cell: CellSummary) -> tuple[bool, int]:
    """A sort key: adaptive cells first, then fixed ones by K, so that the line's end is last."""
    return cell.key.draft.is_fixed, cell.key.draft.k


def _k(cell: CellSummary) -> float:
    """The position of a cell on the axis of K: an adaptive cell is at its mean K."""
    mean_k = number_of(cell.metrics, "mean_num_speculative_tokens")
    return cell.key.draft.k if mean_k is None else mean_k


Curve = TypeVar("Curve", Crossover, ContextCurve)
AnyCurve = Crossover | ContextCurve

_BARS = "Bars: 95% intervals. Dashed: no speculation. Hollow points are invalid and not used."
_ROWS = (
    "Tokens per second at K / at K=0 with a full batch; for one request, and for arrivals at a "
    "given rate, decode seconds per token at K=0 / at K. Larger batches leave less of the "
    "hardware idle, so speculation has less to gain. "
)
_CONTEXT = (
    "Decode speedup over prompts lengthened to this many tokens. The longer the context, the "
    "larger the share of a step spent reading the KV cache of target and drafter. "
)


def crossover_charts(crossovers: Sequence[Crossover]) -> Iterator[Chart]:
    """One chart per pairing and setting, with one panel per workload."""
    for named, group in _by_setting(crossovers, "concurrency"):
        panels = _curve_panels(group, "concurrent requests")
        rate = group[0].key.condition.request_rate
        setting = named if rate is None else f"{named}, {rate:g} requests per second"
        yield panels.chart("Speedup against concurrent requests", setting, _ROWS + _BARS)


def context_charts(curves: Sequence[ContextCurve]) -> Iterator[Chart]:
    """One chart per pairing and setting, with one panel per workload."""
    for named, group in _by_setting(curves, "context"):
        break_evens = "".join(
            f" Break-even on {curve.key.condition.workload} with {_curve_name(curve)}: "
            f"{break_even_text(curve.break_even)}."
            for curve in group
            if curve.break_even is not None
        )
        panels = _curve_panels(group, "tokens of context")
        yield panels.chart("Speedup against context", named, _CONTEXT + _BARS + break_evens)


def _by_setting(curves: Sequence[Curve], axis: str) -> Iterator[tuple[str, list[Curve]]]:
    """The curves of each pairing and setting, with their names."""
    groups: dict[tuple[str, Condition], list[Curve]] = {}
    for curve in curves:
        setting = curve.key.condition.without("workload", axis)
        groups.setdefault((curve.key.source, setting), []).append(curve)
    return ((f"{label}: {setting.label}", group) for (label, setting), group in groups.items())


def _curve_panels(group: Sequence[AnyCurve], meaning: str) -> Panels:
    workloads = list(dict.fromkeys(curve.key.condition.workload for curve in group))
    values = sorted({point.at for curve in group for point in curve.points})
    styles = series_styles(map(_curve_name, group))
    panels = Panels(workloads, list(styles))
    names: list[list[Label]] = []
    for ax, workload in zip(panels.axes, workloads, strict=True):
        panels.reference_line(ax)
        curves = [curve for curve in group if curve.key.condition.workload == workload]
        for i, curve in enumerate(curves):
            shift = 0.06 * (i - (len(curves) - 1) / 2)  # intervals stay apart
            _draw_curve(ax, curve, values, styles[_curve_name(curve)], shift)
        names.append([label for curve in curves for label in _curve_label(curve, styles)])
    panels.set_categories([f"{value:,}" for value in values], meaning)
    panels.name_y("speedup", "{x:g}x")
    panels.label_ends(names)
    return panels


def _curve_name(curve: AnyCurve) -> str:
    return f"K={curve.key.draft.length.label}"


def _draw_curve(
    ax: Axes, curve: AnyCurve, values: Sequence[int], style: SeriesStyle, shift: float
) -> None:
    line = [
        (values.index(p.at) + shift, p.speedup.estimate)
        for p in curve.points
        if p.valid and p.speedup
    ]
    ax.plot(*zip(*line, strict=True), color=style.color, zorder=3)
    for point in curve.points:
        if point.speedup is not None:
            x = values.index(point.at) + shift
            draw_speedup(
                ax,
                x,
                point.speedup,
                style,
                size=4,
                valid=point.valid,
                name=f"{_curve_name(curve)} at {point.at:,}",
            )


def _curve_label(curve: AnyCurve, styles: dict[str, SeriesStyle]) -> list[Label]:
    """The line's name at its end; none for a line without a point."""
    ends = [point.speedup.estimate for point in curve.points if point.speedup]
    return [Label(y, _curve_name(curve), styles[_curve_name(curve)].color) for y in ends[-1:]]


_EACH_PROMPT = (
    "Each dot is one prompt: its decode seconds at K=0 / at the K that the decision is about, from "
    "the phase that the decision quotes. Bar: 95% interval over prompts. Dashed: no speculation."
)
_MOST_DOTS = 300  # per drafter: more cannot be distinguished
_SWARM = (0.0, 0.16, -0.08, 0.08, -0.16)  # heights of successive dots, against overlap

Prompts = Mapping[CellKey, Mapping[str, float]]  # speedup by prompt of each decision's cell


def prompts_chart(
    group: Sequence[Section], styles: Mapping[str, SeriesStyle], prompts: Prompts
) -> Chart | None:
    """One panel per workload; None without speedups of prompts, as for overlapping requests."""
    rows = {
        section.title: [decision for decision in section.decisions if prompts.get(decision.leader)]
        for section in group
    }
    drawn = [section for section in group if rows[section.title]]
    if not drawn:
        return None
    decisions = [decision for section in drawn for decision in rows[section.title]]
    panels = Panels(
        [section.condition.workload_label for section in drawn], [*map(_prompts_name, decisions)]
    )
    for ax, section in zip(panels.axes, drawn, strict=True):
        ax.axvline(1.0, **DASHED)
        for row, decision in enumerate(rows[section.title]):
            style = styles[decision.leader.source]
            _draw_prompts(ax, -row, decision, prompts[decision.leader], style)
    most = max(len(rows[section.title]) for section in drawn)
    panels.axes[0].set_ylim(-most + 0.4, 0.6)
    panels.hide_y()
    fastest = max(max(prompts[decision.leader].values()) for decision in decisions)
    panels.set_amount(max(fastest, 1.0) * 1.02, "decode speedup")
    panels.label_ends(
        [
            [
                Label(-row, _prompts_name(decision), styles[decision.leader.source].color)
                for row, decision in enumerate(rows[section.title])
            ]
            for section in drawn
        ]
    )
    over = any(len(prompts[decision.leader]) > _MOST_DOTS for decision in decisions)
    caption = (
        f"{_EACH_PROMPT} If there are more than {_MOST_DOTS} prompts, every n-th is drawn."
        if over
        else _EACH_PROMPT
    )
    return panels.chart("Speedup of each prompt", drawn[0].condition.label, caption)


def dots(speedups: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Prompts with their speedups from low to high; of very many, every n-th."""
    ranked = sorted(speedups.items(), key=lambda item: item[1])
    step = max(1, -(-len(ranked) // _MOST_DOTS))
    yield from ranked[::step]


def _prompts_name(decision: Decision) -> str:
    return f"{drafter_of(decision.leader.source)} {decision.leader.draft.length.named}"


def _draw_prompts(
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
        color=style.color,
        alpha=0.75,
    )
    hover(line, *(f"{prompt}: {speedup:.2f}x" for prompt, speedup in shown))
    interval = decision.speedup
    if interval is not None and interval.low is not None and interval.high is not None:
        bar = ax.hlines(row - 0.32, interval.low, interval.high, color=INK, linewidth=2.4)
        hover(bar, f"{_prompts_name(decision)}: {speedup_text(interval)}")
