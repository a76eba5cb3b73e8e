"""Forecast against measured, a panel a workload: did it point at the right K?"""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes

from specbench.forecast.forecast_check import CheckedForecast
from specbench.report.charts.canvas import Chart, Label, Panels, SeriesStyle, draw_speedup
from specbench.report.forecasts import whose_costs
from specbench.report.sections import Section, drafter_of

_CAPTION = (
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
    names = [_name(one) for one in checked]
    panels = Panels([section.condition.workload for section in drawn], names)
    for ax, section in zip(panels.axes, drawn, strict=True):
        panels.reference_line(ax)
        for one in section.forecasts:
            _draw(ax, one, styles[one.forecast.key.source])
    last = max(one.forecast.points[-1].num_speculative_tokens for one in checked)
    panels.set_x(0, last, "K, drafted tokens per round")
    panels.name_y("decode speed-up", "{x:g}x")
    panels.label_ends([list(_labels(section, styles)) for section in drawn])
    whose = dict.fromkeys(text for one in checked if (text := whose_costs(one.forecast)))
    costs = f", with the costs of {'; '.join(whose)}" if whose else ""
    setting = checked[0].forecast.key.condition
    return panels.chart("Forecast against measured", f"{setting.label}{costs}", _CAPTION)


def _draw(ax: Axes, one: CheckedForecast, style: SeriesStyle) -> None:
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
                says=f"{_name(one)} K={k}, measured",
            )


def _labels(section: Section, styles: Mapping[str, SeriesStyle]) -> Iterator[Label]:
    for one in section.forecasts:
        last = one.forecast.points[-1].speedup
        if last is not None:
            yield Label(last.estimate, _name(one), styles[one.forecast.key.source].colour)


def _name(one: CheckedForecast) -> str:
    return drafter_of(one.forecast.key.source)
