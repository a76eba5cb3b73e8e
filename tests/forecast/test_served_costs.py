"""--costs URL: a round's seconds and K out of a server's own counters, never out of chunks."""

import pytest

from specbench.errors import UsageError
from specbench.forecast.engine_costs import check_sources, read_engine_costs
from specbench.forecast.metrics_page import read_counters
from specbench.forecast.served_costs import Server, time_server
from tests.forecast.serving import POSITION, VLLM_PAGE, FakeServer, serving

PROMPTS = ("Hello", "Name a colour")


def test_a_round_is_the_time_over_the_rounds_the_server_counted():
    """8 rounds of 4 ms after a prefill that is none of them."""
    fake = FakeServer()
    with serving(fake) as url:
        costs = time_server(url, PROMPTS)
    assert {(c.num_speculative_tokens, c.concurrency) for c in costs} == {(3, 1)}
    assert {c.mean_acceptance_length for c in costs} == {2.0}
    assert {c.engine for c in costs} == {"vllm 0.32.0"}
    assert {c.source for c in costs} == {url}
    assert [c.cost for c in costs] == pytest.approx([fake.round_s] * len(costs))
    assert len(costs) > 1
    assert len(fake.asked) == len(costs) + 1  # the first one warms up


def test_without_speculation_a_round_is_a_token():
    with serving(FakeServer(k=0)) as url:
        costs = time_server(url, PROMPTS)
    assert {c.num_speculative_tokens for c in costs} == {0}
    assert {c.mean_acceptance_length for c in costs} == {None}
    assert [c.cost for c in costs] == pytest.approx([0.004] * len(costs))


def test_rounds_that_keep_more_cost_the_same():
    """The cost of a round must not shrink with what it keeps."""
    found = []
    for kept in (0, 3):
        with serving(FakeServer(kept=kept, round_s=0.01)) as url:
            found += [c.cost for c in time_server(url, PROMPTS)]
    assert found == pytest.approx([0.01] * len(found))


def test_several_requests_at_once_and_what_is_asked():
    fake = FakeServer()
    with serving(fake) as url:
        costs = time_server(url, PROMPTS, concurrency=3, temperature=0.7, max_tokens=17)
    assert {c.concurrency for c in costs} == {3}
    assert {c.mean_acceptance_length for c in costs} == {2.0}
    assert len(fake.asked) == 3 * (len(costs) + 1)
    body = fake.asked[0]
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0.7, 17, "tiny")
    assert body["stream_options"] == {"include_usage": True}
    assert {a["messages"][0]["content"] for a in fake.asked} == set(PROMPTS)


def test_a_model_without_a_chat_template_is_asked_for_a_completion():
    fake = FakeServer(has_chat=False)
    with serving(fake) as url:
        assert time_server(f"{url}/v1", PROMPTS)
    assert fake.asked[0]["prompt"] == "Hello"


def test_a_server_that_counts_nothing_must_be_said_to_run_at_k_0():
    with serving(FakeServer(k=0, has_metrics=False)) as url:
        with pytest.raises(UsageError, match="#k=0"):
            time_server(url, PROMPTS)
        assert {c.num_speculative_tokens for c in time_server(f"{url}#k=0", PROMPTS)} == {0}
        with pytest.raises(UsageError, match="does not count rounds"):
            time_server(f"{url}#k=3", PROMPTS)


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (FakeServer(has_usage=False), "no usage"),
        (FakeServer(models=()), "names no model"),
        (FakeServer(num_rounds=0), "one token each"),
        (FakeServer(models_page="[" * 100_000), "/v1/models is not JSON"),
    ],
)
def test_a_server_that_tells_too_little_is_named(fake, reason):
    with serving(fake) as url, pytest.raises(UsageError, match=reason) as wrong:
        time_server(url, PROMPTS)
    assert url in str(wrong.value)


class SglangServer(FakeServer):
    """Its gauge is not set yet; `tells` its rounds or not."""

    tells = True

    def page(self) -> str:
        rounds = self.total_rounds if self.tells else 7
        return f"sglang:spec_verify_calls_total {rounds}\nsglang:spec_num_steps 0.0\n"


def test_a_server_that_speculates_is_not_timed_as_k_0():
    with serving(SglangServer()) as url:
        with pytest.raises(UsageError, match=r"does not report its K.*#k=4"):
            time_server(url, PROMPTS)
        costs = time_server(f"{url}#k=3", PROMPTS)
    assert {(c.num_speculative_tokens, c.mean_acceptance_length) for c in costs} == {(3, 2.0)}


def test_a_server_whose_rounds_stand_still_is_no_division_by_zero():
    fake = SglangServer()
    fake.tells = False
    with serving(fake) as url:
        assert {c.num_speculative_tokens for c in time_server(url, PROMPTS)} == {0}
        with pytest.raises(UsageError, match="runs at K = 3 and counted no round of"):
            time_server(f"{url}#k=3", PROMPTS)


def test_nobody_there():
    with serving(FakeServer()) as url:
        pass
    with pytest.raises(UsageError, match="cannot be reached"):
        time_server(url, PROMPTS)


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:b", "http://a#fast", "x://y"])
def test_what_is_no_address_is_refused_before_anything_is_asked(url):
    with pytest.raises(UsageError, match="--costs"):
        check_sources([url])


def test_an_address_is_shown_without_its_password():
    server = Server.at("http://me:secret@host:8000/v1/#k=5")
    assert (server.shown, server.k) == ("http://host:8000", 5)
    assert server.root == "http://me:secret@host:8000"


def test_files_and_servers_are_taken_together(tmp_path):
    (tmp_path / "step.csv").write_text("k,cost,unit\n0,12,ms\n")
    with serving(FakeServer()) as url:
        costs = read_engine_costs([str(tmp_path / "step.csv"), url], PROMPTS)
    assert {c.num_speculative_tokens for c in costs} == {0, 3}
    assert {c.source for c in costs} == {"step.csv", url}


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


class LookupServer(FakeServer):
    """Looks its drafts up: in one round of 8, or in none, and none of them is accepted."""

    num_drafting: int = 0

    def page(self) -> str:
        drafts = self.total_rounds // 8 * self.num_drafting
        page = VLLM_PAGE.format(drafts=drafts, draft_tokens=3 * drafts, accepted=0)
        return page + "".join(POSITION.format(i) for i in range(self.k))


@pytest.mark.parametrize("num_drafting", [0, 1])
def test_rounds_in_which_nothing_was_drafted_are_rounds(num_drafting):
    fake = LookupServer(kept=0)
    fake.num_drafting = num_drafting
    with serving(fake) as url:
        costs = time_server(url, PROMPTS)
    assert {c.mean_acceptance_length for c in costs} == {1.0}
