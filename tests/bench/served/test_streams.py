"""Streams that cannot be those of decoding, from servers as people reach them."""

import asyncio
import json
import time
from dataclasses import replace

import pytest

from specbench.engines.served import openai
from specbench.engines.served_engine import result_of
from specbench.importers import import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.inputs.address import Address
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.registry import measure
from specbench.metrics.streams import faulty_streams
from specbench.metrics.summary import summarize, summarize_imported
from specbench.records import Kind, Message, Request, RequestRecord
from specbench.servers.client import Client
from specbench.servers.traffic import send_all
from tests.made_records import made_request
from tests.served_sessions import Sweep, key_of, served_sweep
from tests.servers.http_server import Handler, serving_with

ROUND_S, PROMPT_TOKENS, NUM_TOKENS = 0.005, 20, 31


class _Server(Handler):
    """Decodes 31 tokens in rounds of `per_round`; a setting for each thing it or a proxy does."""

    per_round = 1
    bursts = 1  # events that a proxy passes on together
    held = 0  # first events that a proxy passes on together, before it lets the others through
    hidden = 0  # first tokens that are decoded without an event
    merged = 1  # rounds that the engine makes one event of, such as vLLM's --stream-interval
    letter = "a"
    usage = staticmethod(lambda usage: usage)

    def do_POST(self):
        self.read_body()
        self.send_response(200)
        self.end_headers()
        kept, num_sent, new, begin_s = b"", 0, 0, time.perf_counter()
        starts = [0, *range(1, NUM_TOKENS, self.per_round)]
        for i, (start, end) in enumerate(zip(starts, [*starts[1:], NUM_TOKENS], strict=True)):
            time.sleep(max(begin_s + i * ROUND_S - time.perf_counter(), 0))
            new += end - start
            is_whole = i % self.merged == 0 or end == NUM_TOKENS
            if end <= self.hidden or not is_whole:
                continue
            kept += self.event({"delta": {"content": self.letter * new}})
            num_sent, new = num_sent + 1, 0
            if num_sent >= self.held and num_sent % self.bursts == 0:
                self.wfile.write(kept)
                kept = b""
        usage = {
            "completion_tokens": NUM_TOKENS,
            "prompt_tokens": PROMPT_TOKENS,
            "total_tokens": PROMPT_TOKENS + NUM_TOKENS,
        }
        end = self.event({"delta": {}, "finish_reason": "stop"})
        usage = json.dumps({"choices": [], "usage": self.usage(usage)}).encode()
        self.wfile.write(kept + end + b"data: " + usage + b"\n\ndata: [DONE]\n\n")

    def event(self, choice):
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def fault_of(k=0, num=4, **settings):
    """The fault of this many answers of such a server."""
    request = Request(messages=(Message(role="user", content="hi"),), max_new_tokens=NUM_TOKENS)

    async def ask(url):
        async with Client(Address(root=url)) as client:
            traffic = await send_all(
                [request] * num,
                [client],
                lambda client, request, _: openai.answer(client, "own", request),
            )
            return traffic.answers

    with serving_with(_Server, **settings) as url:
        results = [result_of(openai, answer, k) for answer in asyncio.run(ask(url))]
    assert {result.error for result in results} == {None}
    return faulty_streams([RequestRecord.of("", request, result) for result in results], k)


def reasoning(usage):
    return {**usage, "completion_tokens_details": {"reasoning_tokens": 12}}


def without_reasoning(usage):
    return {**usage, "completion_tokens": NUM_TOKENS - 12}


def in_words(usage):
    return {**usage, "completion_tokens": 10, "total_tokens": PROMPT_TOKENS + 10}


