"""Greedy texts of a cell as short digests: whether two runs said the same, and where they part."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from specbench.metrics.cell import CellData
from specbench.records import RequestRecord

_PER_DIGEST = 16  # tokens, or words: so the first difference is found without the text
_DIGEST_LENGTH = 6
_WORDS = "words "  # begins the digests of a text whose tokens nobody tells


def texts_of(cell: CellData) -> Mapping[str, str]:
    """Digests of every prompt's output, turn by turn; repeats that agree count once.

    Empty where text need not repeat. A server's prompts whose own repeats differ are left out.
    """
    if not _repeats_exactly(cell):
        return {}
    by_prompt: dict[str, list[RequestRecord]] = {}
    for request in sorted(cell.finished, key=lambda r: (r.prompt_id, r.turn, r.repeat, r.sample)):
        by_prompt.setdefault(request.prompt_id, []).append(request)
    return {
        prompt: _digests(requests)
        for prompt, requests in by_prompt.items()
        if not cell.servers or _agree(requests)
    }


def are_comparable(one: str, other: str) -> bool:
    """Whether two texts were hashed alike: by token ids, or by words where a server gives none."""
    return one.startswith(_WORDS) == other.startswith(_WORDS)


def first_difference(one: str, other: str) -> str:
    """Where two comparable texts first differ, counted from 1: `tokens 17 to 32`, or words."""
    unit = "words" if one.startswith(_WORDS) else "tokens"
    ours, theirs = (text.removeprefix(_WORDS).split() for text in (one, other))
    pairs = enumerate(zip(ours, theirs, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    return f"{unit} {start * _PER_DIGEST + 1} to {(start + 1) * _PER_DIGEST}"


def _repeats_exactly(cell: CellData) -> bool:
    """Whether the same machine emits the same tokens whatever is drafted: greedy, and no choice
    that hangs on time, such as which requests a server computes together."""
    key = cell.key
    is_free = (
        key.draft.is_adaptive
        or key.condition.request_rate is not None
        or key.draft.lossy is not None
        or (bool(cell.servers) and key.condition.is_stream)
    )
    return key.condition.temperature == 0 and not is_free


def _said(request: RequestRecord) -> tuple[object, ...]:
    """Token ids, or words where there are none."""
    if request.output_ids or request.text is None:
        return request.output_ids
    return tuple(request.text.split())


def _agree(requests: Iterable[RequestRecord]) -> bool:
    said = {(request.turn, _said(request)) for request in requests}
    return len(said) == len({turn for turn, _ in said})


def _digests(requests: Sequence[RequestRecord]) -> str:
    turns = dict.fromkeys((request.turn, _said(request)) for request in requests)
    whole = [piece for _, said in turns for piece in said]
    pieces = (whole[start : start + _PER_DIGEST] for start in range(0, len(whole), _PER_DIGEST))
    digests = " ".join(
        hashlib.sha256(repr(piece).encode()).hexdigest()[:_DIGEST_LENGTH] for piece in pieces
    )
    has_words = any(not request.output_ids and request.text for request in requests)
    return f"{_WORDS if has_words else ''}{digests}"
