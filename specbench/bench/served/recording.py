"""Makes the records of a server's answers and of its session."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specbench.bench.blocks import Cell
from specbench.bench.served.running import ServerHandle
from specbench.bench.served.sessions import Session
from specbench.engines.served_engine import find_served, result_of
from specbench.records import Request, RequestRecord, ServerRecord, ids_sha256
from specbench.servers.streamed import Streamed


def request_records(
    session: Session, cell: Cell, requests: Sequence[Request], answers: Sequence[Streamed]
) -> tuple[RequestRecord, ...]:
    """The records of one condition's requests, in their order."""
    engine = find_served(session.engine)
    results = [result_of(engine, answer, session.draft.k) for answer in answers]
    began_s = min((answer.sent_s for answer in answers), default=0.0)
    return tuple(
        RequestRecord.of(cell.key.id, request, result, **_of_prompt(cell, answer, began_s))
        if result.error is None
        else RequestRecord.of(cell.key.id, request, result)
        for request, answer, result in zip(requests, answers, results, strict=True)
    )


def _of_prompt(cell: Cell, answer: Streamed, began_s: float) -> dict[str, Any]:
    """Fields about the prompt as the server reports it, and the time at which it was sent."""
    return {
        "num_prompt_tokens": answer.num_prompt_tokens or 0,
        "prompt_sha256": ids_sha256(answer.prompt_ids) if answer.prompt_ids else None,
        "arrived_s": answer.sent_s - began_s if cell.key.condition.overlaps else None,
    }


def broken_off(
    session: Session, name: str, running: ServerHandle, problems: Sequence[str]
) -> ServerRecord:
    """The record of a session whose server came up, with the server's facts."""
    facts = running.facts
    return replace(
        unusable(session, name, problems),
        version=facts.version,
        model=facts.model,
        addresses=() if running.command else tuple(c.address.root for c in running.clients),
        command=running.command,
        settings=facts.settings,
        prefix_cache=facts.prefix_cache,
        acceptance_rule=running.acceptance_rule,
        kv_tokens=facts.kv_tokens,
        start_s=running.start_s,
        log=running.log,
    )


def unusable(session: Session, name: str, problems: Sequence[str]) -> ServerRecord:
    """The record of a session without a running server."""
    return ServerRecord(
        session=name,
        place=session.place,
        target=session.target,
        engine=session.engine,
        drafter=session.draft.drafter,
        method=session.draft.method,
        num_speculative_tokens=session.draft.k,
        cycle=session.cycle,
        version="",
        model="",
        addresses=(),
        problems=tuple(problems),
    )