def in_zeros(usage):
    return dict.fromkeys(usage, 0)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"bursts": 8}, Kind.BURSTS),
        ({"bursts": 8, "per_round": 3, "k": 4}, Kind.BURSTS),
        ({"bursts": 99}, Kind.BURSTS),
        ({"held": 12}, Kind.BURSTS),
        ({"hidden": 12, "usage": staticmethod(reasoning)}, Kind.UNSTREAMED),
        (
            {"hidden": 12, "per_round": 3, "k": 4, "usage": staticmethod(reasoning)},
            Kind.UNSTREAMED,
        ),
        ({"hidden": 12}, Kind.LATE_FIRST),
        ({"usage": staticmethod(without_reasoning)}, Kind.MISCOUNTED),
        ({"usage": staticmethod(in_words)}, Kind.MISCOUNTED),
        ({"usage": staticmethod(in_zeros)}, Kind.MISCOUNTED),
    ],
)
def test_streams_that_decoding_cannot_produce_are_faulty(settings, kind):
    fault = fault_of(**settings)
    assert fault is not None
    assert fault.kind is kind
    assert fault.figures["answers"] > fault.figures["judged"] / 2


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"per_round": 3, "k": 4},
        {"merged": 4},  # even times, so the seconds from first to last are right
        {"merged": 3, "letter": "語"},
        {"usage": staticmethod(lambda usage: {**usage, "total_tokens": None})},
    ],
)
def test_engines_that_merge_events_or_hold_back_parts_of_characters_are_not_faulty(settings):
    assert fault_of(**settings) is None


def streamed(gaps_s, num_tokens, ttft_s=0.0067, **more):
    """An answer with these seconds between its events."""
    decode_s = sum(gaps_s)
    times = {"ttft_s": ttft_s, "decode_s": decode_s, "chunk_s": tuple(gaps_s), "text": "a"}
    return made_request("", "p", None, output_ids=(), num_tokens=num_tokens, **times | more)


# Gaps as vLLM 0.32 and llama.cpp stream them: an end-of-text event right after the last token, a
# pair of events that the client read at once, and the tokens of a llama.cpp round as single events.
VLLM_K0 = [0.0023] * 40 + [0.000005] + [0.0023] * 22 + [0.000005]
VLLM_K4 = [0.0044] * 15 + [0.000005]
LLAMA_K4 = ([0.012] + [0.00006] * 4) * 12


@pytest.mark.parametrize(
    ("gaps_s", "num_tokens", "k"), [(VLLM_K0, 64, 0), (VLLM_K4, 64, 4), (LLAMA_K4, 61, 4)]
)
def test_recorded_streams_of_vllm_and_of_merged_events_are_not_faulty(gaps_s, num_tokens, k):
    for ttft_s in (0.007, 30.0):  # a long prompt, or a queue
        assert faulty_streams([streamed(gaps_s, num_tokens, ttft_s)] * 20, k) is None


@pytest.mark.parametrize("k", [0, 4])
def test_after_a_long_prompt_the_text_shows_whether_tokens_came_before_the_first_event(k):
    """96 tokens in 12 events: 8 tokens per event, or 84 tokens of thinking before them."""
    for text, fault in (("word" * 96, None), ("word" * 12, Kind.LATE_FIRST)):
        answers = [streamed([0.08 * (k + 1)] * 11, 96 * (k + 1), ttft_s=60.0, text=text * (k + 1))]
        found = faulty_streams(answers * 20, k)
        assert (found and found.kind) == fault


def test_answers_hit_by_a_pause_of_the_client_do_not_make_a_cell_faulty():
    whole, paused = streamed(VLLM_K0, 64), streamed([0.000005] * 64, 64, ttft_s=0.15)
    assert faulty_streams([paused] * 10, 0).kind is Kind.BURSTS
    assert faulty_streams([whole] * 7 + [paused] * 3, 0) is None


@pytest.mark.parametrize(("num_events", "is_faulty"), [(17, False), (18, True)])
def test_events_may_be_half_more_than_tokens_and_two(num_events, is_faulty):
    fault = faulty_streams([streamed([0.01] * (num_events - 1), 10)], 0)
    assert (fault is not None and fault.kind is Kind.MISCOUNTED) == is_faulty


@pytest.mark.parametrize(
    ("gaps_s", "num_tokens", "kind", "num_allowed"),
    [
        ([], 64, Kind.BURSTS, 5),
        ([0.000005] * 64, 64, Kind.BURSTS, 5),
        ([0.01] * 19, 300, Kind.LATE_FIRST, 1),
        ([0.01] * 19, 5, Kind.MISCOUNTED, 0),
    ],
)
def test_of_ten_answers_half_may_be_bursts_one_may_start_late_and_none_may_be_miscounted(
    gaps_s, num_tokens, kind, num_allowed
):
    whole, faulty = streamed(VLLM_K0, 64), streamed(gaps_s, num_tokens, ttft_s=3.0)
    for num in range(1, 10):
        fault = faulty_streams([whole] * (10 - num) + [faulty] * num, 0)
        assert (fault and fault.kind) == (kind if num > num_allowed else None)


