"""The machine over the run: clocks, CPU, the speed of K = 0, and when invalid cells ran."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from specbench.metrics.machine import Moment
from specbench.report.charts.canvas import SERIES, Chart, Panels
from specbench.report.charts.svg import INK, hover

_CAPTION = (
    "On a quiet machine these lines are level. Clock and CPU: the lowest of the requests of each "
    "moment. K=0: its speed over its median, which is the same work all the time. Triangles: "
    "cells that were judged invalid ran then."
)
_MEASURES: Sequence[tuple[str, str, Callable[[Moment], float | None]]] = (
    ("SM clock", "MHz", lambda moment: moment.sm_clock_mhz),
    ("CPU of this process", "cores busy", lambda moment: moment.cpu_share),
    ("speed of K=0", "over its median", lambda moment: moment.baseline_speed),
)


def machine_chart(found: Sequence[Moment], device: str) -> Chart | None:
    """A panel a measure; None where nothing is known of two moments."""
    charts = list(_charts(found, device))
    if not charts:
        return None
    return replace(charts[0], panels=tuple(panel for one in charts for panel in one.panels))


def _charts(found: Sequence[Moment], device: str) -> Iterator[Chart]:
    for title, meaning, value in _MEASURES:
        known = [(moment.at_s, y) for moment in found if (y := value(moment)) is not None]
        if len(known) < 2:
            continue
        panels = Panels([title], [])
        (ax,) = panels.axes
        ax.plot(*zip(*known, strict=True), color=SERIES[0], linewidth=1.0)
        low, high = 0.0, 1.08 * max(y for _, y in known) or 1.0
        marked = [moment for moment in found if moment.invalid]
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
        panels.set_amount(max(moment.at_s for moment in found), "seconds since the first block")
        yield panels.chart("The machine over the run", device, _CAPTION)
