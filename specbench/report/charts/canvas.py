"""Panels of small charts as inline SVG: neutral ink, colors for white and for black pages.

Text takes the page's own color and font, so one picture serves light, dark and print. Hover texts
are SVG titles, which every browser shows without a script. Until the SVG is written, the texts are
the ids of the figure's artists.
"""

import io
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.records import Interval
from specbench.untrusted import plain
from specbench.words.numbers import speedup_text

INK = "#010203"  # replaced by the page's text color
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_TOO_FINE = re.compile(r"(\.\d\d)\d+")  # below a hundredth of 1/72 inch


def hover(artist: Artist, *texts: str) -> None:
    """Sets the hover text of an artist: one text per marker, or one for all."""
    artist.set_gid(json.dumps(texts))


def to_svg(figure: Figure, description: str) -> str:
    """The figure for use inside an HTML page; screen readers read out the `description`.

    The result has no prologue, fixed size, font names or styles of its own.
    """
    buffer = io.StringIO()
    omitted = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": description}):  # no other picture has its ids
        figure.savefig(buffer, format="svg", transparent=True, metadata=omitted)
    root = ElementTree.fromstring(plain(buffer.getvalue()))
    _, _, width, _ = root.attrib["viewBox"].split()
    for element in [*root.iter()]:
        _inline(element)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "style": f"--width: {width}pt",
        "role": "img",
        "aria-label": description,
    }
    return plain(ElementTree.tostring(root, encoding="unicode"))


def _inline(element: ElementTree.Element) -> None:
    """Makes an element of matplotlib's SVG part of a page."""
    for style in element.findall(f"{_SVG}style"):  # would apply to the whole page
        element.remove(style)
    element.tag = element.tag.removeprefix(_SVG)
    element.tail = None
    if element.tag != "text":
        element.text = None
    given = {
        "href" if name == _LINK else name: value.replace(INK, "currentColor")
        for name, value in element.attrib.items()
    }
    for name in {"d", "x", "y"} & given.keys():
        given[name] = _TOO_FINE.sub(r"\1", " ".join(given[name].split()))
    if "style" in given:
        parts = given["style"].split("; ")
        given["style"] = "; ".join(part for part in parts if not part.startswith("font-family:"))
    gid = given.pop("id", "") if element.tag == "g" else ""  # nothing refers to a group
    element.attrib = given
    if gid.startswith("["):
        _add_titles(element, json.loads(gid))


def _add_titles(group: ElementTree.Element, texts: Sequence[str]) -> None:
    """One title per marker, or else one title for the whole group."""
    markers = group.findall(f".//{_SVG}use")
    for titled, text in zip(
        markers if len(markers) == len(texts) else [group], texts, strict=False
    ):
        title = ElementTree.Element("title")
        title.text = text
        titled.insert(0, title)


# Mid-tones of well separated hues (after Okabe and Ito): at least 3:1 on white and near-black.
SERIES = ("#2f7fd1", "#d9622b", "#1f9e78", "#a06cc9", "#b5851b", "#d1588f")
DASHED: dict[str, Any] = dict(color=INK, alpha=0.6, linewidth=0.8, linestyle=(0, (4, 3)))
PALE = 0.35  # opacity of a bar or point that shows nothing
K_AXIS = "K, drafted tokens per round"
MARKERS = ("o", "s", "^", "D", "v", "P")  # a second cue in addition to color
DRAFT, VERIFY, REST = "#b5851b", "#1a8fa8", "#7d8590"

# Positions are fixed in inches: matplotlib's layout engine took three quarters of a chart's time.
_PLOT_INCHES = (2.1, 1.7)  # the area of the data
_LEFT_INCHES, _BOTTOM_INCHES, _TOP_INCHES = 0.75, 0.5, 0.3  # for the axis and the title
_CHARACTER_INCHES = 0.072
_GAP_INCHES = 0.1  # between the plot and the labels at its right
_FONT_SIZE = 9.0
_HOVER_POINTS = 11.0  # width of the area around an interval that shows its hover text
_MARGIN = 0.45  # in units of the x axis, left of the first number and right of the last

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: readable by machines, set in the page's font
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
    """One chart with its title and caption; a page sets its panels next to each other."""

    title: str
    setting: str  # target, temperature, number of requests: a chart may be copied without its page
    caption: str
    panels: tuple[str, ...]  # SVG for use inside an HTML page


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesStyle:
    """A pairing's color and marker, the same in every chart."""

    color: str
    marker: str


