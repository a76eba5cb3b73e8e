"""Panels of small charts as inline SVG: neutral ink, colours that hold on white and on black.

Text takes the page's own colour and font, so one picture serves light, dark and print.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Mid-tones of well separated hues (after Okabe and Ito): at least 3:1 on white and near-black.
SERIES = ("#2f7fd1", "#d9622b", "#1f9e78", "#a06cc9", "#b5851b", "#d1588f")
MARKERS = ("o", "s", "^", "D", "v", "P")  # a second cue beside colour
FIRST_PART, SECOND_PART, REST = "#1a8fa8", "#b5851b", "#7d8590"
INK = "#010203"  # stands for the page's text colour, see `_inline`

PAGE_INCHES = 10.0
PANEL_INCHES = (2.65, 2.35)
LABEL_INCHES_PER_CHARACTER = 0.075
FONT_SIZE = 8.0

_STYLE = {
    "svg.fonttype": "none",  # text stays text: readable by machines, set in the page's font
    "svg.hashsalt": "specbench",  # equal data, equal bytes
    "text.parse_math": False,  # a name may contain $
    "text.color": INK,
    "font.size": FONT_SIZE,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": FONT_SIZE + 1,
    "axes.titlelocation": "left",
    "axes.labelsize": FONT_SIZE,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
}


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


def panels(count: int, labels: Sequence[str]) -> tuple[Figure, list[Axes], float]:
    """A figure of `count` panels in rows, with room right of each for the longest label.

    The third result is the part of a panel's width that its data may fill.
    """
    room = max(map(len, labels), default=0) * LABEL_INCHES_PER_CHARACTER
    width = PANEL_INCHES[0] + room
    num_columns = min(count, max(1, int(PAGE_INCHES // width)))
    num_rows = -(-count // num_columns)
    figure = Figure(figsize=(num_columns * width, num_rows * PANEL_INCHES[1]), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharey=True, sharex=True)
    axes = [ax for line in grid for ax in line]
    for ax in axes[count:]:
        ax.remove()
    for ax in axes[:count]:
        ax.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        ax.tick_params(length=2.5, width=0.6, labelleft=True, labelbottom=True)
    return figure, axes[:count], PANEL_INCHES[0] / width


def whole_numbers(ax: Axes, first: float, last: float, share: float) -> None:
    """Ticks at integers from first to last, which fill `share` of the width."""
    pad = 0.35
    span = last - first + 2 * pad
    ax.set_xlim(first - pad, first - pad + span / share)
    locator = MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10])
    ax.set_xticks([t for t in locator.tick_values(first, last) if first <= t <= last])
    ax.spines["bottom"].set_bounds(first - pad, last + pad)


def label_ends(ax: Axes, x: float, labels: Sequence[Label]) -> None:
    """Write labels right of x, moved apart where they would overlap."""
    low, high = ax.get_ylim()
    height = ax.get_position().height * ax.get_figure(root=True).get_figheight()
    gap = (high - low) * FONT_SIZE * 1.15 / 72 / max(height, 0.1)
    for label in spread(labels, gap):
        ax.text(x, label.y, label.text, color=label.colour, va="center", ha="left")


def spread(labels: Sequence[Label], gap: float) -> list[Label]:
    """The labels from low to high, at least `gap` apart and as near their place as that allows."""
    groups: list[list[Label]] = []
    for label in sorted(labels, key=lambda label: label.y):
        groups.append([label])
        while len(groups) > 1 and _top(groups[-2], gap) + gap > _bottom(groups[-1], gap):
            last = groups.pop()
            groups[-1] += last
    return [
        label._replace(y=_bottom(group, gap) + i * gap)
        for group in groups
        for i, label in enumerate(group)
    ]


def to_svg(figure: Figure, description: str) -> str:
    """The figure for use inside an HTML page; `description` is what a screen reader says."""
    buffer = io.StringIO()
    absent = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=absent)
    return _inline(buffer.getvalue(), description)


def _inline(svg: str, description: str) -> str:
    """Without prologue, fixed size, font names and ids that nothing refers to."""
    body = svg[svg.index("<svg ") :]
    view_box = re.search(r'viewBox="[^"]*"', body)
    assert view_box is not None
    body = body[body.index(">") + 1 :]
    body = re.sub(r"<(g|path|defs|text) id=\"(?:\w+_\d+)\"", r"<\1", body)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    body = body.replace(INK, "currentColor").replace("xlink:href", "href")
    name = description.translate(str.maketrans({"&": "&amp;", "<": "&lt;", '"': "&quot;"}))
    return f'<svg {view_box[0]} role="img" aria-label="{name}">{body.strip()}'


def _bottom(group: list[Label], gap: float) -> float:
    """Where the group starts when its middle is the mean of what it names."""
    return sum(label.y for label in group) / len(group) - gap * (len(group) - 1) / 2


def _top(group: list[Label], gap: float) -> float:
    return _bottom(group, gap) + gap * (len(group) - 1)
