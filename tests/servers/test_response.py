"""Contents read from the events of a stream."""

import json
import re

import pytest

from specbench.servers import response
from specbench.servers.response import EventData, StreamedResponse


def response_of(monkeypatch, *timed):
    """A response of events and the seconds of their arrival."""
    answer = StreamedResponse()
    for at_s, event in timed:
        monkeypatch.setattr(response, "perf_counter", lambda at_s=at_s: at_s)
        answer.add(event)
    return answer


def test_prompt_token_ids_are_read_from_any_event():
    answer = StreamedResponse()
    answer.add({"choices": [{"delta": {"role": "assistant"}}], "prompt_token_ids": [5, 6]})
    answer.add(ids(7))
    assert (answer.prompt_ids, answer.num_events) == ([5, 6], 1)


def ids(*token_ids):
    return {"choices": [{"delta": {"content": "a" * len(token_ids)}, "token_ids": [*token_ids]}]}


ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
USAGE = {
    "choices": [],
    "usage": {
        "completion_tokens": 8,
        "prompt_tokens": 30,
    },
    "metrics": {"speculative_decoding": {"num_drafts": 3}},
}


def test_a_streamed_response_has_token_times_and_the_first_count(monkeypatch):
    answer = response_of(
        monkeypatch,
        (1.0, ROLE),
        (2.0, ids(7, 8)),
        (3.0, ids(9)),
        (5.0, ids(10, 11, 12, 13, 14)),
        (6.0, USAGE),
    )
    assert (answer.first_s, answer.last_s, answer.num_first) == (2.0, 5.0, 2)
    assert answer.num_events == 3
    assert list(answer.chunk_s) == [1.0, 2.0]
    assert list(answer.token_ids) == [7, 8, 9, 10, 11, 12, 13, 14]
    assert (answer.num_tokens, answer.num_prompt_tokens) == (8, 30)
    assert answer.metrics == {"speculative_decoding": {"num_drafts": 3}}
    assert answer.text == "a" * 8


def test_the_first_event_without_token_ids_has_an_unknown_token_count(monkeypatch):
    def word(text):
        return {"choices": [{"delta": {"content": text}}]}

    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    answer = response_of(
        monkeypatch, (1.0, word("a")), (2.0, word("b")), (3.0, word("c")), (4.0, end), (5.0, USAGE)
    )
    assert (answer.first_s, answer.last_s, answer.num_first) == (1.0, 4.0, None)
    assert answer.fault is None


def test_usage_in_every_event_gives_the_token_counts(monkeypatch):
    def usage_event(number):
        return {"choices": [{"text": "a"}], "usage": {"completion_tokens": number}}

    answer = response_of(monkeypatch, (1.0, usage_event(2)), (2.0, usage_event(7)))
    assert (answer.num_first, answer.num_tokens) == (2, 7)


def test_a_response_without_tokens_has_no_times():
    assert (
        StreamedResponse().first_s,
        StreamedResponse().last_s,
        StreamedResponse().num_first,
    ) == (None, None, None)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "content"])
def test_reasoning_content_counts_as_text(monkeypatch, name):
    event = {"choices": [{"delta": {"role": "assistant", name: "well", "tool_calls": []}}]}
    assert response_of(monkeypatch, (1.0, event)).text == "well"


def test_a_round_that_ends_the_reasoning_also_begins_the_answer(monkeypatch):
    both = {"reasoning": "so", "reasoning_content": "so", "content": " yes"}
    event = {"choices": [{"delta": both}]}
    assert response_of(monkeypatch, (1.0, event)).text == "so yes"


def test_events_are_parsed_from_chunks_of_any_size():
    """A line separator within a JSON text does not end an event; comments are skipped."""
    events = [{"text": "one\u2028two\x85three"}, {"text": "four"}]
    raw = ": keep-alive\r\n\r\n" + "".join(
        f"event: message\r\ndata:{json.dumps(e, ensure_ascii=False)}\r\n\r\n" for e in events
    )
    raw = (raw + "data:\n\ndata: [DONE]\n\n").encode()
    for size in (1, 7, len(raw)):
        data = EventData()
        lines = [line for i in range(0, len(raw), size) for line in data.feed(raw[i : i + size])]
        assert [json.loads(line) for line in lines[:-1]] == events
        assert lines[-1] == b"[DONE]"


def test_an_answer_that_the_server_aborted_is_cut(monkeypatch):
    """vLLM does so when it is paused, and SGLang on another client's request."""
    end = {"choices": [{"delta": {}, "finish_reason": "abort"}]}
    answer = response_of(monkeypatch, (1.0, ids(7, 8)), (2.0, end))
    answer.is_done = True
    assert answer.is_cut
    assert re.match("broke off: .*abort", answer.fault)


def test_an_incomplete_stream_reports_its_fault(monkeypatch):
    answer = response_of(monkeypatch, (1.0, ids(7, 8)), (2.0, USAGE))
    assert answer.fault is not None
    assert re.match("broke off: .*1 events", answer.fault)
    answer.is_done = True
    assert re.match("token counts differ: .*8 .*2 ", answer.fault)
    answer.num_tokens = 2
    assert answer.fault is None
    answer.num_tokens = None  # no usage
    assert answer.fault is None
    answer.is_done, answer.finish_reason = False, "length"
    assert answer.fault is None


@pytest.mark.parametrize("token_id", [-1, 2**31, 1.5, "7", None])
def test_a_token_id_is_a_small_whole_number(token_id):
    with pytest.raises(ValueError, match=r"token_ids\.0"):
        StreamedResponse().add({"choices": [{"token_ids": [token_id]}]})