def series_styles(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """A style for each name, in their order."""
    styles = zip(dict.fromkeys(names), cycle(SERIES), cycle(MARKERS), strict=False)
    return {name: SeriesStyle(color=color, marker=marker) for name, color, marker in styles}


class Label(NamedTuple):
    """A name at the height of its line or bar."""

    y: float
    text: str
    color: str


@contextmanager
def drawing() -> Iterator[None]:
    """Applies the style of every chart; restores matplotlib's settings afterwards."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Browsers show scripts that the font used for measuring lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


class Panels:
    """Small pictures with the same axes and space for labels at the right.

    Each is as wide as a phone, so that a page never has to shrink one.
    """

    def __init__(self, titles: Sequence[str], labels: Sequence[str]) -> None:
        plot_width = _PLOT_INCHES[0] + text_inches(labels)
        self._data_share = (
            _PLOT_INCHES[0] / plot_width
        )  # of the axes' width; the rest is for labels
        width, height = _LEFT_INCHES + plot_width, _BOTTOM_INCHES + _PLOT_INCHES[1] + _TOP_INCHES
        position = (
            _LEFT_INCHES / width,
            _BOTTOM_INCHES / height,
            plot_width / width,
            _PLOT_INCHES[1] / height,
        )
        self._titles = titles
        self._figures: list[Figure] = []
        self.axes: list[Axes] = []
        for title in titles:
            first = self.axes[0] if self.axes else None
            figure = Figure(figsize=(width, height))
            ax = figure.add_axes(position, sharex=first, sharey=first)
            ax.set_title(shorten(title, plot_width))
            ax.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
            ax.tick_params(length=2.5, width=0.6)
            self._figures.append(figure)
            self.axes.append(ax)

    def name_y(
        self, meaning: str, form: str | Callable[[float, object], str] | None = None
    ) -> None:
        """Names the y axis and sets the form of its numbers."""
        for ax in self.axes:
            ax.set_ylabel(meaning)
        if form is not None:
            self.axes[0].yaxis.set_major_formatter(form)

    def set_x(self, first: int, last: int, meaning: str) -> None:
        """Sets the x axis to whole numbers from `first` to `last`."""
        ticks = MaxNLocator(nbins=9, integer=True).tick_values(first, last)
        inside = [tick for tick in ticks if first <= tick <= last]
        self._set_x(first - _MARGIN, last + _MARGIN, inside, meaning)

    def set_categories(self, names: Sequence[str], meaning: str) -> None:
        """Sets the x axis to named categories at 0, 1, ..."""
        last = len(names) - 1
        self._set_x(-_MARGIN, last + _MARGIN, range(len(names)), meaning)
        for ax in self.axes:
            ax.set_xticks(range(len(names)), names)

    def set_amount(self, last: float, meaning: str) -> None:
        """Sets the x axis to amounts from 0 to `last`."""
        ticks = MaxNLocator(nbins=4).tick_values(0, last)
        self._set_x(0, last, [tick for tick in ticks if 0 <= tick <= last], meaning)

    def _set_x(self, low: float, high: float, ticks: Sequence[float], meaning: str) -> None:
        for ax in self.axes:
            ax.set_xlim(low, low + (high - low) / self._data_share)
            ax.set_xticks(ticks)
            ax.spines["bottom"].set_bounds(low, high)
            ax.set_xlabel(meaning, loc="left")
        self._labels_x = high + 0.03 * (high - low)

    def hide_y(self) -> None:
        """Hides the y axis, for bars that are named at their right end."""
        for ax in self.axes:
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)

    def label_ends(self, labels_of_panels: Sequence[Sequence[Label]]) -> None:
        """Names lines and bars at their right end, moved apart if the names would overlap."""
        for ax, labels in zip(self.axes, labels_of_panels, strict=True):
            low, high = ax.get_ylim()
            gap = (high - low) * 1.2 * _FONT_SIZE / 72 / _PLOT_INCHES[1]
            for label in spaced(labels, gap):
                # Colored letters would be too pale on white or on black, so a dot has the color.
                position = self._labels_x, label.y
                ax.text(*position, "\u25cf", color=label.color, va="center")
                ax.annotate(
                    label.text,
                    position,
                    (_FONT_SIZE, 0),
                    textcoords="offset points",
                    va="center",
                    annotation_clip=False,
                )

    def reference_line(self, ax: Axes) -> None:
        """Draws the dashed line of K = 0, at 1."""
        ax.axhline(1.0, xmax=self._data_share, **DASHED)

    def chart(self, title: str, setting: str, caption: str) -> Chart:
        for ax in self.axes:
            for tick in ax.yaxis.get_major_ticks():
                tick.gridline.set_xdata([0, self._data_share])
        return chart(self._figures, title, setting, caption, self._titles)


def draw_speedup(
    ax: Axes,
    x: float,
    speedup: Interval,
    style: SeriesStyle,
    *,
    size: float,
    valid: bool,
    name: str,
    alpha: float = 1.0,
    marker: str | None = None,
) -> None:
    """Draws a point with its interval, hollow if it is invalid; `marker` replaces the style's.

    Its hover text is `name` and the speedup.
    """
    text = f"{name}: {speedup_text(speedup)}{'' if valid else ', invalid'}"
    if speedup.low is not None and speedup.high is not None:
        ax.vlines(x, speedup.low, speedup.high, color=style.color, linewidth=1.0, alpha=alpha)
        hover_area = ax.vlines(
            x, speedup.low, speedup.high, color=INK, alpha=0, linewidth=_HOVER_POINTS
        )
        hover(hover_area, text)
    (point,) = ax.plot(
        x,
        speedup.estimate,
        marker=marker or style.marker,
        markersize=size,
        color=style.color,
        markerfacecolor=style.color if valid else "none",
        alpha=alpha,
        zorder=4,
    )
    hover(point, text)


def chart(
    figures: Sequence[Figure], title: str, setting: str, caption: str, names: Sequence[str] = ()
) -> Chart:
    """The chart of finished figures; `names` has one name per figure."""
    described = [f"{title}: {', '.join((setting, name))}" for name in names] or [
        f"{title}: {setting}"
    ]
    return Chart(
        title=title,
        setting=setting,
        caption=caption,
        panels=tuple(to_svg(figure, text) for figure, text in zip(figures, described, strict=True)),
    )


def text_inches(texts: Sequence[str]) -> float:
    """An upper estimate of the width of the longest text with its dot."""
    longest = max(map(len, texts), default=0)
    return _GAP_INCHES + _FONT_SIZE / 72 + longest * _CHARACTER_INCHES if longest else 0.0


def shorten(text: str, inches: float) -> str:
    """The text; an ellipsis replaces its middle if it is wider than `inches`."""
    most = max(int(inches / _CHARACTER_INCHES), 3)
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}\u2026{text[len(text) - end :]}"


def spaced(labels: Sequence[Label], gap: float) -> list[Label]:
    """The labels from low to high, moved at least `gap` apart; a crowd keeps its middle."""
    crowds: list[list[Label]] = []
    for label in sorted(reversed(labels), key=lambda label: label.y):  # of a tie the first on top
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


def _heights(crowd: Sequence[Label], gap: float) -> list[float]:
    """The heights of a crowd's labels: `gap` apart around the mean of their original heights."""
    bottom = sum(label.y for label in crowd) / len(crowd) - gap * (len(crowd) - 1) / 2
    return [bottom + gap * i for i in range(len(crowd))]