@pytest.mark.parametrize(
    ("num_joined", "num_tokens", "text", "is_faulty"),
    [
        (10, 60, "a", False),  # a quarter of the events
        (11, 46, "a", True),
        (11, 45, "a", False),  # half more than 30 arrivals
        (11, 51, "é" * 5, True),
        (11, 50, "é" * 5, False),  # five tokens make no event
    ],
)
def test_joined_events_are_bursts_if_they_are_many_and_hide_a_third_of_the_rounds(
    num_joined, num_tokens, text, is_faulty
):
    gaps_s = [0.01] * (40 - num_joined) + [0.0] * num_joined
    fault = faulty_streams([streamed(gaps_s, num_tokens, text=text)], 0)
    assert (fault and fault.kind) == (Kind.BURSTS if is_faulty else None)


def test_a_buffered_cell_has_no_decode_speed_and_keeps_the_times_of_whole_requests():
    """Only K = 0 was buffered, and so its speedup is missing at K = 2; K = 0 is named there too."""
    stored = served_sweep(Sweep(ks=(2,), rows=(1, 4)))
    bursts = ([0.0] * 7 + [0.16]) * 3
    blocks = [
        replace(block, requests=tuple(replace(r, chunk_s=tuple(bursts)) for r in block.requests))
        if block.order[0] in {key_of(0, rows).id for rows in (1, 4)}
        else block
        for block in stored.blocks
    ]
    whole = {cell.key: measure(cell) for cell in aggregate_run(stored)}
    cells = aggregate_run(replace(stored, blocks=tuple(blocks)))
    for cell, summary in zip(cells, summarize(cells), strict=True):
        of_streams = {name for name in whole[cell.key] if name not in summary.metrics}
        assert not summary.valid
        assert summary.speedup is None
        assert "request_latency_s" in summary.metrics
        assert summary.metrics["request_latency_s"] == whole[cell.key]["request_latency_s"]
        side = cell.baseline_faulty_streams if cell.k else cell.faulty_streams
        assert side.kind is Kind.BURSTS
        if cell.k:
            assert cell.faulty_streams is None
            assert "decode_speedup" in of_streams
            assert summary.speedup_end_to_end is not None
            whole_requests = Kind.WHOLE_REQUESTS(speedup=summary.speedup_end_to_end.estimate)
            assert whole_requests in summary.warnings
        else:
            assert {"ttft_s", "tpot_s"} <= of_streams


@pytest.mark.parametrize("tool", ["vllm", "sglang"])
def test_imported_streams_are_judged_by_the_same_function(tmp_path, tool):
    """Thinking that is not streamed: 280 of 300 tokens come before the first event."""
    num, gaps_s, ttft_s = 12, [0.01] * 19, 0.05 + 280 * 0.01
    result = {
        "model_id": "org/thinker",
        "completed": num,
        "max_concurrency": 1,
        "request_rate": "inf",
        "output_throughput": 98.8,
        "median_ttft_ms": 1e3 * ttft_s,
        "median_tpot_ms": 0.63,
        "input_lens": [50] * num,
        "output_lens": [300] * num,
        "ttfts": [ttft_s] * num,
        "itls": [gaps_s] * num,
        **(
            {"tokenizer_id": "org/thinker", "total_token_throughput": 115.0}
            if tool == "vllm"
            else {"backend": "sglang-oai", "dataset_name": "code"}
        ),
    }
    for ttfts, is_faulty in (([ttft_s] * num, True), ([0.05] * num, False)):
        lengths = [300 if is_faulty else 20] * num
        file = tmp_path / f"{is_faulty}.json"
        file.write_text(json.dumps({**result, "ttfts": ttfts, "output_lens": lengths}))
        given = ImportOverrides(temperature=0.0, num_speculative_tokens=0)
        (cell,) = import_files([file], given)
        (summary,) = summarize_imported([cell.key], [cell.record])
        of_streams = {"ttft_s", "tpot_s", "decode_tokens_per_s"}
        assert of_streams & summary.metrics.keys() == (set() if is_faulty else of_streams)
        assert summary.metrics["aggregate_tokens_per_s"] == 98.8
        assert summary.metrics["request_latency_s"] == pytest.approx(ttfts[0] + sum(gaps_s))
