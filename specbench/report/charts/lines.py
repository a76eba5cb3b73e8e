"""Line charts: acceptance per position, trade-offs, K = auto over time, the machine, a history."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from specbench.decide.objective import all_users_rate
from specbench.decide.recommend import estimate
from specbench.gate.history import History, Series
from specbench.metrics.machine import Moment
from specbench.metrics.registry import number_of
from specbench.records import CellKey, CellSummary, Condition, PassRecord, RoundTimeline
from specbench.report.charts.canvas import (
    DASHED,
    INK,
    SERIES,
    VERIFY,
    Chart,
    Label,
    Panels,
    SeriesStyle,
    draw_speedup,
    drawing,
    hover,
)
from specbench.report.sections import Section, drafter_of
from specbench.words.numbers import Scale, list_of, measured, memory_scale, plural, scale_of

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


_MEMORY = (
    "Decode speedup of each drafter's best valid K against the memory it adds to the target's "
    "peak. Bars: 95% intervals. The step line is the Pareto front; in a chart of many points only "
    "its points are named."
)
_ROWS = (
    "Tokens per second of all users against those of one user. Each point is labeled with its "
    "concurrency. Up and to the right is better. A drafter's point is its best valid K at that "
    "concurrency; gray means no speculation."
)
_PLAIN = "no speculation"
_NAMED = 6  # drafters whose names fit in a panel

Points = list[tuple[float, float, int]]  # one user's speed, all users' speed, concurrency


def memory_pareto_charts(
    groups: Sequence[tuple[Section, ...]], styles: Mapping[str, SeriesStyle]
) -> Iterator[Chart]:
    """Speedup against memory: one panel per workload with at least two known drafters."""
    for group in groups:
        drawn = [section for section in group if len(_costed(section)) > 1]
        if not drawn:
            continue
        names = [_cost_name(name, cell) for s in drawn for name, (cell, _) in _costed(s).items()]
        panels = Panels([section.condition.workload_label for section in drawn], names)
        largest = max(cost for s in drawn for _, cost in _costed(s).values())
        scale = memory_scale(largest)
        for ax, section in zip(panels.axes, drawn, strict=True):
            panels.reference_line(ax)
            _draw_costs(ax, _costed(section), styles, scale)
        panels.set_amount(
            max(largest * scale.factor, 1.0), f"{scale.unit} in addition to the target"
        )
        panels.name_y("decode speedup", "{x:g}x")
        panels.label_ends([_cost_labels(_costed(section), styles) for section in drawn])
        title = "Speedup against added memory"
        yield panels.chart(title, drawn[0].condition.label, _MEMORY)


def rows_pareto_charts(
    every: Sequence[Section], styles: Mapping[str, SeriesStyle]
) -> Iterator[Chart]:
    """All users against one user: one panel per workload that ran at several concurrencies."""
    groups: dict[Condition, dict[str, list[Section]]] = {}
    for section in every:
        group_key = section.condition.without("workload", "concurrency")
        groups.setdefault(group_key, {}).setdefault(section.condition.workload, []).append(section)
    for setting, by_workload in groups.items():
        curves_by_workload = {name: _curves(part) for name, part in by_workload.items()}
        drawn = {
            name: curves
            for name, curves in curves_by_workload.items()
            if max(map(len, curves.values()), default=0) > 1
        }
        if not drawn:
            continue
        names = [drafter_of(label) for curves in drawn.values() for label in curves]
        panels = Panels(list(drawn), names)
        for ax, curves in zip(panels.axes, drawn.values(), strict=True):
            for label, points in curves.items():
                _draw_curve(ax, points, styles.get(label))
        fastest = max(
            user for c in drawn.values() for points in c.values() for user, _, _ in points
        )
        panels.set_amount(fastest * 1.05, "tokens/s of one user")
        panels.name_y("tokens/s of all users")
        panels.axes[0].set_ylim(bottom=0)
        panels.label_ends([_curve_labels(curves, styles) for curves in drawn.values()])
        yield panels.chart("Speed of one user against all users", setting.label, _ROWS)


def _costed(section: Section) -> dict[str, tuple[CellSummary, float]]:
    """Each label's fastest valid cell with the bytes it adds."""
    fastest = {}
    for label in section.labels:
        known = [
            (cell, max(cost, 0.0))
            for cell in section.of(label)
            if cell.valid
            and cell.speedup is not None
            and (cost := number_of(cell.metrics, "speculation_cost_bytes")) is not None
        ]
        if known:
            fastest[label] = max(known, key=lambda pair: estimate(pair[0]))
    return fastest


