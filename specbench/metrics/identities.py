"""What must hold in every round, request and pass of a correct decoder."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from specbench.metrics.cell import Pass, finished
from specbench.records import RequestRecord, RoundLog, RoundTimeline


class _RoundIdentity(NamedTuple):
    """What must hold in every round of a correct decoder; `text` names the failure."""

    text: str
    holds: Callable[[int, int, int, int], bool]  # drafted, accepted, emitted, K


_ROUND_IDENTITIES = (
    _RoundIdentity(
        "num_accepted > num_drafted or num_accepted > K",
        lambda drafted, accepted, _, k: 0 <= accepted <= min(drafted, k),
    ),
    _RoundIdentity(
        "num_emitted outside num_accepted .. num_accepted + 1, or 0",
        lambda _, accepted, emitted, __: emitted != 0 and accepted <= emitted <= accepted + 1,
    ),
)


class _Identity(NamedTuple):
    """What must hold in every request."""

    text: str
    holds: Callable[[RequestRecord, RoundLog], bool]


_IDENTITIES = (
    _Identity(
        "output tokens are not 1 + predicted-output tokens + sum of num_emitted",
        lambda request, log: (
            request.num_output_tokens == 1 + request.num_checked_at_once + sum(log.num_emitted)
        ),
    ),
    _Identity(
        "the check of a predicted output accepts more than it drafts or emits",
        lambda request, _: (
            (check := request.answer_check) is None
            or 0 <= check.num_accepted <= min(check.num_drafted, check.num_emitted)
        ),
    ),
)


class _PassIdentity(NamedTuple):
    """What must hold in every pass."""

    text: str
    holds: Callable[[Pass, RoundTimeline, int], bool]


_PASS_IDENTITIES = (
    _PassIdentity(
        "a round exceeds the cell's K",
        lambda _, rounds, k: all(0 <= n <= k for n in rounds.num_speculative_tokens),
    ),
    _PassIdentity(
        "num_live > num_rows",
        lambda _, rounds, __: all(
            0 <= live <= rows for live, rows in zip(rounds.num_live, rounds.num_rows, strict=True)
        ),
    ),
    _PassIdentity(
        "tokens on the time line do not match its requests",
        lambda served, rounds, _: (
            sum(rounds.num_emitted)
            == sum(r.num_output_tokens - 1 - r.num_checked_at_once for r in served.requests)
        ),
    ),
)


def broken_identities(requests: tuple[RequestRecord, ...], k: int) -> Iterator[str]:
    """Those that requests break, and how many do; rounds that are equal are looked at once."""
    logged = [(request, request.rounds) for request in requests if request.rounds is not None]
    kinds = set(chain.from_iterable(_counts(log) for _, log in logged))
    found: list[tuple[str, list[RequestRecord]]] = []
    for text, is_sound in _ROUND_IDENTITIES:
        wrong = {kind for kind in kinds if not is_sound(*kind, k)}
        found.append(
            (text, [r for r, log in logged if wrong and not wrong.isdisjoint(_counts(log))])
        )
    for text, holds in _IDENTITIES:
        found.append((text, [request for request, log in logged if not holds(request, log)]))
    for text, broken in found:
        if broken:
            where = f"{len(broken)} of {len(logged)} requests, first {broken[0].prompt_id}"
            yield f"identity broken: {text} ({where})"


def broken_passes(passes: tuple[Pass, ...], k: int) -> Iterator[str]:
    """Those that passes without a failed request break."""
    whole = [p for p in passes if len(finished(p.requests)) == len(p.requests)]
    logged = [(p, p.record.rounds) for p in whole if p.record.rounds is not None]
    for text, holds in _PASS_IDENTITIES:
        broken = sum(not holds(served, rounds, k) for served, rounds in logged)
        if broken:
            yield f"identity broken: {text} ({broken} of {len(logged)} passes)"


def _counts(log: RoundLog) -> Iterator[tuple[int, int, int]]:
    return zip(log.num_drafted, log.num_accepted, log.num_emitted, strict=True)
