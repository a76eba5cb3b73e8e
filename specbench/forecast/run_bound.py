"""What an adaptive K could gain, from the rounds of a run without traces.

A greedy draft model guesses a token from the text before it, wherever its round began. A round that
accepts a of its draft tokens shows that a guesses are right, and that the next one is wrong if it
was drafted. Only the tokens after wholly accepted rounds remain untested: as right, they bound the
gain from above, and as wrong, from below.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from specbench.doc import Doc
from specbench.forecast.adaptive_bound import with_bound
from specbench.forecast.cost_curve import CostCurve
from specbench.forecast.forecast import forecast
from specbench.methods import MODEL_METHOD
from specbench.metrics.cell import CellData, turn_of
from specbench.records import CellKey, Interval, RequestRecord, TraceRecord
from specbench.settings import BUILTIN

_MOST_TEXTS = 60  # with which a report takes about a second longer
_Text = tuple[str, int]  # prompt and turn


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBound:
    """What choosing one of the measured K for every round could gain over the best of them, which
    may be 0: ratios of decode seconds in hindsight, by the rounds of a run."""

    key: Annotated[CellKey, Doc("the cell of the largest fixed K")]
    ks: Annotated[tuple[int, ...], Doc("the measured K, to choose from", "tokens/round")]
    best: Annotated[int, Doc("the best fixed K by these rounds", "tokens/round")]
    hindsight: Annotated[
        Interval,
        Doc("the fixed K / the best K of every round, untested draft tokens as right", "x"),
    ]
    least: Annotated[Interval, Doc("the same, untested draft tokens as wrong", "x")]


def bound_of_run(cells: Sequence[CellData], adaptive: CellKey) -> RunBound | None:
    """The bound for the setting and drafter of an adaptive cell, from its fixed K.

    None unless the drafts are greedy chains of a draft model without p_min, of one request at a
    time in the built-in decoder, two or more K were measured, and the rounds show which is best.
    """
    at, draft = adaptive.condition, adaptive.draft
    if at.engine != BUILTIN or at.overlaps or at.temperature:
        return None
    if draft.method != MODEL_METHOD or draft.lossy is not None or draft.p_min is not None:
        return None
    same = [c for c in cells if c.key.question == adaptive.question and c.key.draft.is_fixed]
    by_k = {cell.k: _by_text(cell.finished) for cell in same}
    if len(by_k) < 2:
        return None
    by_k[0] = _by_text(same[0].baseline)
    texts = [
        text
        for text, request in by_k[0].items()
        if len(request.output_ids) > 1
        and all(text in of and _is_same(of[text], request, k) for k, of in by_k.items())
    ][:_MOST_TEXTS]
    if not texts:
        return None
    curve = CostCurve(costs={k: tuple(_round_s(of[t]) for t in texts) for k, of in by_k.items()})
    key = max(same, key=lambda cell: cell.k).key
    records = []
    for is_right in (True, False):
        traces = [_trace(key, text, by_k, is_right) for text in texts]
        guessed = forecast(key, traces, curve, by_k)
        records.append(with_bound(guessed, traces, curve, fits_policy=False))
    most, least = (record.adaptive for record in records)
    if most is None or least is None or records[0].best != records[1].best:
        return None
    return RunBound(
        key=key,
        ks=tuple(sorted(by_k)),
        best=records[0].best,
        hindsight=most.hindsight,
        least=least.hindsight,
    )


def _by_text(requests: Sequence[RequestRecord]) -> dict[_Text, RequestRecord]:
    """The first repeat of each text, since greedy repeats are equal."""
    first: dict[_Text, RequestRecord] = {}
    for request in requests:
        if request.rounds and request.finish_reason != "failed":
            first.setdefault(turn_of(request)[:2], request)
    return first


def _is_same(request: RequestRecord, plain: RequestRecord, k: int) -> bool:
    """Whether a request has the text of K = 0, and drafted chains."""
    assert request.rounds is not None
    return request.output_ids == plain.output_ids and max(request.rounds.num_drafted) <= k


def _round_s(request: RequestRecord) -> float:
    assert request.rounds is not None
    return sum(request.rounds.round_s) / len(request.rounds)


def _trace(
    key: CellKey, text: _Text, by_k: Mapping[int, Mapping[_Text, RequestRecord]], is_right: bool
) -> TraceRecord:
    """The rounds that could start in a text, with untested draft tokens as right or wrong."""
    request = by_k[0][text]
    num_starts = len(request.output_ids) - 1
    guesses = [is_right] * num_starts
    for of in by_k.values():
        for number, is_guessed in _tested(of[text]):
            guesses[number] = is_guessed
    # The end of the text comes before a draft of its last token: a round emits one more.
    ends = [min(key.draft.k, num_starts - 1 - start) for start in range(num_starts)]
    at = key.condition
    return TraceRecord(
        target=at.target,
        drafter=key.draft.drafter,
        method=key.draft.method,
        workload=at.workload,
        prompt_id=text[0],
        turn=text[1],
        repeat=0,
        temperature=at.temperature,
        num_speculative_tokens=key.draft.k,
        is_chain=True,
        is_exact=True,
        num_prompt_tokens=request.num_prompt_tokens,
        output_ids=request.output_ids,
        num_drafted=tuple(ends),
        chances=tuple(
            tuple(map(float, guesses[start : start + end])) for start, end in enumerate(ends)
        ),
    )


def _tested(request: RequestRecord) -> Iterator[tuple[int, bool]]:
    """The tokens that were drafted after right ones, by their number after the first, and whether
    each was guessed."""
    assert request.rounds is not None
    log, start = request.rounds, 0
    for drafted, accepted, emitted in zip(
        log.num_drafted, log.num_accepted, log.num_emitted, strict=True
    ):
        yield from ((start + i, True) for i in range(accepted))
        if accepted < drafted and emitted > accepted:
            yield start + accepted, False
        start += emitted
