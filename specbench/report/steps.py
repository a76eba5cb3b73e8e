"""One generation per question, round by round, with the drafted and accepted parts of its text, for
the HTML page.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from specbench.metrics.cell import CellData
from specbench.records import CellKey, ReferenceRecord, RequestRecord, RoundLog
from specbench.words.numbers import measured, plural

STEPS_LEGEND = (
    "Each box is one round. Underlined text was drafted and accepted, bold text is the target's "
    "next token, and a number after a minus sign counts rejected draft tokens. The text before "
    "the first box came from prefill, or from verifying a predicted output in one pass."
)
_MOST_ROUNDS = 150  # more are tiring to read


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRound:
    """The draft tokens of one round and the text it added."""

    hover_text: str
    accepted: str
    bonus: str  # the target's next token; "" if the output ended before it
    num_rejected: int  # draft tokens that were not accepted, those after the first included
    after: str  # the line end at the end of the round's text, which follows the box


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownGeneration:
    """An output of one cell."""

    title: str
    before: str  # from prefill, and of a predicted output, verified in one pass
    steps: tuple[ShownRound, ...]
    more: str  # how many rounds are left out; "" if none


def generation_of(cell: CellData, references: Iterable[ReferenceRecord]) -> ShownGeneration | None:
    """The first request whose text is stored and is the target's own greedy text.

    None if there is none, such as above temperature 0 and with servers.
    """
    at = cell.key.condition
    pieces = {
        (r.prompt_id, r.turn): r
        for r in references
        if r.pieces and (r.target, r.workload, r.context) == (at.target, at.workload, at.context)
    }
    for request in cell.finished if at.temperature == 0 else ():
        known = pieces.get((request.prompt_id, request.turn))
        if known is None or not request.rounds:
            continue
        if request.output_ids == known.output_ids[: len(request.output_ids)]:
            assert known.pieces is not None
            return _generation(cell.key, request, request.rounds, known.pieces)
    return None


def _generation(
    key: CellKey, request: RequestRecord, log: RoundLog, pieces: tuple[str, ...]
) -> ShownGeneration:
    done = 1 + request.num_checked_at_once
    before = "".join(map(_visible, pieces[:done]))
    steps: list[ShownRound] = []
    for drafted, accepted, emitted, seconds in zip(
        log.num_drafted, log.num_accepted, log.num_emitted, log.round_s, strict=True
    ):
        texts = [*map(_visible, pieces[done : done + emitted])]
        hover_text = (
            f"Round {len(steps) + 1}: {drafted} drafted, {accepted} accepted, "
            f"{measured(seconds, 's')}"
        )
        bonus = "".join(texts[accepted:])
        steps.append(_step(hover_text, "".join(texts[:accepted]), bonus, drafted - accepted))
        done += emitted
    left_out = len(steps) - _MOST_ROUNDS
    return ShownGeneration(
        title=f"{key.source}, {key.draft.length.named}, {request.prompt_id}",
        before=before,
        steps=tuple(steps[:_MOST_ROUNDS]),
        more=f"and {plural(left_out, 'more round')}" if left_out > 0 else "",
    )


def _step(hover_text: str, accepted: str, bonus: str, num_rejected: int) -> ShownRound:
    after = "\n" if (bonus or accepted).endswith("\n") else ""
    if after:
        accepted, bonus = (accepted, bonus[:-1]) if bonus else (accepted[:-1], "")
    return ShownRound(
        hover_text=hover_text,
        accepted=_unbroken(accepted),
        bonus=bonus if accepted else _unbroken(bonus),
        num_rejected=num_rejected,
        after=after,
    )


def _unbroken(text: str) -> str:
    """The text with a no-break space for a leading space, so that no line ends within the box."""
    return f"\u00a0{text[1:]}" if text.startswith(" ") else text


def _visible(piece: str) -> str:
    """The text with \u21b5 before line ends and control pictures for other control characters."""
    shown = (chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else c for c in piece)
    return "".join(shown).replace("\n", "\u21b5\n")