def _draw_costs(
    ax: Axes,
    costed: Mapping[str, tuple[CellSummary, float]],
    styles: Mapping[str, SeriesStyle],
    scale: Scale,
) -> None:
    points = []
    for label, (cell, cost) in costed.items():
        assert cell.speedup is not None
        x, name = cost * scale.factor, f"{_cost_name(label, cell)}, {measured(cost, 'bytes')}"
        draw_speedup(ax, x, cell.speedup, styles[label], size=5, valid=True, name=name)
        points.append((x, cell.speedup.estimate))
    front = pareto_front(points)
    ax.step(*zip(*front, strict=True), where="post", color=INK, alpha=0.4, linewidth=0.8)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (cost, gain) points that no other point beats in both, by rising cost."""
    front: list[tuple[float, float]] = []
    for cost, gain in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or gain > front[-1][1]:
            front.append((cost, gain))
    return front


def _cost_labels(
    costed: Mapping[str, tuple[CellSummary, float]], styles: Mapping[str, SeriesStyle]
) -> list[Label]:
    points = {label: (cost, c.speedup.estimate) for label, (c, cost) in costed.items() if c.speedup}
    front = set(pareto_front(list(points.values())))
    return [
        Label(
            cell.speedup.estimate,
            _cost_name(label, cell),
            styles[label].color,
        )
        for label, (cell, _) in costed.items()
        if cell.speedup is not None and (len(points) <= _NAMED or points[label] in front)
    ]


def _cost_name(label: str, cell: CellSummary) -> str:
    return f"{drafter_of(label)} K={cell.key.draft.length.label}"


def _curves(sections: Sequence[Section]) -> dict[str, Points]:
    """Points of rising concurrency by label, "no speculation" first."""
    curves: dict[str, Points] = {}
    for section in sorted(sections, key=lambda section: section.condition.concurrency):
        concurrency = section.condition.concurrency
        best: dict[str, CellSummary | None] = {_PLAIN: section.baseline}
        for label in section.labels:
            usable = [c for c in section.of(label) if c.valid and c.speedup is not None]
            best[label] = max(usable, key=estimate, default=None)
        for label, cell in best.items():
            user = number_of(cell.metrics, "user_tokens_per_s") if cell else None
            total = all_users_rate(cell) if cell else None
            if user is not None and total is not None:
                curves.setdefault(label, []).append((user, total, concurrency))
    return curves


def _draw_curve(ax: Axes, points: Points, style: SeriesStyle | None) -> None:
    color, marker = (style.color, style.marker) if style else (INK, "o")
    users, totals, concurrencies = zip(*points, strict=True)
    alpha = 1 if style else 0.5
    (line,) = ax.plot(users, totals, marker=marker, markersize=4, color=color, alpha=alpha)
    hover(
        line,
        *(
            f"{plural(count, 'concurrent request')}: {user:,.1f} tokens/s each, {total:,.1f} in all"
            for user, total, count in points
        ),
    )
    for user, total, count in zip(users, totals, concurrencies, strict=True):
        ax.annotate(f"{count}", (user, total), (3, 3), textcoords="offset points", color=color)


def _curve_labels(curves: Mapping[str, Points], styles: Mapping[str, SeriesStyle]) -> list[Label]:
    """Names at the height of each curve's rightmost point, the one of the lowest concurrency."""
    return [
        Label(points[0][1], drafter_of(label), styles[label].color if label in styles else INK)
        for label, points in curves.items()
    ]


