"""The pictures that people look at first, one function each. Imports matplotlib."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.records import NO_DRAFTER, CellSummary, MemoryRecord
from specbench.report.canvas import (
    FIRST_PART,
    INK,
    MARKERS,
    REST,
    SECOND_PART,
    SERIES,
    Label,
    drawing,
    label_ends,
    panels,
    to_svg,
    whole_numbers,
)
from specbench.report.document import Document
from specbench.report.numbers import listed, measured, scalar, series
from specbench.report.sections import Section, by_setting, sections, setting_title


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One picture with its words."""

    title: str
    caption: str
    svg: str


def charts(document: Document) -> tuple[Chart, ...]:
    """Every chart for which there is data, in the order a reader wants them."""
    every = sections(document)
    styles = _styles(document)
    settings = by_setting(every)
    found: list[Chart] = []
    with drawing():
        for draw in (_speedups, _acceptance):
            for group in settings:
                found += draw(group, styles)
        for group in settings:
            for pairing in dict.fromkeys(p for section in group for p in section.pairings):
                found += _round_times(group, pairing)
        found += _memory(document)
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Style:
    """A pairing's colour and marker, the same in every chart."""

    colour: str
    marker: str


def _styles(document: Document) -> Mapping[str, _Style]:
    keys = [plan.key for plan in document.run.cells if plan.key.num_speculative_tokens > 0]
    return {
        pairing: _Style(colour=SERIES[i % len(SERIES)], marker=MARKERS[i % len(MARKERS)])
        for i, pairing in enumerate(dict.fromkeys(key.pairing for key in keys))
    }


def _speedups(group: Sequence[Section], styles: Mapping[str, _Style]) -> Iterator[Chart]:
    drawn = [section for section in group if any(cell.speedup for cell in section.cells)]
    if not drawn:
        return
    last = max(c.key.num_speculative_tokens for s in drawn for c in s.cells)
    figure, axes, share = panels(len(drawn), [_drafter(p) for s in drawn for p in s.pairings])
    for ax, section in zip(axes, drawn, strict=True):
        ax.set_title(section.question.workload)
        ax.axhline(1.0, color=INK, alpha=0.55, linewidth=0.8, linestyle=(0, (4, 3)))
        for i, pairing in enumerate(section.pairings):
            shift = 0.09 * (i - (len(section.pairings) - 1) / 2)
            _speedup_line(ax, section, pairing, styles[pairing], shift)
        whole_numbers(ax, 0, last, share)
        ax.set_xlabel("K, drafted tokens a round", loc="left")
    axes[0].set_ylabel("speed-up of decoding")
    axes[0].yaxis.set_major_formatter("{x:g}x")
    figure.draw_without_rendering()  # limits must stand before labels are moved apart
    for ax, section in zip(axes, drawn, strict=True):
        ends = [(p, [c for c in section.of(p) if c.speedup]) for p in section.pairings]
        label_ends(
            ax,
            last + 0.35,
            [
                Label(cells[-1].speedup.estimate, _drafter(p), styles[p].colour)
                for p, cells in ends
                if cells and cells[-1].speedup
            ],
        )
    workloads = listed([section.question.workload for section in drawn])
    yield _chart(
        figure,
        f"Speed-up against K: {setting_title(drawn[0].question)}",
        f"Decode seconds at K=0 divided by decode seconds at K, over the same prompts, on "
        f"{workloads}. Bars are 95% intervals over prompts; dashed: no speculation. The large "
        "point is the chosen K; hollow points are invalid and support no answer. All points are "
        "of the first pass.",
    )


def _speedup_line(ax: Axes, section: Section, pairing: str, style: _Style, shift: float) -> None:
    cells = [cell for cell in section.of(pairing) if cell.speedup]
    valid = [(0.0, 1.0)] + [
        (cell.key.num_speculative_tokens + shift, cell.speedup.estimate)
        for cell in cells
        if cell.valid and cell.speedup
    ]
    ax.plot(*zip(*valid, strict=True), color=style.colour, zorder=3)
    for cell in cells:
        speedup = cell.speedup
        assert speedup is not None
        x = cell.key.num_speculative_tokens + shift
        if speedup.low is not None and speedup.high is not None:
            ax.vlines(x, speedup.low, speedup.high, color=style.colour, linewidth=1.1, alpha=0.8)
        chosen = section.is_chosen(cell.key)
        ax.plot(
            x,
            speedup.estimate,
            marker=style.marker,
            markersize=8 if chosen else 4,
            color=style.colour,
            markerfacecolor=style.colour if cell.valid else "none",
            zorder=4,
        )
        if chosen:
            ax.annotate(
                f"K={cell.key.num_speculative_tokens}",
                (x, speedup.high or speedup.estimate),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=style.colour,
                fontweight="bold",
            )


