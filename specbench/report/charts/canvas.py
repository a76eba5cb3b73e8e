"""Panels of small charts as inline SVG: neutral ink, colors that hold on white and on black.

Text takes the page's own color and font, so one picture serves light, dark and print. Hover texts
are SVG titles, which every browser shows without a script; until it is written, a figure carries
them as the ids of its artists.
"""

import hashlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.decide.explanation import speedup_text
from specbench.records import Interval

INK = "#010203"  # stands for the page's text colour
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: readable by machines, set in the page's font
    "svg.hashsalt": "specbench",  # equal data, equal bytes
}

_HOVER = "hover:"
_HOVERED = re.compile(rf'<g id="{_HOVER}([^"]*)">(.*?)</g>', re.DOTALL)
_PLACES = re.compile(r' (?:d|x|y)="[^"]*"')
_TOO_FINE = re.compile(r"(\.\d\d)\d+")  # below a hundredth of 1/72 inch


def hover(artist: Artist, *texts: str) -> None:
    """Sets the hover text of an artist: one text per marker, or one for all."""
    artist.set_gid(_HOVER + ",".join(quote(text, safe="") for text in texts))


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
    body = _PLACES.sub(lambda places: _TOO_FINE.sub(r"\1", places[0]), body)
    body = body.replace(INK, "currentColor").replace("xlink:href", "href")
    body = _HOVERED.sub(_told, body)
    name = escape(description, {'"': "&quot;"})
    width = f"--width: {view_box[1]}pt"
    return f'<svg {view_box[0]} style="{width}" role="img" aria-label="{name}">' + _own_ids(
        body.strip(), description
    )


def _told(group: re.Match[str]) -> str:
    """The group with its titles: one a marker, else one for the whole of it."""
    texts = [escape(unquote(text)) for text in group[1].split(",")]
    markers = re.findall(r"<use ", group[2])
    if len(markers) == len(texts):
        return f"<g>{''.join(_each_told(group[2], texts))}</g>"
    return f"<g><title>{texts[0]}</title>{group[2]}</g>"


def _each_told(body: str, texts: Sequence[str]) -> Iterator[str]:
    pieces = re.split(r"(<use [^>]*)/>", body)
    remaining = iter(texts)
    for i, piece in enumerate(pieces):
        yield f"{piece}><title>{next(remaining)}</title></use>" if i % 2 else piece


def _own_ids(body: str, description: str) -> str:
    """Ids that no other picture of the page has."""
    own = hashlib.sha256(description.encode()).hexdigest()[:6]
    body = re.sub(r' id="', rf' id="{own}-', body)
    return re.sub(r'(href="|url\()#', rf"\1#{own}-", body)


# Mid-tones of well separated hues (after Okabe and Ito): at least 3:1 on white and near-black.
SERIES = ("#2f7fd1", "#d9622b", "#1f9e78", "#a06cc9", "#b5851b", "#d1588f")
MARKERS = ("o", "s", "^", "D", "v", "P")  # a second cue beside colour
DRAFT, VERIFY, REST = "#b5851b", "#1a8fa8", "#7d8590"

# Places are fixed in inches, not fitted to the text: a layout engine took three quarters of
# the time of a chart.
_PLOT_INCHES = (2.1, 1.7)  # where the data are drawn
_LEFT_INCHES, _BOTTOM_INCHES, _TOP_INCHES = 0.75, 0.5, 0.3  # for the axis and the title
_CHARACTER_INCHES = 0.072
_GAP_INCHES = 0.1  # between the plot and what stands at its right end
_FONT_SIZE = 9.0
_REACH = 11.0  # points: how close to an interval a pointer has to be
_MARGIN = 0.45  # of the x axis, left of the first and right of the last number

_STYLE: dict[Any, Any] = {
    **STYLE,
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
    """One picture with its words, in panels that a page sets side by side or one a row."""

    title: str
    setting: str  # which target, temperature, number of requests: a chart may travel alone
    caption: str
    panels: tuple[str, ...]  # SVG for use inside an HTML page


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
    """Small pictures with the same axes, each with room at its right for labels.

    Each is as wide as a phone, so that a page never has to shrink one.
    """

    def __init__(self, titles: Sequence[str], labels: Sequence[str]) -> None:
        plot_width = _PLOT_INCHES[0] + text_inches(labels)
        self._share = _PLOT_INCHES[0] / plot_width  # of a panel's width, left of the labels
        width, height = _LEFT_INCHES + plot_width, _BOTTOM_INCHES + _PLOT_INCHES[1] + _TOP_INCHES
        place = (
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
            ax = figure.add_axes(place, sharex=first, sharey=first)
            ax.set_title(fitting(title, plot_width))
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
                # A dot has the colour: letters in it would be too pale on one of the papers.
                place = self._labels_x, label.y
                ax.text(*place, "\u25cf", color=label.colour, va="center")
                ax.annotate(
                    label.text,
                    place,
                    (_FONT_SIZE, 0),
                    textcoords="offset points",
                    va="center",
                    annotation_clip=False,
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
        return chart(self._figures, title, setting, caption, self._titles)


def draw_speedup(
    ax: Axes,
    x: float,
    speedup: Interval,
    style: SeriesStyle,
    *,
    size: float,
    valid: bool,
    says: str,
    alpha: float = 1.0,
    marker: str | None = None,
) -> None:
    """A point with its interval, hollow where it is invalid; `marker`: instead of the style's.

    `says`: what it is called under the pointer, before its figures.
    """
    told = f"{says}: {speedup_text(speedup)}{'' if valid else ', invalid'}"
    if speedup.low is not None and speedup.high is not None:
        ax.vlines(x, speedup.low, speedup.high, color=style.colour, linewidth=1.0, alpha=alpha)
        reach = ax.vlines(x, speedup.low, speedup.high, color=INK, alpha=0, linewidth=_REACH)
        hover(reach, told)
    (point,) = ax.plot(
        x,
        speedup.estimate,
        marker=marker or style.marker,
        markersize=size,
        color=style.colour,
        markerfacecolor=style.colour if valid else "none",
        alpha=alpha,
        zorder=4,
    )
    hover(point, told)


def chart(
    figures: Sequence[Figure], title: str, setting: str, caption: str, names: Sequence[str] = ()
) -> Chart:
    """Finished figures with their words; `names` tell them apart."""
    described = [f"{title}: {', '.join((setting, name))}" for name in names] or [
        f"{title}: {setting}"
    ]
    return Chart(
        title=title,
        setting=setting,
        caption=caption,
        panels=tuple(to_svg(*one) for one in zip(figures, described, strict=True)),
    )


def text_inches(texts: Sequence[str]) -> float:
    """Room that the longest of the texts takes with its dot, generously."""
    longest = max(map(len, texts), default=0)
    return _GAP_INCHES + _FONT_SIZE / 72 + longest * _CHARACTER_INCHES if longest else 0.0


def fitting(text: str, inches: float) -> str:
    """The text, without its middle where it would take more room than this."""
    most = max(int(inches / _CHARACTER_INCHES), 3)
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}\u2026{text[len(text) - end :]}"


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


def _heights(crowd: Sequence[Label], gap: float) -> list[float]:
    """Where the labels of a crowd go: `gap` apart around the mean of what they name."""
    bottom = sum(label.y for label in crowd) / len(crowd) - gap * (len(crowd) - 1) / 2
    return [bottom + gap * i for i in range(len(crowd))]