_ADAPTIVE_K = (
    "K of every round of the exploration phase, chosen from measured step times and the acceptance "
    "so far. At 0 it does not speculate; spikes from 0 probe whether speculation pays off again."
)


def time_line_charts(time_lines: Mapping[CellKey, PassRecord]) -> Iterator[Chart]:
    """One chart per pairing and setting with one panel per workload; none without a round."""
    groups: dict[tuple[str, Condition], dict[str, RoundTimeline]] = {}
    for key, record in time_lines.items():
        if record.rounds:
            group = key.source, key.condition.without("workload")
            groups.setdefault(group, {})[key.condition.workload] = record.rounds
    for (label, setting), rounds in groups.items():
        panels = Panels(list(rounds), [])
        for ax, timeline in zip(panels.axes, rounds.values(), strict=True):
            at_s, ks = changes(timeline)
            ax.step(at_s, ks, where="post", color=SERIES[0], linewidth=1.2)
        highest = max(max(timeline.num_speculative_tokens) for timeline in rounds.values())
        panels.axes[0].set_ylim(-0.3, highest + 0.5)
        panels.axes[0].yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        panels.name_y("K")
        panels.set_amount(max(map(_end_s, rounds.values())), "seconds")
        yield panels.chart("K=auto over time", f"{label}: {setting.label}", _ADAPTIVE_K)


def changes(rounds: RoundTimeline) -> tuple[list[float], list[int]]:
    """The times at which K changed and its new values, with the end of the last round."""
    at_s, ks = [rounds.at_s[0]], [rounds.num_speculative_tokens[0]]
    for began_s, k in zip(rounds.at_s, rounds.num_speculative_tokens, strict=True):
        if k != ks[-1]:
            at_s.append(began_s)
            ks.append(k)
    return [*at_s, _end_s(rounds)], [*ks, ks[-1]]


def _end_s(rounds: RoundTimeline) -> float:
    return rounds.at_s[-1] + rounds.seconds[-1]


_MACHINE = (
    "On a quiet machine these lines are level. Clock and CPU: the lowest value among the requests "
    "of each moment. K=0: its speed over its median, always for the same work. Triangles mark when "
    "invalid cells ran."
)
_MEASURES: Sequence[tuple[str, str, Callable[[Moment], float | None]]] = (
    ("SM clock", "MHz", lambda moment: moment.sm_clock_mhz),
    ("CPU of this process", "cores busy", lambda moment: moment.cpu_share),
    ("speed of K=0", "over its median", lambda moment: moment.baseline_speed),
)


def machine_chart(moments: Sequence[Moment], device: str) -> Chart | None:
    """One panel per measure that is known at two moments; None without one."""
    charts = list(_machine_charts(moments, device))
    if not charts:
        return None
    return replace(charts[0], panels=tuple(panel for chart in charts for panel in chart.panels))


def _machine_charts(moments: Sequence[Moment], device: str) -> Iterator[Chart]:
    for title, meaning, value in _MEASURES:
        known = [(moment.at_s, y) for moment in moments if (y := value(moment)) is not None]
        if len(known) < 2:
            continue
        panels = Panels([title], [])
        (ax,) = panels.axes
        ax.plot(*zip(*known, strict=True), color=SERIES[0], linewidth=1.0)
        low, high = 0.0, 1.08 * max(y for _, y in known) or 1.0
        marked = [moment for moment in moments if moment.invalid]
        if marked:
            (line,) = ax.plot(
                [moment.at_s for moment in marked],
                [0.04 * high] * len(marked),
                linestyle="none",
                marker="^",
                markersize=5,
                color=SERIES[1],
            )
            hover(line, *(f"{m.at_s:,.0f} s: {', '.join(m.invalid)}" for m in marked))
        ax.set_ylim(low, high)
        ax.axhline(0, color=INK, linewidth=0.6)
        panels.name_y(meaning)
        panels.set_amount(max(moment.at_s for moment in moments), "seconds since the first block")
        yield panels.chart("The machine over the run", device, _MACHINE)


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
