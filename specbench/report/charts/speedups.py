"""Charts of speedups with their intervals: against K, concurrency, context, as forecast, over runs,
and of every prompt.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes

from specbench.decide.comparisons import ContextCurve, Crossover
from specbench.decide.explanation import k_text, speedup_text, units_of
from specbench.decide.recommend import SpeedupVerdict
from specbench.forecast.forecast_check import CheckedForecast
from specbench.records import CellKey, CellSummary, Condition, Decision
from specbench.report.charts.canvas import (
    INK,
    MARKERS,
    SERIES,
    Chart,
    Label,
    Panels,
    SeriesStyle,
    draw_speedup,
    hover,
)
from specbench.report.comparisons import by_run, decided_cells
from specbench.report.document import Document
from specbench.report.forecasts import whose_costs
from specbench.report.numbers import scalar
from specbench.report.sections import Section, drafter_of, verdict_of
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
    panels.label_ends([_speedup_names(section, styles) for section in drawn])
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


def _speedup_names(section: Section, styles: Mapping[str, SeriesStyle]) -> list[Label]:
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


Curve = Crossover | ContextCurve

_BARS = "Bars: 95% intervals. Dashed: no speculation. Hollow points are invalid and not used."
_ROWS = (
    "Tokens per second at K / at K=0 with a full batch; for one request, and for arrivals at a "
    "given rate, decode seconds per token at K=0 / at K. Larger batches leave less of the "
    "hardware idle, so speculation has less to gain. "
)
_CONTEXT = (
    "Decode speed-up over prompts lengthened to this many tokens. The longer the context, the "
    "larger the share of a step spent reading the KV cache of target and drafter. "
)


def crossover_charts(crossovers: Sequence[Crossover]) -> Iterator[Chart]:
    """A chart a pairing and setting, a panel a workload."""
    groups: dict[tuple[str, Condition], list[Curve]] = {}
    for curve in crossovers:
        setting = curve.key.condition.without("workload", "concurrency")
        groups.setdefault((curve.key.source, setting), []).append(curve)
    for (label, setting), group in groups.items():
        panels = _curve_panels(group, "concurrent requests")
        where = f"{label}: {setting.label}"
        if setting.request_rate is not None:
            where += f", {setting.request_rate:g} requests per second"
        yield panels.chart("Speed-up against concurrent requests", where, _ROWS + _BARS)


def context_charts(curves: Sequence[ContextCurve]) -> Iterator[Chart]:
    """A chart a pairing and setting, a panel a workload."""
    groups: dict[tuple[str, Condition], list[Curve]] = {}
    for curve in curves:
        setting = curve.key.condition.without("workload", "context")
        groups.setdefault((curve.key.source, setting), []).append(curve)
    for (label, setting), group in groups.items():
        panels = _curve_panels(group, "tokens of context")
        where = f"{label}: {setting.label}"
        yield panels.chart("Speed-up against context", where, _CONTEXT + _BARS)


def _curve_panels(group: Sequence[Curve], meaning: str) -> Panels:
    workloads = list(dict.fromkeys(curve.key.condition.workload for curve in group))
    places = sorted({point.at for curve in group for point in curve.points})
    styles = _curve_styles(group)
    panels = Panels(workloads, list(styles))
    names: list[list[Label]] = []
    for ax, workload in zip(panels.axes, workloads, strict=True):
        panels.reference_line(ax)
        own = [curve for curve in group if curve.key.condition.workload == workload]
        for i, curve in enumerate(own):
            shift = 0.06 * (i - (len(own) - 1) / 2)  # intervals stay apart
            _draw_curve(ax, curve, places, styles[_curve_name(curve)], shift)
        names.append([label for curve in own for label in _curve_label(curve, styles)])
    panels.set_places([f"{place:,}" for place in places], meaning)
    panels.name_y("speed-up", "{x:g}x")
    panels.label_ends(names)
    return panels


def _curve_styles(group: Sequence[Curve]) -> dict[str, SeriesStyle]:
    names = dict.fromkeys(map(_curve_name, group))
    looks = zip(names, cycle(SERIES), cycle(MARKERS), strict=False)
    return {name: SeriesStyle(colour=colour, marker=marker) for name, colour, marker in looks}


def _curve_name(curve: Curve) -> str:
    return f"K={curve.key.draft.length.label}"


def _draw_curve(
    ax: Axes, curve: Curve, places: Sequence[int], style: SeriesStyle, shift: float
) -> None:
    line = [
        (places.index(p.at) + shift, p.speedup.estimate)
        for p in curve.points
        if p.valid and p.speedup
    ]
    if line:
        ax.plot(*zip(*line, strict=True), color=style.colour, zorder=3)
    for point in curve.points:
        if point.speedup is not None:
            x = places.index(point.at) + shift
            draw_speedup(
                ax,
                x,
                point.speedup,
                style,
                size=4,
                valid=point.valid,
                says=f"{_curve_name(curve)} at {point.at:,}",
            )


def _curve_label(curve: Curve, styles: dict[str, SeriesStyle]) -> list[Label]:
    """The line's name at its end; none where it has no point."""
    ends = [point.speedup.estimate for point in curve.points if point.speedup]
    return [Label(y, _curve_name(curve), styles[_curve_name(curve)].colour) for y in ends[-1:]]


