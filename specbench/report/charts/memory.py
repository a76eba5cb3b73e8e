"""Memory of the target alone and with each drafter beside it."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from specbench.report.charts.canvas import DRAFT, REST, VERIFY, Chart, chart, fitting, text_inches
from specbench.report.charts.svg import INK, hover
from specbench.report.memory import MemoryRow
from specbench.report.numbers import measured

# As wide as a phone: names stand above their bars, not beside them.
_PLOT_INCHES, _SIDE_INCHES = 3.5, 0.1
_TEXT_INCHES = 3.9  # digits are narrower than letters
_BAR_INCHES, _TOP_INCHES, _BOTTOM_INCHES = 0.48, 0.35, 0.5
_CAPTION = (
    "Weights and KV cache are computed, for the longest context of this run. Everything else: "
    "the measured peak of a short pass minus the weights. The table has the same figures."
)


def memory_chart(rows: Sequence[MemoryRow]) -> Chart | None:
    """A stacked bar for one target alone and one for each drafter; None without a row."""
    if not rows:
        return None
    bars = _BAR_INCHES * len(rows)
    size = _PLOT_INCHES + 2 * _SIDE_INCHES, _TOP_INCHES + bars + _BOTTOM_INCHES
    figure = Figure(figsize=size)
    ax = figure.add_axes(
        (
            _SIDE_INCHES / size[0],
            _BOTTOM_INCHES / size[1],
            _PLOT_INCHES / size[0],
            bars / size[1],
        )
    )
    most = max(row.need.total for row in rows)
    unit, scale = ("GiB", 2**30) if most >= 2**30 else ("MiB", 2**20)
    left = [0.0] * len(rows)
    parts = (
        ("weights", VERIFY, [row.need.weights for row in rows]),
        ("KV cache", DRAFT, [row.need.kv_cache for row in rows]),
        ("everything else", REST, [row.need.rest or 0 for row in rows]),
    )
    for name, colour, sizes in parts:
        if not any(sizes):
            continue
        widths = [size / scale for size in sizes]
        drawn = ax.barh(range(len(rows)), widths, left=left, height=0.42, color=colour, label=name)
        for bar, row, num_bytes in zip(drawn, rows, sizes, strict=True):
            hover(bar, f"{row.name}, {name}: {measured(num_bytes, 'bytes')}")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, row in enumerate(rows):
        ax.annotate(_text(row), (0, place - 0.21), (0, 2), textcoords="offset points", va="bottom")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_ylim(len(rows) - 0.7, -0.7)
    ax.set_xlim(0, max(left) * 1.02 or 1)
    ax.set_xlabel(unit, loc="left")
    ax.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(parts),
        handlelength=1,
        columnspacing=1,
        borderaxespad=0.2,
        borderpad=0,
    )
    first = rows[0]
    setting = f"{first.record.target}, one request of {first.context:,} tokens"
    title = "Memory of the target alone and with each drafter"
    return chart([figure], title, setting, _CAPTION)


def _text(row: MemoryRow) -> str:
    """The name and the table's figures."""
    figures = f": {measured(row.need.total, 'bytes')}"
    if row.cost_bytes is not None:
        figures += f", speculation costs {measured(row.cost_bytes, 'bytes')}"
    return fitting(row.name, _TEXT_INCHES - text_inches([figures])) + figures
