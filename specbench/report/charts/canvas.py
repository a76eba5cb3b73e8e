"""Panels of small charts as inline SVG: neutral ink, colours that hold on white and on black.

Text takes the page's own colour and font, so one picture serves light, dark and print.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.records import Interval

# Mid-tones of well separated hues (after Okabe and Ito): at least 3:1 on white and near-black.
SERIES = ("#2f7fd1", "#d9622b", "#1f9e78", "#a06cc9", "#b5851b", "#d1588f")
MARKERS = ("o", "s", "^", "D", "v", "P")  # a second cue beside colour
DRAFT, VERIFY, REST = "#b5851b", "#1a8fa8", "#7d8590"
INK = "#010203"  # stands for the page's text colour, see `_inline`

# Places are fixed in inches, not fitted to the text: a layout engine took three quarters of
# the time of a chart.
_PAGE_INCHES = 10.2
_PLOT_INCHES = (2.2, 1.7)  # where the data are drawn
_LEFT_INCHES, _BOTTOM_INCHES, _TOP_INCHES = 0.65, 0.5, 0.3  # for the axis and the title
_CHARACTER_INCHES = 0.082
_FONT_SIZE = 9.0
_MARGIN = 0.45  # of the x axis, left of the first and right of the last number

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: readable by machines, set in the page's font
    "svg.hashsalt": "specbench",  # equal data, equal bytes
    "text.parse_math": False,  # a name may contain $
    "text.color": INK,
    "font.size": _FONT_SIZE,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": _FONT_SIZE + 1,
    "axes.titlelocation": "left",
    "axes.labelsize": _FONT_SIZE,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": _FONT_SIZE,
    "ytick.labelsize": _FONT_SIZE,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One picture with its words."""

    title: str
    setting: str  # which target, temperature, number of requests: a chart may travel alone
    caption: str
    svg: str  # for use inside an HTML page


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesStyle:
    """A pairing's colour and marker, the same in every chart."""

    colour: str
    marker: str


class Label(NamedTuple):
    """A text at the height of what it names."""

    y: float
    text: str
    colour: str


@contextmanager
def drawing() -> Iterator[None]:
    """The look of every chart; matplotlib's own settings are as before afterwards."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A name in a script that the measuring font lacks is still shown by the browser.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


class Panels:
    """Small charts that share their axes, each with room at its right for labels."""

    def __init__(self, titles: Sequence[str], labels: Sequence[str]) -> None:
        plot_width = _PLOT_INCHES[0] + text_inches(labels)
        self._share = _PLOT_INCHES[0] / plot_width  # of a panel's width, left of the labels
        width, height = _LEFT_INCHES + plot_width, _BOTTOM_INCHES + _PLOT_INCHES[1] + _TOP_INCHES
        num_rows = math.ceil(len(titles) / max(1, _PAGE_INCHES // width))
        num_columns = math.ceil(len(titles) / num_rows)
        size = num_columns * width, num_rows * height
        self._figure = Figure(figsize=size)
        self.axes: list[Axes] = []
        for i, title in enumerate(titles):
            row, column = divmod(i, num_columns)
            place = (
                (column * width + _LEFT_INCHES) / size[0],
                ((num_rows - 1 - row) * height + _BOTTOM_INCHES) / size[1],
                plot_width / size[0],
                _PLOT_INCHES[1] / size[1],
            )
            first = self.axes[0] if self.axes else None
            ax = self._figure.add_axes(place, sharex=first, sharey=first)
            ax.set_title(title)
            ax.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
            ax.tick_params(length=2.5, width=0.6)
            self.axes.append(ax)

    def set_x(self, first: int, last: int, meaning: str) -> None:
        """Whole numbers from first to last, left of the room for labels."""
        ticks = MaxNLocator(nbins=9, integer=True).tick_values(first, last)
        inside = [tick for tick in ticks if first <= tick <= last]
        self._set_x(first - _MARGIN, last + _MARGIN, inside, meaning)

    def set_places(self, names: Sequence[str], meaning: str) -> None:
        """One place after the other, the first at 0, left of the room for labels."""
        last = len(names) - 1
        self._set_x(-_MARGIN, last + _MARGIN, range(len(names)), meaning)
        for ax in self.axes:
            ax.set_xticks(range(len(names)), names)

    def set_amount(self, last: float, meaning: str) -> None:
        """From 0 to `last` of something, left of the room for labels."""
        ticks = MaxNLocator(nbins=4).tick_values(0, last)
        self._set_x(0, last, [tick for tick in ticks if 0 <= tick <= last], meaning)

    def _set_x(self, low: float, high: float, ticks: Sequence[float], meaning: str) -> None:
        for ax in self.axes:
            ax.set_xlim(low, low + (high - low) / self._share)
            ax.set_xticks(ticks)
            ax.spines["bottom"].set_bounds(low, high)
            ax.set_xlabel(meaning, loc="left")
        self._labels_x = high + 0.03 * (high - low)

    def hide_y(self) -> None:
        """Rows that are named at their right end need no axis."""
        for ax in self.axes:
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)

    def label_ends(self, labels_of_panels: Sequence[Sequence[Label]]) -> None:
        """Name lines and bars at their right end, moved apart where the names would overlap."""
        for ax, labels in zip(self.axes, labels_of_panels, strict=True):
            low, high = ax.get_ylim()
            gap = (high - low) * 1.2 * _FONT_SIZE / 72 / _PLOT_INCHES[1]
            for label in spread(labels, gap):
                ax.text(
                    self._labels_x, label.y, label.text, color=label.colour, va="center", ha="left"
                )

    def reference_line(self, ax: Axes) -> None:
        """The dashed line of K = 0, where everything is 1."""
        ax.axhline(
            1.0,
            xmax=self._share,
            color=INK,
            alpha=0.6,
            linewidth=0.8,
            linestyle=(0, (4, 3)),
        )

    def chart(self, title: str, setting: str, caption: str) -> Chart:
        for ax in self.axes:
            for tick in ax.yaxis.get_major_ticks():
                tick.gridline.set_xdata([0, self._share])
        return chart(self._figure, title, setting, caption)


def draw_speedup(
    ax: Axes,
    x: float,
    speedup: Interval,
    style: SeriesStyle,
    *,
    size: float,
    valid: bool,
    marker: str | None = None,
) -> None:
    """A point with its interval, hollow where it is invalid; `marker`: instead of the style's."""
    if speedup.low is not None and speedup.high is not None:
        ax.vlines(x, speedup.low, speedup.high, color=style.colour, linewidth=1.0)
    ax.plot(
        x,
        speedup.estimate,
        marker=marker or style.marker,
        markersize=size,
        color=style.colour,
        markerfacecolor=style.colour if valid else "none",
        zorder=4,
    )


