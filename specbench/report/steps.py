"""One generation per question, round by round, in words for a page."""

from dataclasses import dataclass

from specbench.decide.recommend import lower_bound
from specbench.metrics.generation import DecodedRequest, DecodedRound
from specbench.report.document import Document
from specbench.report.numbers import measured, plural
from specbench.report.sections import Section, sections

STEPS_LEGEND = (
    "Each box is a round: underlined text was drafted and accepted, bold text is the target's own "
    "next token, a number after a minus sign counts the drafted tokens that were not accepted. The "
    "text before the first box came from prefill, or from checking a predicted output at once."
)
_MOST_ROUNDS = 150  # a reader has seen enough


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRound:
    """A round as the page shows it."""

    says: str  # in full, under the pointer
    accepted: str
    bonus: str
    num_rejected: int
    after: str  # a line end that closes the round's text stands behind the box


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownGeneration:
    """A generation as the page shows it."""

    title: str
    before: str  # the text that no round emitted
    steps: tuple[ShownRound, ...]
    more: str  # what is left out; "" where nothing is


def steps(document: Document) -> tuple[ShownGeneration, ...]:
    """For each section the drafter of its answer, if the text of a request is stored."""
    found = ((section, _shown(section, document)) for section in sections(document))
    return tuple(_steps(section, one) for section, one in found if one is not None)


def _shown(section: Section, document: Document) -> DecodedRequest | None:
    quoted = section.best or max(section.decisions, key=lower_bound, default=None)
    return document.generations.get(quoted.leader) if quoted else None


def _steps(section: Section, one: DecodedRequest) -> ShownGeneration:
    left_out = len(one.rounds) - _MOST_ROUNDS
    return ShownGeneration(
        title=f"{section.title}: {one.key.source}, {one.key.draft.length.named}, {one.prompt_id}",
        before="".join(_visible(piece) for piece in (one.first, *one.checked)),
        steps=tuple(_step(i + 1, own) for i, own in enumerate(one.rounds[:_MOST_ROUNDS])),
        more=f"and {plural(left_out, 'more round')}" if left_out > 0 else "",
    )


def _step(number: int, one: DecodedRound) -> ShownRound:
    accepted, bonus = "".join(map(_visible, one.accepted)), _visible(one.bonus or "")
    after = "\n" if (bonus or accepted).endswith("\n") else ""
    if after:
        accepted, bonus = (accepted, bonus[:-1]) if bonus else (accepted[:-1], "")
    return ShownRound(
        says=(
            f"Round {number}: {one.num_drafted} drafted, {len(one.accepted)} accepted, "
            f"{measured(one.seconds, 's')}"
        ),
        accepted=_unbroken(accepted),
        bonus=bonus if accepted else _unbroken(bonus),
        num_rejected=one.num_rejected,
        after=after,
    )


def _unbroken(text: str) -> str:
    """A leading space as one at which no line ends: a box would be torn between it and its word."""
    return f"\u00a0{text[1:]}" if text.startswith(" ") else text


def _visible(piece: str) -> str:
    """Line ends with a sign of their own; other control characters as pictures of themselves."""
    shown = (chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else c for c in piece)
    return "".join(shown).replace("\n", "\u21b5\n")
