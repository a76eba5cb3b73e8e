"""Memory of the target alone and with each drafter beside it."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from specbench.records import NO_DRAFTER, CellKey, MemoryRecord
from specbench.report.charts.canvas import DRAFT, INK, REST, VERIFY, Chart, chart, text_inches
from specbench.report.grids import need, owner_label
from specbench.report.numbers import measured

_PLOT_INCHES = 6.0
_BAR_INCHES, _TOP_INCHES, _BOTTOM_INCHES = 0.36, 0.35, 0.5
_ROOM_FOR_TOTALS = 1.6  # the axis is this much longer than the longest bar


def memory_chart(
    records: Sequence[MemoryRecord], context: int, keys: Sequence[CellKey] = ()
) -> Chart | None:
    """A stacked bar for one target alone and one for each drafter; None without a record.

    `keys` are of the run's cells and say which drafters are lossy.
    """
    if not records:
        return None
    needs = [need(record, context) for record in records]
    names = [owner_label(record, keys) for record in records]
    bars = _BAR_INCHES * len(records)
    left_inches = text_inches(names) + 0.1
    size = left_inches + _PLOT_INCHES, _TOP_INCHES + bars + _BOTTOM_INCHES
    figure = Figure(figsize=size)
    place = left_inches / size[0], _BOTTOM_INCHES / size[1], _PLOT_INCHES / size[0], bars / size[1]
    ax = figure.add_axes(place)
    rows = range(len(records))
    unit, scale = ("GiB", 2**30) if max(n.total for n in needs) >= 2**30 else ("MiB", 2**20)
    left = [0.0] * len(records)
    parts = (
        ("weights", VERIFY, [n.weights for n in needs]),
        ("KV cache", DRAFT, [n.kv_cache for n in needs]),
        ("everything else", REST, [n.rest or 0 for n in needs]),
    )
    for name, colour, sizes in parts:
        if any(sizes):
            widths = [size / scale for size in sizes]
            ax.barh(rows, widths, left=left, height=0.62, color=colour, label=name)
            left = [start + width for start, width in zip(left, widths, strict=True)]
    alone = next(
        (n.total for r, n in zip(records, needs, strict=True) if r.drafter == NO_DRAFTER), None
    )
    for row, found in zip(rows, needs, strict=True):
        text = measured(found.total, "bytes")
        if alone is not None and found.total > alone:
            text += f", {measured(found.total - alone, 'bytes')} more"
        ax.annotate(text, (left[row], row), (4, 0), textcoords="offset points", va="center")
    ax.set_yticks(rows, names)
    ax.invert_yaxis()
    ax.set_xlim(0, max(left) * _ROOM_FOR_TOTALS)
    ax.set_xlabel(unit, loc="left")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(parts),
        handlelength=1,
        borderaxespad=0.2,
        borderpad=0,
    )
    return chart(
        figure,
        "Memory of the target alone and with each drafter",
        f"{records[0].target}, one request of {context:,} tokens",
        "Weights and KV cache are computed, for the longest context of this run. Everything "
        "else: the measured peak of a short pass minus the weights.",
    )
