"""A server's answers and counters as records."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from specbench.bench.blocks import Cell
from specbench.bench.served.questions import PlannedRequest
from specbench.bench.served.running import Running
from specbench.bench.served.sessions import Session
from specbench.engines.served import find_served
from specbench.probes.gpus import GpuUse
from specbench.records import ClientLoad, RequestRecord, ServerRecord, ids_sha256
from specbench.servers.client import ServerError
from specbench.servers.metrics_page import Counters
from specbench.servers.traffic import Answered


class Served(NamedTuple):
    """The outcome of one condition, its requests apart."""

    counted: Counters
    client: ClientLoad
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def request_records(
    session: Session, cell: Cell, asked: Sequence[PlannedRequest], answered: Sequence[Answered]
) -> tuple[RequestRecord, ...]:
    """The records of one condition's requests, in the order they were asked."""
    began_s = min((one.sent_s for one in answered), default=0.0)
    return tuple(
        _request(session, cell, own, one, began_s) for own, one in zip(asked, answered, strict=True)
    )


def _request(
    session: Session, cell: Cell, asked: PlannedRequest, answered: Answered, began_s: float
) -> RequestRecord:
    said, sent_s = answered.streamed, answered.sent_s
    failed = RequestRecord.failed(
        answered.error or "the answer has no token",
        cell_id=cell.key.id,
        prompt_id=asked.prompt.id,
        turn=asked.turn,
        repeat=asked.repeat,
        seed=asked.seed,
        num_prompt_tokens=0,
    )
    if said is None or said.first_s is None or said.last_s is None:
        return failed
    num_tokens = len(said.token_ids) or said.num_tokens
    if num_tokens is None:
        return replace(failed, error="it tells no usage, so its tokens cannot be counted")
    try:
        counts = find_served(session.engine).counts(said, session.draft.k)
    except ServerError as error:
        return replace(failed, error=str(error))
    overlaps = cell.key.condition.overlaps
    return replace(
        failed,
        error=None,
        num_prompt_tokens=said.num_prompt_tokens or 0,
        output_ids=tuple(said.token_ids),
        finish_reason="length" if said.finish_reason == "length" else "eos",
        ttft_s=said.first_s - sent_s,
        decode_s=said.last_s - said.first_s,
        total_s=said.last_s - sent_s,
        arrived_s=sent_s - began_s if overlaps else None,
        num_tokens=None if said.token_ids else num_tokens,
        num_first=min(said.num_first or 1, num_tokens),
        text=said.text,
        counts=counts,
        prompt_sha256=ids_sha256(said.prompt_ids) if said.prompt_ids else None,
        chunk_s=tuple(round(gap_s, 6) for gap_s in said.chunk_s),
    )


def server_record(
    session: Session, name: str, running: Running, served: Sequence[Served], used: GpuUse
) -> ServerRecord:
    """The record of a session that was held to its end."""
    counted: dict[str, float] = {}
    for counter, value in chain.from_iterable(one.client.counters.items() for one in served):
        counted[counter] = counted.get(counter, 0.0) + value
    return replace(
        broken_off(session, name, running, ()),
        seconds=sum(one.client.seconds for one in served),
        counters=counted,
        num_preemptions=round(counted["num_preemptions"]) if "num_preemptions" in counted else None,
        queue_s=counted.get("queue_s"),
        started_s=max(filter(None, (one.counted.started_s for one in served)), default=None),
        client=tuple(one.client for one in served),
        sees_others=all(one.counted.num_tokens is not None for one in served),
        problems=tuple(dict.fromkeys(p for one in served for p in one.problems)),
        warnings=tuple(dict.fromkeys(w for one in served for w in one.warnings)),
        num_gpus=used.num_gpus if running.command else None,
        power_w=used.power_w if running.command else None,
        memory_bytes=used.memory_bytes if running.command else None,
        throttle_reasons=used.throttle_reasons if running.command else (),
    )


def broken_off(
    session: Session, name: str, running: Running, problems: Sequence[str]
) -> ServerRecord:
    """The record of a session whose server came up, with what is known of that one."""
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
    """The record of a session that could not be held to its end, or that has only begun."""
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