_FORECAST = (
    "Lines: speed-up forecast before any K was measured; bands: 95% intervals over prompts, "
    "including the error of the step times. Points with bars: measured afterwards, in the first "
    "pass. Dashed: no speculation."
)


def forecast_chart(group: Sequence[Section], styles: Mapping[str, SeriesStyle]) -> Chart | None:
    """One line a drafter with what was measured of it; None without a forecast."""
    drawn = [section for section in group if section.forecasts]
    if not drawn:
        return None
    checked = [one for section in drawn for one in section.forecasts]
    names = [_forecast_name(one) for one in checked]
    panels = Panels([section.condition.workload for section in drawn], names)
    for ax, section in zip(panels.axes, drawn, strict=True):
        panels.reference_line(ax)
        for one in section.forecasts:
            _draw_forecast(ax, one, styles[one.forecast.key.source])
    last = max(one.forecast.points[-1].num_speculative_tokens for one in checked)
    panels.set_x(0, last, "K, drafted tokens per round")
    panels.name_y("decode speed-up", "{x:g}x")
    panels.label_ends([list(_forecast_labels(section, styles)) for section in drawn])
    whose = dict.fromkeys(text for one in checked if (text := whose_costs(one.forecast)))
    costs = f", with the costs of {'; '.join(whose)}" if whose else ""
    setting = checked[0].forecast.key.condition
    return panels.chart("Forecast against measured", f"{setting.label}{costs}", _FORECAST)


def _draw_forecast(ax: Axes, one: CheckedForecast, style: SeriesStyle) -> None:
    points = [p for p in one.forecast.points if p.speedup is not None]
    ks = [p.num_speculative_tokens for p in points]
    ax.plot(
        [0, *ks],
        [1.0, *(p.speedup.estimate for p in points if p.speedup)],
        color=style.colour,
        zorder=2,
    )
    band = [
        (p.num_speculative_tokens, p.speedup.low, p.speedup.high)
        for p in points
        if p.speedup and p.speedup.low is not None and p.speedup.high is not None
    ]
    if band:
        places, lows, highs = zip(*band, strict=True)
        ax.fill_between(places, lows, highs, color=style.colour, alpha=0.18, linewidth=0)
    for k, measured in one.measured.items():
        if measured.speedup is not None:
            draw_speedup(
                ax,
                k,
                measured.speedup,
                style,
                size=6,
                valid=measured.valid,
                says=f"{_forecast_name(one)} K={k}, measured",
            )


def _forecast_labels(section: Section, styles: Mapping[str, SeriesStyle]) -> Iterator[Label]:
    for one in section.forecasts:
        last = one.forecast.points[-1].speedup
        if last is not None:
            yield Label(last.estimate, _forecast_name(one), styles[one.forecast.key.source].colour)


def _forecast_name(one: CheckedForecast) -> str:
    return drafter_of(one.forecast.key.source)


_SEVERAL_RUNS = (
    "What each run answers for a drafter, at the K that its answer is about. Bars: 95% intervals. "
    "Dashed: no speculation. Hollow points are of answers not to speculate, or of none."
)


