"""Tokens a second of the built-in decoder beside other engines, a bar a cell."""

from collections.abc import Iterator, Sequence

from specbench.decide.peers import SideBySide
from specbench.records import CellKey, CellSummary, Condition
from specbench.report.charts.canvas import REST, SERIES, Chart, Label, Panels
from specbench.report.charts.svg import INK, hover
from specbench.report.comparisons import work_of
from specbench.report.numbers import scalar
from specbench.settings import BUILTIN

_CAPTION = (
    "Output tokens after the first / decode seconds, over the same prompts in one interleaved "
    "run. For each drafter: our fastest K, the other engine at the same K, and at its own "
    "defaults. Pale bars are invalid."
)


def side_by_side_charts(
    pairs: Sequence[SideBySide], cells: Sequence[CellSummary]
) -> Iterator[Chart]:
    """A chart a setting, a panel a workload; none without another engine."""
    known = {cell.key: cell for cell in cells}
    groups: dict[Condition, dict[str, list[SideBySide]]] = {}
    for pair in pairs:
        setting = pair.own.condition
        across = setting.without("workload", "engine")
        groups.setdefault(across, {}).setdefault(setting.workload, []).append(pair)
    for setting, workloads in groups.items():
        bars = {name: bars_of(own, known) for name, own in workloads.items()}
        drawn = {name: cells for name, cells in bars.items() if cells}
        if drawn:
            yield _chart(setting, drawn)


def bars_of(
    pairs: Sequence[SideBySide], known: dict[CellKey, CellSummary]
) -> tuple[CellSummary, ...]:
    """Both sides without drafts; then of each pairing our fastest K and its counterparts."""
    fastest: dict[str, CellKey] = {}
    for own in dict.fromkeys(pair.own for pair in pairs if pair.own in known):
        best = fastest.get(own.pairing)
        if best is None or _speed(known[own]) > _speed(known[best]):
            fastest[own.pairing] = own
    keys = dict.fromkeys(
        key for pair in pairs if pair.own in fastest.values() for key in (pair.own, pair.peer)
    )
    return tuple(known[key] for key in keys if key in known and _speed(known[key]))


def _chart(setting: Condition, bars: dict[str, tuple[CellSummary, ...]]) -> Chart:
    names = [_name(cell) for cells in bars.values() for cell in cells]
    panels = Panels(list(bars), names)
    last = max(_speed(cell) for cells in bars.values() for cell in cells)
    for ax, cells in zip(panels.axes, bars.values(), strict=True):
        for row, cell in enumerate(cells):
            (bar,) = ax.barh(
                -row,
                _speed(cell),
                height=0.66,
                color=_colour(cell),
                alpha=1.0 if cell.valid else 0.35,
            )
            hover(bar, _name(cell))
    most = max(map(len, bars.values()))
    panels.axes[0].set_ylim(-most + 0.4, 0.6)
    panels.hide_y()
    panels.set_amount(last, "tokens per second")
    panels.label_ends(
        [
            [
                Label(
                    -row,
                    _name(cell),
                    _colour(cell) if cell.key.condition.engine == BUILTIN else INK,
                )
                for row, cell in enumerate(cells)
            ]
            for cells in bars.values()
        ]
    )
    return panels.chart("Side by side with other engines", setting.label, _CAPTION)


def _name(cell: CellSummary) -> str:
    return f"{_speed(cell):,.0f}  {cell.key.condition.engine} {work_of(cell.key)}"


def _colour(cell: CellSummary) -> str:
    return SERIES[0] if cell.key.condition.engine == BUILTIN else REST


def _speed(cell: CellSummary) -> float:
    return scalar(cell.metrics.get("decode_tokens_per_s")) or 0.0