def chart(figure: Figure, title: str, setting: str, caption: str) -> Chart:
    """A finished figure with its words."""
    svg = to_svg(figure, f"{title}: {setting}. {caption}")
    return Chart(title=title, setting=setting, caption=caption, svg=svg)


def text_inches(texts: Sequence[str]) -> float:
    """Room that the longest of the texts takes, generously."""
    return max(map(len, texts), default=0) * _CHARACTER_INCHES


def spread(labels: Sequence[Label], gap: float) -> list[Label]:
    """The labels from low to high, at least `gap` apart, each crowd around its own middle."""
    crowds: list[list[Label]] = []
    for label in sorted(reversed(labels), key=lambda label: label.y):  # of equals the first on top
        crowds.append([label])
        while (
            len(crowds) > 1 and _heights(crowds[-2], gap)[-1] + gap > _heights(crowds[-1], gap)[0]
        ):
            last = crowds.pop()
            crowds[-1] += last
    return [
        label._replace(y=y)
        for crowd in crowds
        for label, y in zip(crowd, _heights(crowd, gap), strict=True)
    ]


def to_svg(figure: Figure, description: str) -> str:
    """The figure for use inside an HTML page; `description` is what a screen reader says."""
    buffer = io.StringIO()
    unstated = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=unstated)
    return _inline(buffer.getvalue(), description)


def _inline(svg: str, description: str) -> str:
    """Without prologue, fixed size, font names and ids that nothing refers to."""
    head, body = svg[svg.index("<svg ") :].split(">", 1)
    view_box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', head)
    assert view_box is not None
    body = re.sub(r"<style.*?</style>", "", body)  # would style the whole page
    body = re.sub(r'<(g|path|text) id="[a-zA-Z.]+\d*_\d+"', r"<\1", body)
    body = re.sub(r"font-family: [^;\"]*;", "", body)
    body = re.sub(r"\s*\n\s*", " ", body)
    body = body.replace(INK, "currentColor").replace("xlink:href", "href")
    name = escape(description, {'"': "&quot;"})
    width = f'style="width: {view_box[1]}pt"'
    return f'<svg {view_box[0]} {width} role="img" aria-label="{name}">{body.strip()}'


def _heights(crowd: Sequence[Label], gap: float) -> list[float]:
    """Where the labels of a crowd go: `gap` apart around the mean of what they name."""
    bottom = sum(label.y for label in crowd) / len(crowd) - gap * (len(crowd) - 1) / 2
    return [bottom + gap * i for i in range(len(crowd))]
