"""An engine's counts of one answer, cut at the answer's end as those of our decoder are.

Every round emits what it accepts and one token more. What the rounds that drafted would have
emitted beyond the answer is what the last of them accepted past the end; what they did not emit
came from rounds that drafted nothing. Where both happen, each hides the other, unless the engine
tells more. A draft that ends the text goes past the end, too: of an answer that is known, as that
of a greedy cell is, our decoder drafts all but the last token.
"""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn, TypeVar

from pydantic import ValidationError

from specbench.records import RequestCounts
from specbench.servers.client import ServerError, nonsense
from specbench.servers.metrics_page import MOST_POSITIONS
from specbench.servers.streamed import Part, Streamed

Told = TypeVar("Told", bound=Part)


class Round(NamedTuple):
    """A round that drafted something."""

    num_drafted: int
    num_accepted: int


def read_counts(form: type[Told], told: object) -> Told:
    """What a server says of one answer, as `form` reads it; ServerError names what is wrong."""
    try:
        return form.model_validate(told)
    except ValidationError as error:
        raise ServerError(f"the server's counts cannot be read: {nonsense(error)}") from error


def of_rounds(
    answer: Streamed, rounds: Sequence[Round], k: int, *, num_overshot: int | None = None
) -> RequestCounts:
    """Counts from the rounds that drafted, in order; ServerError if they do not fit the answer."""
    num_accepted = sum(one.num_accepted for one in rounds)
    if not all(0 <= one.num_accepted <= min(one.num_drafted, MOST_POSITIONS) for one in rounds):
        _refuse(answer, num_accepted, len(rounds))
    num_rounds, num_overshot = _cut(answer, num_accepted, len(rounds), num_overshot)
    accepted = [one.num_accepted for one in rounds]
    if num_overshot:
        accepted[-1] -= num_overshot
        if accepted[-1] < 0:
            _refuse(answer, num_accepted, len(rounds))
    # A text that ended inside its drafts has rejected none of them.
    judged = rounds[:-1] if num_overshot else rounds
    by_accepted = [accepted.count(i) for i in range(max([k, *accepted]) + 1)]
    by_accepted[0] += num_rounds - len(rounds)
    return RequestCounts(
        num_rounds=num_rounds,
        num_drafted=sum(one.num_drafted for one in rounds),
        num_accepted=sum(accepted),
        num_drafting=len(rounds),
        num_rejecting=sum(one.num_accepted < one.num_drafted for one in judged),
        num_by_accepted=tuple(by_accepted),
        num_overshot=num_overshot,
    )


def of_sums(
    answer: Streamed, *, num_accepted: int, num_drafted: int | None, num_drafting: int | None = None
) -> RequestCounts:
    """Counts from sums, which tell nothing of rejections and positions. ServerError as above."""
    num_rounds, num_overshot = _cut(answer, num_accepted, num_drafting or 0)
    return RequestCounts(
        num_rounds=num_rounds,
        num_drafted=num_drafted,
        num_accepted=num_accepted - num_overshot,
        num_drafting=num_drafting,
        num_overshot=num_overshot,
    )


def _cut(
    answer: Streamed, num_accepted: int, num_drafting: int, num_overshot: int | None = None
) -> tuple[int, int]:
    """The rounds of the answer, and the drafts accepted past its end."""
    num_later = (answer.num_tokens or len(answer.token_ids) or 1) - 1
    if num_overshot is None:
        num_overshot = max(num_drafting + num_accepted - num_later, 0)
    num_rounds = num_later - num_accepted + num_overshot
    if num_overshot > num_accepted or num_rounds < num_drafting:
        _refuse(answer, num_accepted, num_drafting)
    return num_rounds, num_overshot


def _refuse(answer: Streamed, num_accepted: int, num_drafting: int) -> NoReturn:
    raise ServerError(
        f"the server counts {num_accepted} accepted drafts in {num_drafting} rounds for an answer "
        f"of {answer.num_tokens} tokens, which cannot be; none of its counts can be used"
    )
