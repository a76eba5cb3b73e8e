"""A figure as SVG inside a page: the page's ink and font, ids of its own, texts to hover over.

Hover texts are SVG titles, which every browser shows without a script. Until it is written, a
figure carries them as the ids of its artists.
"""

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from matplotlib.artist import Artist
from matplotlib.figure import Figure

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
    """What an artist says under the pointer; a text for each of its markers, or one for all."""
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
