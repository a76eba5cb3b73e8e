"""A row per request: one turn of one prompt, decoded once in one cell."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import pandas as pd

from specbench.frames.column import LIST, TEXT, Column, Doc, frame_of, record_columns
from specbench.frames.identity import KEY, RUN_ID, cell_id
from specbench.records import (
    AnswerCheck,
    BlockRecord,
    CellKey,
    DeviceSample,
    RequestCounts,
    RequestRecord,
    RunRecord,
)
from specbench.runs import StoredRun

DOCS = {
    "prompt_id": Doc("the prompt, as the workload names it"),
    "turn": Doc("of a conversation, from 0"),
    "repeat": Doc("of the same prompt; those that confirm a winner count on"),
    "seed": Doc("of sampling"),
    "num_prompt_tokens": Doc("earlier turns included", "tokens"),
    "finish_reason": Doc("`eos`, `length` or `failed`"),
    "prefill_s": Doc("to prefill target and drafter", "s"),
    "ttft_s": Doc("start to first token, prefill included", "s"),
    "decode_s": Doc("first token to last", "s"),
    "total_s": Doc("start to last token", "s"),
    "cpu_s": Doc("CPU time of the process over the same span", "s"),
    "energy_j": Doc("of the GPU over the same span", "J"),
    "error": Doc("why it failed; absent where it did not", dtype=TEXT),
    "arrived_s": Doc("since its pass began; `ttft_s` and `total_s` count from here", "s"),
    "queue_s": Doc("arrival to the start of its prefill", "s"),
    "sample": Doc("which of several answers to the same turn, from 0"),
    "num_first": Doc("came with the first one: `decode_s` has none of them", "tokens"),
    "graph": Doc("how much of its rounds one graph held; absent where it is not told", dtype=TEXT),
    "chunk_s": Doc("between two streamed chunks with tokens, a tuple; of a server", "s"),
    "prompt_sha256": Doc("of the prompt's token ids; absent if a server gave none", dtype=TEXT),
    "text": Doc("as a server said it; absent where the engine gives ids alone", dtype=TEXT),
}
COUNT_DOCS = {
    "num_rounds": Doc("rounds that a server counted, those without a draft included", "rounds"),
    "num_drafted": Doc("drafted in them", "tokens"),
    "num_accepted": Doc("of them accepted, up to the end of the answer", "tokens"),
    "num_drafting": Doc("rounds that drafted anything", "rounds"),
    "num_rejecting": Doc("rounds in which a draft was judged and not accepted", "rounds"),
    "num_by_accepted": Doc("rounds that accepted 0, 1 .. K, a tuple", "rounds"),
    "num_overshot": Doc(
        "accepted past the end of the answer: in the engine's own figures, not in ours", "tokens"
    ),
}
CHECK_DOCS = {
    "num_drafted": Doc("tokens of a predicted output checked before the first round", "tokens"),
    "num_accepted": Doc("of them accepted", "tokens"),
    "num_emitted": Doc("output tokens that came from it", "tokens"),
    "seconds": Doc("spent on it, part of `decode_s`", "s"),
}
DEVICE_DOCS = {
    "num_samples": Doc("times that NVML was read", "samples"),
    "device_used_bytes": Doc("peak memory in use on the GPU", "bytes"),
    "process_used_bytes": Doc("peak GPU memory of this process", "bytes"),
    "power_w": Doc("mean power", "W"),
    "sm_clock_mhz": Doc("lowest SM clock", "MHz"),
    "sm_clock_default_mhz": Doc("default SM clock", "MHz"),
    "temperature_c": Doc("highest temperature", "degrees C"),
    "throttle_reasons": Doc("why the clock was lowered; empty where it was not"),
    "num_other_processes": Doc("other processes on the GPU", "processes"),
}


class RequestRow(NamedTuple):
    """One request of one run."""

    run: RunRecord
    key: CellKey
    block: BlockRecord
    request: RequestRecord


def request_rows(stored: StoredRun) -> Iterator[RequestRow]:
    """Every request of a planned cell, failed ones included, in the order they were stored."""
    keys = {key.id: key for key in stored.run.keys}
    for block in stored.blocks:
        for request in block.requests:
            if request.cell_id in keys:
                yield RequestRow(stored.run, keys[request.cell_id], block, request)


def requests_frame(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Every request of both passes, in the order they were stored."""
    return frame_of(request_columns(), [row for run in runs for row in request_rows(run)])


def _num_rounds(request: RequestRecord) -> int | None:
    if request.rounds is not None:
        return len(request.rounds)
    return request.counts.num_rounds if request.counts else None


def request_columns() -> tuple[Column[Any], ...]:
    """What a request took and gave, and what NVML saw meanwhile."""
    return (RUN_ID, *KEY, PURPOSE, *OWN, *_DERIVED, *_CHECK, *_DEVICE, *_COUNTS, *_OF, cell_id())


PURPOSE: Column[RequestRow] = Column(
    name="purpose",
    unit="",
    meaning="`explore`: the first pass, as in `cells`; `confirm`: a winner measured again",
    dtype="category",
    value=attrgetter("block.purpose"),
)
OWN: tuple[Column[RequestRow], ...] = record_columns(
    RequestRecord,
    DOCS,
    attrgetter("request"),
    without=(
        *("cell_id", "output_ids", "num_tokens"),
        *("rounds", "counts", "device", "answer_check"),
    ),
)
_DERIVED: tuple[Column[RequestRow], ...] = (
    Column(
        name="num_output_tokens",
        unit="tokens",
        meaning="counted from ids, or by a server that gives none; the first comes from prefill",
        dtype="int64",
        value=attrgetter("request.num_output_tokens"),
    ),
    Column(
        name="num_rounds",
        unit="rounds",
        meaning="absent where the engine does not tell",
        dtype="Int64",
        value=lambda row: _num_rounds(row.request),
    ),
    Column(
        name="output_ids",
        unit="",
        meaning="token ids of the output, a tuple",
        dtype=LIST,
        value=attrgetter("request.output_ids"),
    ),
)
_CHECK: tuple[Column[RequestRow], ...] = record_columns(
    AnswerCheck, CHECK_DOCS, attrgetter("request.answer_check"), prefix="check_"
)
_DEVICE: tuple[Column[RequestRow], ...] = record_columns(
    DeviceSample, DEVICE_DOCS, attrgetter("request.device"), prefix="device_"
)
_COUNTS: tuple[Column[RequestRow], ...] = record_columns(
    RequestCounts, COUNT_DOCS, attrgetter("request.counts"), prefix="counted_"
)
_OF: tuple[Column[RequestRow], ...] = (
    Column(
        name="session",
        unit="",
        meaning="of the server that answered, as in `servers`; absent for an engine of our own",
        dtype="category",
        value=attrgetter("block.session"),
    ),
    Column(
        name="cycle",
        unit="",
        meaning="of sessions, from 0",
        dtype="Int64",
        value=attrgetter("block.cycle"),
    ),
)
