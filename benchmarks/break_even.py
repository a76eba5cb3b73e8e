"""The picture and the table of docs/when-not-to-speculate.md: what pays off at which acceptance.

With one acceptance for every position, a round of K emits 1 + a + ... + a^K tokens and costs
1 + K m baseline steps, m being what one more draft token costs: drafting it, and verifying it.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from specbench.report.charts.canvas import INK, SERIES, Label, drawing, hover, spaced, to_svg
from specbench.stats.rounds import break_even_acceptance, expected_tokens_iid

COSTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # m, in baseline steps
_CHART_K = 4  # what runs where nobody names a K
_KS = range(1, 17)
_TABLE_KS = (1, 2, 4, 8)
_INCHES = (6.2, 3.2)
_PLACE = (0.1, 0.15, 0.64, 0.8)
_DESCRIPTION = "Speedup at K = 4 against acceptance, a line per cost of a draft token"


def best(acceptance: float, cost: float) -> tuple[float, int]:
    """The highest speedup and its K; 1 and 0 where no K pays off."""
    by_k = ((expected_tokens_iid(acceptance, k) / (1 + k * cost), k) for k in _KS)
    return max((1.0, 0), max(by_k, key=lambda pair: pair[0]), key=lambda pair: pair[0])


def chart() -> str:
    """The picture as SVG: one K, so that what loses is seen as well."""
    acceptances = [i / 100 for i in range(96)]
    with drawing():
        figure = Figure(figsize=_INCHES)
        ax = figure.add_axes(_PLACE)
        ax.axhline(1, color=INK, alpha=0.6, linewidth=0.8, linestyle=(0, (4, 3)))
        ends = []
        for cost, color in zip(COSTS, SERIES, strict=True):
            steps = 1 + _CHART_K * cost
            speedups = [expected_tokens_iid(alpha, _CHART_K) / steps for alpha in acceptances]
            ax.plot(acceptances, speedups, color=color)
            bound = break_even_acceptance(_CHART_K, steps)
            (point,) = ax.plot(bound, 1, marker="o", markersize=6, color=color, zorder=4)
            hover(point, f"a draft token costs {cost:g} of a step: breaks even at {bound:.0%}")
            ends.append(Label(speedups[-1], f"{cost:g} of a step", color))
        ax.set_xlim(0, 0.96)
        ax.yaxis.set_major_formatter("{x:g}x")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
        ax.set_xlabel("acceptance of a draft token", loc="left")
        ax.set_ylabel(f"speedup at K = {_CHART_K}")
        for label in spaced(ends, 0.25):
            ax.text(0.97, label.y, "\u25cf", color=label.color, va="center")
            ax.text(1.0, label.y, label.text, va="center")
        return to_svg(figure, _DESCRIPTION)


def table() -> str:
    """The acceptance at which K breaks even, by cost, and the best K at 60% and 80%."""
    head = ["a draft token costs", *(f"K={k} breaks even at" for k in _TABLE_KS)]
    head += ["best at 60%", "best at 80%"]
    rows = [[f"{cost:g} of a step", *_row(cost)] for cost in COSTS]
    lines: Sequence[Sequence[str]] = [head, ["---:"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(cost: float) -> list[str]:
    bounds = (break_even_acceptance(k, 1 + k * cost) for k in _TABLE_KS)
    found = ["never" if bound is None else f"{bound:.0%}" for bound in bounds]
    for acceptance in (0.6, 0.8):
        speedup, k = best(acceptance, cost)
        found.append(f"{speedup:.2f}x, K={k}" if k else "none pays off")
    return found