def answers_charts(documents: Sequence[Document]) -> Iterator[Chart]:
    """A chart a setting, a panel a workload, a point a run; none for a single run."""
    if len(documents) < 2:
        return
    groups: dict[object, dict[str, list[CellKey]]] = {}
    for key in decided_cells(documents):
        workloads = groups.setdefault(key.condition.without("workload"), {})
        workloads.setdefault(key.condition.workload, []).append(key)
    for workloads in groups.values():
        yield from _answers_chart(documents, workloads)


def _answers_chart(
    documents: Sequence[Document], workloads: Mapping[str, Sequence[CellKey]]
) -> Iterator[Chart]:
    keys = [key for group in workloads.values() for key in group]
    sources = list(dict.fromkeys(key.source for key in keys))
    styles = {
        source: SeriesStyle(colour=SERIES[i % len(SERIES)], marker=MARKERS[i % len(MARKERS)])
        for i, source in enumerate(sources)
    }
    panels = Panels(list(workloads), [drafter_of(source) for source in sources])
    names: list[list[Label]] = []
    for ax, group in zip(panels.axes, workloads.values(), strict=True):
        panels.reference_line(ax)
        ends: list[Label] = []
        for i, key in enumerate(group):
            style, name = styles[key.source], drafter_of(key.source)
            shift = 0.12 * (i - (len(group) - 1) / 2)  # intervals stay apart
            for run, (found, _) in enumerate(by_run(documents, key)):
                if found is None or found.speedup is None:
                    continue
                draw_speedup(
                    ax,
                    run + shift,
                    found.speedup,
                    style,
                    size=6,
                    valid=verdict_of(found) is SpeedupVerdict.HELPS,
                    says=f"run {run + 1}, {name}, {found.leader.draft.length.named}",
                )
                ends = [end for end in ends if end.text != name]
                ends.append(Label(found.speedup.estimate, name, style.colour))
        names.append(ends)
    if any(names):
        panels.set_places([str(i + 1) for i in range(len(documents))], "run")
        panels.name_y("decode speed-up", "{x:g}x")
        panels.label_ends(names)
        where = keys[0].condition.without("workload").label
        yield panels.chart("Answers of the runs", where, _SEVERAL_RUNS)


_EACH_PROMPT = (
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
    panels = Panels([section.condition.workload for section in drawn], [*map(_prompts_name, every)])
    for ax, section in zip(panels.axes, drawn, strict=True):
        ax.axvline(1.0, color=INK, alpha=0.6, linewidth=0.8, linestyle=(0, (4, 3)))
        for row, decision in enumerate(rows[section.title]):
            style = styles[decision.leader.source]
            _draw_prompts(ax, -row, decision, found[decision.leader], style)
    most = max(len(rows[section.title]) for section in drawn)
    panels.axes[0].set_ylim(-most + 0.4, 0.6)
    panels.hide_y()
    fastest = max(max(found[decision.leader].values()) for decision in every)
    panels.set_amount(max(fastest, 1.0) * 1.02, "decode speed-up")
    panels.label_ends(
        [
            [
                Label(-row, _prompts_name(decision), styles[decision.leader.source].colour)
                for row, decision in enumerate(rows[section.title])
            ]
            for section in drawn
        ]
    )
    over = any(len(found[decision.leader]) > _MOST_DOTS for decision in every)
    caption = (
        f"{_EACH_PROMPT} Of more than {_MOST_DOTS} prompts every n-th is drawn."
        if over
        else _EACH_PROMPT
    )
    return panels.chart("Speed-up of each prompt", drawn[0].condition.label, caption)


def dots(speedups: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Prompts with their speed-ups from low to high, evenly picked where there are very many."""
    ranked = sorted(speedups.items(), key=lambda one: one[1])
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
        color=style.colour,
        alpha=0.75,
    )
    hover(line, *(f"{prompt}: {speedup:.2f}x" for prompt, speedup in shown))
    interval = decision.speedup
    if interval is not None and interval.low is not None and interval.high is not None:
        bar = ax.hlines(row - 0.32, interval.low, interval.high, color=INK, linewidth=2.4)
        hover(bar, f"{_prompts_name(decision)}: {speedup_text(interval)}")
