"""One generation per question, round by round, for the HTML page."""

from dataclasses import dataclass

from specbench.decide.recommend import lower_bound
from specbench.metrics.generation import DecodedRequest, DecodedRound
from specbench.report.document import Document
from specbench.report.numbers import measured, plural
from specbench.report.sections import Section, sections

STEPS_LEGEND = (
    "Each box is one round. Underlined text was drafted and accepted, bold text is the target's "
    "next token, and a number after a minus sign counts rejected draft tokens. The text before "
    "the first box came from prefill, or from verifying a predicted output in one pass."
)
_MOST_ROUNDS = 150  # more are tiring to read


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRound:
    """A round on the page."""

    hover_text: str
    accepted: str
    bonus: str
    num_rejected: int
    after: str  # the line end at the end of the round's text, which follows the box


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownGeneration:
    """A generation on the page."""

    title: str
    before: str  # the text before the first round
    steps: tuple[ShownRound, ...]
    more: str  # how many rounds are left out; "" if none


def steps(document: Document) -> tuple[ShownGeneration, ...]:
    """A generation of each section's answer, if the text of a request is stored."""
    shown = ((section, _request_of(section, document)) for section in sections(document))
    return tuple(_steps(section, request) for section, request in shown if request is not None)


def _request_of(section: Section, document: Document) -> DecodedRequest | None:
    quoted = section.best or max(section.decisions, key=lower_bound, default=None)
    return document.generations.get(quoted.leader) if quoted else None


def _steps(section: Section, request: DecodedRequest) -> ShownGeneration:
    key, left_out = request.key, len(request.rounds) - _MOST_ROUNDS
    return ShownGeneration(
        title=f"{section.title}: {key.source}, {key.draft.length.named}, {request.prompt_id}",
        before="".join(_visible(piece) for piece in (request.first, *request.checked)),
        steps=tuple(_step(i + 1, part) for i, part in enumerate(request.rounds[:_MOST_ROUNDS])),
        more=f"and {plural(left_out, 'more round')}" if left_out > 0 else "",
    )


def _step(number: int, part: DecodedRound) -> ShownRound:
    accepted, bonus = "".join(map(_visible, part.accepted)), _visible(part.bonus or "")
    after = "\n" if (bonus or accepted).endswith("\n") else ""
    if after:
        accepted, bonus = (accepted, bonus[:-1]) if bonus else (accepted[:-1], "")
    return ShownRound(
        hover_text=(
            f"Round {number}: {part.num_drafted} drafted, {len(part.accepted)} accepted, "
            f"{measured(part.seconds, 's')}"
        ),
        accepted=_unbroken(accepted),
        bonus=bonus if accepted else _unbroken(bonus),
        num_rejected=part.num_rejected,
        after=after,
    )


def _unbroken(text: str) -> str:
    """The text with a no-break space for a leading space, so that no line ends within the box."""
    return f"\u00a0{text[1:]}" if text.startswith(" ") else text


def _visible(piece: str) -> str:
    """The text with \u21b5 before line ends and control pictures for other control characters."""
    shown = (chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else c for c in piece)
    return "".join(shown).replace("\n", "\u21b5\n")
