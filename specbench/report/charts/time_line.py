"""Which K an adaptive cell took, over the time of its first pass."""

from collections.abc import Iterator, Mapping

from matplotlib.ticker import MaxNLocator

from specbench.records import CellKey, Condition, PassRecord, RoundTimeline
from specbench.report.charts.canvas import SERIES, Chart, Panels

_CAPTION = (
    "K of every round in the first pass, picked from measured step times and the acceptance so "
    "far. At 0 it does not speculate; spikes from 0 probe whether speculation would pay off again."
)


def time_line_charts(time_lines: Mapping[CellKey, PassRecord]) -> Iterator[Chart]:
    """A chart a pairing and setting, a panel a workload; none without a round."""
    groups: dict[tuple[str, Condition], dict[str, RoundTimeline]] = {}
    for key, record in time_lines.items():
        if record.rounds:
            group = key.source, key.condition.without("workload")
            groups.setdefault(group, {})[key.condition.workload] = record.rounds
    for (label, setting), rounds in groups.items():
        panels = Panels(list(rounds), [])
        for ax, one in zip(panels.axes, rounds.values(), strict=True):
            at_s, ks = changes(one)
            ax.step(at_s, ks, where="post", color=SERIES[0], linewidth=1.2)
        highest = max(max(one.num_speculative_tokens) for one in rounds.values())
        panels.axes[0].set_ylim(-0.3, highest + 0.5)
        panels.axes[0].yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        panels.name_y("K")
        panels.set_amount(max(_end_s(one) for one in rounds.values()), "seconds")
        where = f"{label}: {setting.label}"
        yield panels.chart("K=auto over time", where, _CAPTION)


def changes(rounds: RoundTimeline) -> tuple[list[float], list[int]]:
    """When K changed and to what, and the end of the last round: a step's corners only."""
    at_s, ks = [rounds.at_s[0]], [rounds.num_speculative_tokens[0]]
    for began_s, k in zip(rounds.at_s, rounds.num_speculative_tokens, strict=True):
        if k != ks[-1]:
            at_s.append(began_s)
            ks.append(k)
    return [*at_s, _end_s(rounds)], [*ks, ks[-1]]


def _end_s(rounds: RoundTimeline) -> float:
    return rounds.at_s[-1] + rounds.seconds[-1]
