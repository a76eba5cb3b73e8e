"""The text of each token of an answer, as a reader sees it appear."""

from collections.abc import Callable, Sequence

_HALF = "\ufffd"  # what a tokenizer shows for a character whose bytes are not all there yet


def text_pieces(text: Callable[[Sequence[int]], str], ids: Sequence[int]) -> tuple[str, ...]:
    """A text for each id; joined they are `text(ids)`. `text` decodes ids.

    A token that only begins a character has an empty piece, the one that completes it has it
    whole. What a token looks like may depend on the one before it, so each is decoded after those
    of the piece before, and not alone; decoding from the start every time would be quadratic.
    """
    pieces: list[str] = []
    before, begun = 0, 0  # ids of the piece before; ids not shown yet
    for end in range(1, len(ids) + 1):
        known, longer = text(ids[before:begun]), text(ids[before:end])
        if longer.endswith(_HALF) and end < len(ids):
            pieces.append("")
            continue
        pieces.append(longer[len(known) :])
        before, begun = begun, end
    return tuple(pieces)
