"""Counter pages of serving engines, read into one vocabulary."""

from functools import partial

import pytest

from specbench.engines.served_engine import counter_pages
from specbench.servers.metrics_page import gauge_of, labels_of
from specbench.servers.metrics_page import read_counters as read
from tests.engines.served.replay import recorded
from tests.servers.fake_server import FakeServer

read_counters = partial(read, pages=counter_pages())


def test_counters_of_other_engines_are_read():
    llama = read_counters(
        "llamacpp:spec_decode_num_drafts_total 7\n"
        "llamacpp:spec_decode_num_draft_tokens_total 21\n"
        "llamacpp:spec_decode_num_accepted_tokens_total 9\n"
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1\n'
    )
    assert (llama.engine, llama.num_rounds, llama.num_accepted) == ("llama_cpp", 7, 9)
    assert llama.num_positions == 3
    ranks = read_counters(
        'sglang:spec_verify_calls_total{dp_rank="0"} 2\n'
        'sglang:spec_verify_calls_total{dp_rank="1"} 5\n'
    )
    assert (ranks.num_rounds, ranks.num_positions) == (7, None)
    two = read_counters(
        'vllm:spec_decode_num_drafts_total{engine="0"} 1.5e3\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 2\n'
        "vllm:spec_decode_num_drafts_created 1.7e9\n"
    )
    assert two.num_rounds == 1502
    assert read_counters("# nothing\nother:thing 3\n").engine is None


def test_counters_are_differences_from_their_start():
    before, after = (
        read_counters(FakeServer().page()),
        read_counters(FakeServer(total_rounds=1010).page()),
    )
    since = after.since(before)
    assert (since.num_rounds, since.num_draft_tokens, since.num_accepted) == (10, 30, 10)


def test_tokens_that_were_emitted_are_counted_for_every_client():
    assert read_counters('vllm:generation_tokens_total{engine="0"} 96\n').num_tokens == 96
    assert read_counters("llamacpp:tokens_predicted_total 7\n").num_tokens == 7
    assert read_counters("vllm:num_requests_running 0\n").num_tokens is None


@pytest.mark.parametrize(
    ("page", "num"),
    [
        ("vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n", 3),
        ("llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n", 1),
        ("vllm:generation_tokens_total 96\n", None),
        # These keep their values when the last request ends.
        ("sglang:num_running_reqs 4\nsglang:num_queue_reqs 0\n", None),
        ("trtllm_num_requests_running 1\ntrtllm_num_requests_waiting 0\n", None),
    ],
)
def test_requests_in_progress_are_read_only_from_gauges_that_return_to_0(page, num):
    assert read_counters(page).num_in_progress == num


def test_the_oldest_counter_is_as_old_as_the_server():
    page = "vllm:a_created 200\nvllm:b_created 100\nvllm:generation_tokens_total 1\n"
    assert read_counters(page).started_s == 100


def test_intervals_of_a_server_are_joined_and_two_servers_added():
    idle = read_counters("vllm:generation_tokens_total 5\nvllm:num_requests_running 0\n")
    busy = read_counters("vllm:generation_tokens_total 7\nvllm:num_requests_running 3\n")
    bare = read_counters("vllm:num_requests_running 1\n")
    joined = busy.then(idle)
    assert (joined.num_tokens, joined.num_in_progress) == (12, 0)
    assert ((busy + idle).num_tokens, (busy + idle).num_in_progress) == (12, 3)
    assert ((busy + bare).num_tokens, (busy + bare).num_in_progress) == (None, 4)
    assert busy.then(bare).num_tokens == 7  # a counter that did not exist yet was 0


def test_counters_that_decrease_indicate_a_restart():
    page = "vllm:generation_tokens_total {}\n"
    before, after = (read_counters(page.format(n)) for n in (900, 30))
    assert after.since(before).spans_restart
    assert not before.since(after).spans_restart


def test_a_malformed_page_of_counters_is_an_error():
    with pytest.raises(ValueError, match="invalid metric name"):
        read_counters("<html> not found\n")


def test_preemptions_queue_time_and_cached_tokens_are_read():
    vllm = read_counters(
        'vllm:num_preemptions_total{engine="0"} 2\nvllm:num_preemptions_total{engine="1"} 3\n'
        "vllm:request_queue_time_seconds_sum 0.5\nvllm:request_queue_time_seconds_count 9\n"
        "vllm:prefix_cache_hits_total 16\nvllm:external_prefix_cache_hits_total 7\n"
    )
    assert (vllm.num_preemptions, vllm.queue_s, vllm.num_cached_tokens) == (5, 0.5, 16)
    llama = read_counters("llamacpp:prompt_tokens_cached_total 8\n")
    assert (llama.num_cached_tokens, llama.queue_s, llama.num_preemptions) == (8, None, None)


def test_metrics_pages_of_sglang_and_tensorrt_llm_are_read():
    sglang = read_counters(recorded("sglang_metrics.txt"))
    assert (sglang.engine, sglang.num_rounds) == ("sglang", 2)
    assert (sglang.num_preemptions, sglang.queue_s, sglang.num_cached_tokens) == (1, 0.25, 5)
    trtllm = read_counters(recorded("tensorrt_llm_metrics.txt"))
    assert (trtllm.engine, trtllm.num_tokens, trtllm.queue_s) == ("tensorrt_llm", 7, 0.125)
    assert (trtllm.num_draft_tokens, trtllm.num_accepted, trtllm.num_rounds) == (6, 5, None)


def test_a_counter_that_appears_later_started_at_0():
    after = read_counters(recorded("llama_cpp_metrics.txt"))
    assert (after.num_accepted, after.num_positions) == (9, 4)
    assert after.since(after).num_accepted == 0
    none_yet = read_counters("llamacpp:tokens_predicted_total 0\n")
    assert after.since(none_yet).num_accepted == 9


def test_nothing_is_counted_since_a_page_that_was_not_there():
    page, missing = read_counters(recorded("llama_cpp_metrics.txt")), read_counters("")
    for difference in (page.since(missing), missing.since(page)):
        assert (difference.sums, difference.engine) == ({}, None)
        assert not difference.spans_restart


def test_labels_and_gauges_are_read_from_a_metrics_page():
    page = 'a:info{x="1"} 1\na:info{x="2"} 1\na:size 3\na:size{rank="1"} 5\n'
    assert [labels["x"] for labels in labels_of(page, "a:info")] == ["1", "2"]
    assert labels_of(page, "b:info") == []
    assert (gauge_of(page, "a:size"), gauge_of(page, "b:size")) == (5, None)
