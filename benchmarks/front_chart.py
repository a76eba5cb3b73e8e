"""The picture of the front page: what a run decided, a row per pairing and workload."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from specbench.report.charts.canvas import INK, MARKERS, REST, SERIES, drawing, hover, to_svg

_INCHES = (7.4, 0.62)  # width, and the height that every chart needs for its axis
_ROW_INCHES = 0.3
_PLACE = (0.24, 0.46)  # of the plot's left end, and its width: names left, figures right
_DESCRIPTION = "Decode speedup over K = 0 with its 95 % interval"


def front_chart(decisions: Sequence[Mapping[str, Any]]) -> str:
    """Each decision's speedup with its interval as SVG; a decision without one is left out."""
    shown = [decision for decision in decisions if decision["speedup"]]
    pairings = list(dict.fromkeys(decision["pairing"] for decision in shown))
    height = _INCHES[1] + _ROW_INCHES * len(shown)
    with drawing():
        figure = Figure(figsize=(_INCHES[0], height))
        left, width = _PLACE
        ax = figure.add_axes((left, 0.5 / height, width, 1 - 0.56 / height))
        ax.axvline(1, color=INK, alpha=0.6, linewidth=0.8, linestyle=(0, (4, 3)))
        beside = blended_transform_factory(ax.transAxes, ax.transData)
        for row, decision in enumerate(shown):
            speedup, name = decision["speedup"], f"{decision['pairing']}, {decision['workload']}"
            estimate, low, high = (speedup[key] for key in ("estimate", "low", "high"))
            color = _color(low, high)
            figures = f"{estimate:.2f}x" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")
            if low is not None:
                ax.hlines(row, low, high, color=color, linewidth=2.2)
            marker = MARKERS[pairings.index(decision["pairing"])]
            (point,) = ax.plot(estimate, row, marker=marker, markersize=7, color=color)
            hover(point, f"{name}: {figures}")
            ax.text(-0.03, row, name, transform=beside, ha="right", va="center")
            ax.text(1.03, row, figures, transform=beside, va="center")
        ax.set_ylim(len(shown) - 0.4, -0.6)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.xaxis.set_major_formatter("{x:g}x")
        ax.set_xlabel("decode speedup; dashed: no speculation", loc="left")
        return to_svg(figure, _DESCRIPTION)


def _color(low: float | None, high: float | None) -> str:
    """Blue where it is faster, orange where slower, grey where the interval holds 1."""
    if low is not None and low > 1:
        return SERIES[0]
    return SERIES[1] if high is not None and high < 1 else REST
