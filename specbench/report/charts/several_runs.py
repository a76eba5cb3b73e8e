"""What several runs answer, a panel a workload, a point a run."""

from collections.abc import Iterator, Mapping, Sequence

from specbench.decide.recommend import Verdict
from specbench.records import CellKey
from specbench.report.charts.canvas import (
    MARKERS,
    SERIES,
    Chart,
    Label,
    Panels,
    SeriesStyle,
    draw_speedup,
)
from specbench.report.document import Document
from specbench.report.sections import drafter_of, verdict_of
from specbench.report.several_runs import asked, by_run

_CAPTION = (
    "What each run answers for a drafter, at the K that its answer is about. Bars: 95% intervals. "
    "Dashed: no speculation. Hollow points are of answers not to speculate, or of none."
)


def answers_charts(documents: Sequence[Document]) -> Iterator[Chart]:
    """A chart a setting, a panel a workload, a point a run; none for a single run."""
    if len(documents) < 2:
        return
    groups: dict[object, dict[str, list[CellKey]]] = {}
    for key in asked(documents):
        workloads = groups.setdefault(key.condition.without("workload"), {})
        workloads.setdefault(key.condition.workload, []).append(key)
    for workloads in groups.values():
        yield from _chart(documents, workloads)


def _chart(
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
                    valid=verdict_of(found) is Verdict.HELPS,
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
        yield panels.chart("Answers of the runs", where, _CAPTION)
