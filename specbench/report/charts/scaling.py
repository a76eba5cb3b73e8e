"""Speed-up against concurrent requests or context, a line per K: where does it stop paying off?"""

from collections.abc import Iterator, Sequence
from itertools import cycle

from matplotlib.axes import Axes

from specbench.decide.scaling import ContextCurve, Crossover
from specbench.records import Condition
from specbench.report.charts.canvas import (
    MARKERS,
    SERIES,
    Chart,
    Label,
    Panels,
    SeriesStyle,
    draw_speedup,
)

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
        panels = _panels(group, "concurrent requests")
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
        panels = _panels(group, "tokens of context")
        where = f"{label}: {setting.label}"
        yield panels.chart("Speed-up against context", where, _CONTEXT + _BARS)


def _panels(group: Sequence[Curve], meaning: str) -> Panels:
    workloads = list(dict.fromkeys(curve.key.condition.workload for curve in group))
    places = sorted({point.at for curve in group for point in curve.points})
    styles = _styles(group)
    panels = Panels(workloads, list(styles))
    names: list[list[Label]] = []
    for ax, workload in zip(panels.axes, workloads, strict=True):
        panels.reference_line(ax)
        own = [curve for curve in group if curve.key.condition.workload == workload]
        for i, curve in enumerate(own):
            shift = 0.06 * (i - (len(own) - 1) / 2)  # intervals stay apart
            _draw(ax, curve, places, styles[_name(curve)], shift)
        names.append([label for curve in own for label in _label(curve, styles)])
    panels.set_places([f"{place:,}" for place in places], meaning)
    panels.name_y("speed-up", "{x:g}x")
    panels.label_ends(names)
    return panels


def _styles(group: Sequence[Curve]) -> dict[str, SeriesStyle]:
    names = dict.fromkeys(map(_name, group))
    looks = zip(names, cycle(SERIES), cycle(MARKERS), strict=False)
    return {name: SeriesStyle(colour=colour, marker=marker) for name, colour, marker in looks}


def _name(curve: Curve) -> str:
    return f"K={curve.key.draft.length.label}"


def _draw(ax: Axes, curve: Curve, places: Sequence[int], style: SeriesStyle, shift: float) -> None:
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
                says=f"{_name(curve)} at {point.at:,}",
            )


def _label(curve: Curve, styles: dict[str, SeriesStyle]) -> list[Label]:
    """The line's name at its end; none where it has no point."""
    ends = [point.speedup.estimate for point in curve.points if point.speedup]
    return [Label(y, _name(curve), styles[_name(curve)].colour) for y in ends[-1:]]