def _acceptance(group: Sequence[Section], styles: Mapping[str, _Style]) -> Iterator[Chart]:
    deepest = {
        (section.title, pairing): cell
        for section in group
        for pairing in section.pairings
        for cell in section.of(pairing)  # by K, so the last one stays
        if series(cell.metrics.get("acceptance_rate_per_position"))
    }
    drawn = [s for s in group if any((s.title, p) in deepest for p in s.pairings)]
    if not drawn:
        return
    last = max(cell.key.num_speculative_tokens for cell in deepest.values())
    figure, axes, share = panels(len(drawn), [_drafter(p) for _, p in deepest])
    for ax, section in zip(axes, drawn, strict=True):
        ax.set_title(section.question.workload)
        for pairing in section.pairings:
            cell = deepest.get((section.title, pairing))
            if cell is not None:
                _acceptance_lines(ax, cell, styles[pairing])
        whole_numbers(ax, 1, max(last, 2), share)
        ax.set_ylim(0, 1.04)
        ax.set_xlabel("position in the draft", loc="left")
    axes[0].set_ylabel("rounds that accept it")
    axes[0].yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    figure.draw_without_rendering()
    for ax, section in zip(axes, drawn, strict=True):
        ends = [(p, deepest.get((section.title, p))) for p in section.pairings]
        label_ends(
            ax,
            max(last, 2) + 0.35,
            [Label(_joint(c)[-1], _drafter(p), styles[p].colour) for p, c in ends if c],
        )
    yield _chart(
        figure,
        f"Acceptance per position: {setting_title(drawn[0].question)}",
        "Solid: share of all rounds that accept at least this many drafted tokens. Dotted: of "
        "the rounds that accepted the position before, the share that accepts this one too. "
        "Each drafter at its largest K.",
    )


def _acceptance_lines(ax: Axes, cell: CellSummary, style: _Style) -> None:
    joint = _joint(cell)
    conditional = series(cell.metrics.get("conditional_acceptance_rate"))
    positions = range(1, len(joint) + 1)
    ax.plot(positions, joint, color=style.colour, marker=style.marker, markersize=4)
    ax.plot(
        positions[: len(conditional)],
        conditional,
        color=style.colour,
        linestyle=(0, (1, 1.8)),
        linewidth=1.2,
    )


def _round_times(group: Sequence[Section], pairing: str) -> Iterator[Chart]:
    drawn = [s for s in group if any(_steps(cell) for cell in s.of(pairing))]
    if not drawn:
        return
    cells = [cell for section in drawn for cell in section.of(pairing)]
    last = max(cell.key.num_speculative_tokens for cell in cells)
    names = ("verify", "draft", "other", "round")
    figure, axes, share = panels(len(drawn), ["tokens a round"])
    for ax, section in zip(axes, drawn, strict=True):
        step_ms = _step_ms(section)
        title = section.question.workload
        ax.set_title(title if step_ms is None else f"{title} (a step is {step_ms})")
        ax.bar(0, 1, width=0.7, color=REST, alpha=0.55, linewidth=0)
        ax.axhline(1.0, color=INK, alpha=0.55, linewidth=0.8, linestyle=(0, (4, 3)))
        for cell in section.of(pairing):
            _round_bar(ax, cell)
        whole_numbers(ax, 0, last, share)
        ax.set_xlabel("K, drafted tokens a round", loc="left")
    axes[0].set_ylabel("baseline steps")
    figure.draw_without_rendering()
    for ax, section in zip(axes, drawn, strict=True):
        final = [cell for cell in section.of(pairing) if _steps(cell)][-1]
        label_ends(ax, last + 0.5, _part_labels(final))
    assert names
    yield _chart(
        figure,
        f"Where a round's time goes: {pairing}, {setting_title(drawn[0].question)}",
        "Bars: what a round costs, in baseline steps (dashed: one step, the round of K=0). The "
        "black or white tick: the tokens a round yields. Speculation pays where the tick is "
        "above its bar.",
    )
