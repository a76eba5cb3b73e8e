"""Splits the text of an answer into the pieces that its tokens add."""

from collections.abc import Callable, Sequence

_HALF = "\ufffd"  # the decoded text of an incomplete character


def text_pieces(text: Callable[[Sequence[int]], str], ids: Sequence[int]) -> tuple[str, ...]:
    """A text for each id; joined they are `text(ids)`. `text` decodes ids.

    A token that only begins a character has an empty piece; the token that completes it has the
    whole character. The text of a token may depend on the token before it, so each is decoded
    together with the ids of the piece before; decoding from the start would be quadratic.
    """
    pieces: list[str] = []
    before, begun = 0, 0  # starts of the previous piece and of the current one
    for end in range(1, len(ids) + 1):
        known, longer = text(ids[before:begun]), text(ids[before:end])
        if longer.endswith(_HALF) and end < len(ids):
            pieces.append("")
            continue
        pieces.append(longer[len(known) :])
        before, begun = begun, end
    return tuple(pieces)
