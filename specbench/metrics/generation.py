"""One generation round by round, with the drafted and accepted parts of its text."""

from collections.abc import Iterable
from dataclasses import dataclass

from specbench.metrics.cell import CellData
from specbench.records import CellKey, ReferenceRecord, RequestRecord, RoundLog


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedRound:
    """The draft tokens of one round and the text it added."""

    num_drafted: int  # of a tree its nodes
    accepted: tuple[str, ...]  # one piece per accepted draft token
    bonus: str | None  # the target's next token; None if the output ended before it
    seconds: float

    @property
    def num_rejected(self) -> int:
        """Draft tokens that were not accepted, those after the first rejection included."""
        return self.num_drafted - len(self.accepted)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedRequest:
    """An output of one cell."""

    key: CellKey
    prompt_id: str
    first: str  # the piece that came from prefill
    checked: tuple[str, ...]  # those of a predicted output, verified in one pass before the rounds
    rounds: tuple[DecodedRound, ...]


def generation_of(cell: CellData, references: Iterable[ReferenceRecord]) -> DecodedRequest | None:
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
) -> DecodedRequest:
    done = 1 + request.num_checked_at_once
    rounds = []
    for drafted, accepted, emitted, seconds in zip(
        log.num_drafted, log.num_accepted, log.num_emitted, log.round_s, strict=True
    ):
        texts = pieces[done : done + emitted]
        rounds.append(
            DecodedRound(
                num_drafted=drafted,
                accepted=texts[:accepted],
                bonus=texts[accepted] if emitted > accepted else None,
                seconds=seconds,
            )
        )
        done += emitted
    return DecodedRequest(
        key=key,
        prompt_id=request.prompt_id,
        first=pieces[0],
        checked=pieces[1 : 1 + request.num_checked_at_once],
        rounds=tuple(rounds),
    )
