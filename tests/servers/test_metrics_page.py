"""Counter pages of serving engines, read into one vocabulary."""

import pytest

from specbench.servers.metrics_page import read_counters
from tests.servers.fake_server import FakeServer


def test_pages_of_other_engines():
    llama = read_counters(
        "llamacpp:spec_decode_num_drafts_total 7\n"
        "llamacpp:spec_decode_num_draft_tokens_total 21\n"
        "llamacpp:spec_decode_num_accepted_tokens_total 9\n"
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1\n'
    )
    assert (llama.engine, llama.num_rounds, llama.num_accepted) == ("llamacpp", 7, 9)
    assert llama.num_positions == 3
    sglang = read_counters("sglang:spec_verify_calls_total 40\nsglang:spec_num_steps 4.0\n")
    assert (sglang.num_rounds, sglang.num_positions) == (40, 4)
    ranks = read_counters(
        'sglang:spec_num_steps{dp_rank="0"} 3.0\nsglang:spec_num_steps{dp_rank="1"} 3.0\n'
        'sglang:spec_verify_calls_total{dp_rank="0"} 2\n'
        'sglang:spec_verify_calls_total{dp_rank="1"} 5\n'
    )
    assert (ranks.num_rounds, ranks.num_positions) == (7, 3)
    unset = read_counters("sglang:spec_verify_calls_total 40\nsglang:spec_num_steps 0.0\n")
    assert (unset.num_rounds, unset.num_positions) == (40, None)
    two = read_counters(
        'vllm:spec_decode_num_drafts_total{engine="0"} 1.5e3\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 2\n'
        "vllm:spec_decode_num_drafts_created 1.7e9\n"
    )
    assert two.num_rounds == 1502
    assert read_counters("# nothing\nother:thing 3\n").engine is None


def test_counters_are_told_apart_from_what_was_before():
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


def test_a_server_that_counts_from_nothing_again_was_restarted():
    page = "vllm:generation_tokens_total {}\n"
    before, after = (read_counters(page.format(n)) for n in (900, 30))
    assert after.since(before).is_of_a_restart
    assert not before.since(after).is_of_a_restart


def test_what_is_no_page_of_counters_is_an_error():
    with pytest.raises(ValueError, match="invalid metric name"):
        read_counters("<html> not found\n")
