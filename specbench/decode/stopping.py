"""Ends an answer at a stop string, which may begin in one token and end in another."""

from collections.abc import Callable, Sequence

_TOKENS_PER_CHARACTER = 4  # at most: a token has at least one byte of UTF-8


def length_to_stop(
    ids: Sequence[int], num_new: int, stop: Sequence[str], text: Callable[[Sequence[int]], str]
) -> int | None:
    """The tokens of an answer up to the one that completes a stop string.

    None unless one of the last `num_new` tokens does. `text` decodes ids.
    """
    if not stop:
        return None
    first_new = len(ids) - num_new
    begin = max(first_new - _TOKENS_PER_CHARACTER * max(map(len, stop)), 0)

    def is_stopped(end: int) -> bool:
        window = text(ids[begin:end])
        return any(string in window for string in stop)

    if not is_stopped(len(ids)):
        return None
    return next(end for end in range(first_new + 1, len(ids) + 1) if is_stopped(end))


def text_before(stop: Sequence[str], text: str) -> str:
    """The text before its first stop string."""
    return text[: min((text.find(string) for string in stop if string in text), default=len(text))]
