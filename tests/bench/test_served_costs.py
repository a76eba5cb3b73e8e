"""--step-times URL: a round's seconds and K from a server's own counters, never from chunks."""

from collections.abc import Iterator
from typing import Any

import pytest

from specbench.bench.served import running as session
from specbench.bench.served_costs import MAX_TOKENS, time_servers
from specbench.errors import UsageError
from specbench.forecast.engine_costs import check_sources
from specbench.records import EngineCost
from tests.bench.served.running import is_warm_up
from tests.servers.fake_server import POSITION, VLLM_PAGE, FakeServer, serving

PROMPTS = ("Hello", "Name a colour")


@pytest.fixture(autouse=True)
def _fewest_warm_ups(monkeypatch):
    monkeypatch.setattr(session, "SPIN_S", 0.0)
    monkeypatch.setattr(session, "LONGEST_S", 0.0)


def measured(fake: FakeServer) -> list[dict[str, Any]]:
    return [body for body in fake.requests if not is_warm_up(body)]


def timed(fake: FakeServer, suffix: str = "", **options: Any) -> list[EngineCost]:
    """The costs of a server; `suffix` follows its address."""
    with serving(fake) as url:
        return time_servers([url + suffix], PROMPTS, **options)


def test_a_round_is_the_time_over_the_rounds_the_server_counted():
    """8 rounds of 4 ms after a prefill, which is not one of them."""
    fake = FakeServer()
    with serving(fake) as url:
        costs = time_servers([url], PROMPTS)
    assert {(c.num_speculative_tokens, c.concurrency) for c in costs} == {(3, 1)}
    assert {c.mean_acceptance_length for c in costs} == {2.0}
    assert {c.engine for c in costs} == {"vllm 0.32.0"}
    assert {c.source for c in costs} == {url}
    assert [c.cost for c in costs] == pytest.approx([fake.round_s] * len(costs))
    assert len(costs) > 1
    assert len(measured(fake)) == len(costs)


def test_without_speculation_a_round_is_a_token():
    costs = timed(FakeServer(k=0))
    assert {c.num_speculative_tokens for c in costs} == {0}
    assert {c.mean_acceptance_length for c in costs} == {None}
    assert [c.cost for c in costs] == pytest.approx([0.004] * len(costs))


def test_rounds_that_accept_more_cost_the_same():
    """The cost of a round must not shrink with its accepted drafts."""
    costs = []
    for kept in (0, 3):
        costs += [c.cost for c in timed(FakeServer(kept=kept, round_s=0.01))]
    assert costs == pytest.approx([0.01] * len(costs))


def test_timed_requests_have_the_given_concurrency_and_settings():
    fake = FakeServer()
    costs = timed(fake, concurrencies=(3,), temperature=0.7)
    assert {c.concurrency for c in costs} == {3}
    assert {c.mean_acceptance_length for c in costs} == {2.0}
    assert len(measured(fake)) == 3 * len(costs)
    body = measured(fake)[0]
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0.7, MAX_TOKENS, "tiny")
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_token_ids"]  # as the file of vLLM asks
    assert len({body["seed"] for body in measured(fake)}) == 3 * len(costs)
    assert {a["messages"][0]["content"] for a in measured(fake)} == set(PROMPTS)


def test_a_server_without_a_chat_template_gets_completion_requests():
    fake = FakeServer(has_chat=False)
    assert timed(fake, "/v1")
    assert fake.requests[-1]["prompt"] in PROMPTS


def test_for_a_server_without_counters_k_0_must_be_stated():
    fake = FakeServer(k=0, has_metrics=False)
    with pytest.raises(UsageError, match="#k=0"):
        timed(fake)
    assert {c.num_speculative_tokens for c in timed(fake, "#k=0")} == {0}
    with pytest.raises(UsageError, match="not count rounds"):
        timed(fake, "#k=3")


POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"has_usage": False}, "no `usage`"),
        ({"models": ()}, "names no model"),
        ({"models_page": '{"data": [5]}'}, "names no model"),
        ({"models_page": '{"data": {"id": "x"}}'}, "names no model"),
        ({"models_page": "[]"}, "names no model"),
        ({"models_page": "[" * 100_000}, "/v1/models is not JSON"),
        ({"num_rounds": 0}, "one token each"),
        ({"nonsense": {"choices": ["text"]}}, "OpenAI"),
        ({"nonsense": {"choices": 5}}, "OpenAI"),
        ({"nonsense": {"choices": [{"delta": "text"}]}}, "OpenAI"),
        ({"nonsense": {"choices": [{"delta": {"content": 5}}]}}, "OpenAI"),
        ({"nonsense": {"choices": [{"token_ids": 7}]}}, "OpenAI"),
        ({"nonsense": {"choices": [], "usage": "many"}}, "OpenAI"),
        ({"nonsense": {"choices": [], "usage": {"completion_tokens": "9"}}}, "OpenAI"),
        ({"counters": "<html>\n"}, "/metrics"),
        ({"counters": f"{POSITIONS} 1\n"}, "/metrics"),
        ({"counters": f'{POSITIONS}{{position="x"}} 1\n'}, "/metrics"),
        ({"counters": f'{POSITIONS}{{position="-1"}} 1\n'}, "/metrics"),
        ({"counters": f'{POSITIONS}{{position="999999999"}} 1\n'}, "/metrics"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_incomplete_server_response_is_an_error_with_the_address(fault, reason):
    with serving(FakeServer(**fault)) as url, pytest.raises(UsageError, match=reason) as wrong:
        time_servers([url], PROMPTS)
    assert url in str(wrong.value)


NGRAM = {"/server_info": '{"speculative_algorithm": "NGRAM"}'}


class SglangServer(FakeServer):
    def page(self) -> str:
        return f"sglang:spec_verify_calls_total {self.total_rounds}\n"


def test_a_server_that_speculates_is_not_timed_as_k_0():
    fake = SglangServer(pages=NGRAM)
    with pytest.raises(UsageError, match="#k=4"):
        timed(fake)
    costs = timed(fake, "#k=3")
    assert fake.requests[0]["return_output_ids_in_sglext"]  # as the file of SGLang asks
    assert {(c.num_speculative_tokens, c.mean_acceptance_length) for c in costs} == {(3, 2.0)}


def test_a_k_that_the_server_contradicts_is_refused():
    with pytest.raises(UsageError, match=r"3 \(/metrics\), 4 \(#k\)"):
        timed(FakeServer(k=3), "#k=4")


def test_k_of_sglang_is_that_of_its_arguments():
    arguments = '{"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "version": "0.5"}'
    costs = timed(SglangServer(pages={"/server_info": arguments}))
    assert {(c.engine, c.num_speculative_tokens) for c in costs} == {("sglang 0.5", 3)}


class TrtllmServer(FakeServer):
    """Its page counts no rounds, but each answer has its mean tokens per iteration."""

    def page(self) -> str:
        return (
            f"trtllm_generation_tokens_total {self.total_tokens}\n"
            f'trtllm_speculative_config_info{{spec_num_tokens="{self.k}"}} 1.0\n'
        )

    def events(self, is_chat: bool) -> Iterator[dict[str, Any]]:
        num_tokens = 0
        for i, event in enumerate(super().events(is_chat)):
            for choice in event["choices"]:
                num_tokens += len(choice["delta"]["content"])
                choice["avg_decoded_tokens_per_iter"] = num_tokens / (i + 1)
                event["usage"] = {"completion_tokens": num_tokens}
            yield event


@pytest.mark.parametrize(("k", "length"), [(3, 2.0), (0, None)])
def test_tensorrt_llm_is_timed_by_its_page_and_the_means_of_its_answers(k, length):
    pages = {"/metrics": "[]"}
    fake = TrtllmServer(k=k, metrics_path="/prometheus/metrics", pages=pages, has_ids=False)
    costs = timed(fake)
    assert {c.engine for c in costs} == {"tensorrt_llm 0.32.0"}
    assert {(c.num_speculative_tokens, c.mean_acceptance_length) for c in costs} == {(k, length)}
    assert [c.cost for c in costs] == pytest.approx([fake.round_s] * len(costs))


def test_a_server_without_new_rounds_does_not_divide_by_zero():
    fake = FakeServer(counters="sglang:spec_verify_calls_total 7\n", pages=NGRAM)
    with pytest.raises(UsageError, match="K=3"):
        timed(fake, "#k=3")


def test_an_address_without_a_server_is_an_error():
    with serving(FakeServer()) as url:
        pass
    with pytest.raises(UsageError, match="cannot be reached"):
        time_servers([url], PROMPTS)


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:b", "http://a#fast", "x://y"])
def test_a_malformed_address_is_refused_before_any_request(url):
    with pytest.raises(UsageError, match="--step-times"):
        check_sources([url])


class LookupServer(FakeServer):
    """Looks its drafts up: in one round of 8, or in none, and no draft is accepted."""

    num_drafting: int = 0

    def page(self) -> str:
        drafts = self.total_rounds // 8 * self.num_drafting
        page = VLLM_PAGE.format(drafts=drafts, draft_tokens=3 * drafts, accepted=0)
        return page + "".join(POSITION.format(i) for i in range(self.k))


@pytest.mark.parametrize("num_drafting", [0, 1])
def test_rounds_without_drafts_count_as_rounds(num_drafting):
    fake = LookupServer(kept=0)
    fake.num_drafting = num_drafting
    costs = timed(fake)
    assert {c.mean_acceptance_length for c in costs} == {1.0}


def test_tokens_in_the_first_chunk_are_not_timed():
    """A server merges chunks: three rounds came with the first token, five were timed."""
    fake = FakeServer(num_merged=3)
    costs = timed(fake)
    assert [c.cost for c in costs] == pytest.approx([fake.round_s] * len(costs))
    assert {c.mean_acceptance_length for c in costs} == {2.0}


@pytest.mark.parametrize("has_ids", [True, False])
def test_an_end_of_text_that_is_counted_is_timed(has_ids):
    fake = FakeServer(k=0, says_end=True, has_ids=has_ids)
    costs = timed(fake)
    assert [c.cost for c in costs] == pytest.approx([fake.round_s] * len(costs))


def test_a_server_that_serves_others_meanwhile_is_not_timed():
    with pytest.raises(UsageError, match="another client was served"):
        timed(FakeServer(num_foreign=40))


def test_a_server_that_restarts_meanwhile_is_not_timed():
    class Restarting(FakeServer):
        def page(self) -> str:
            if len(self.requests) == 3:
                self.total_tokens = self.total_rounds = 0
            return super().page()

    with pytest.raises(UsageError, match="restarted while"):
        timed(Restarting())


def test_servers_are_timed_alternately_batch_by_batch():
    turns: list[str] = []

    class Named(FakeServer):
        def events(self, is_chat):
            turns.append(self.models[0])
            return super().events(is_chat)

    drafting, plain = Named(models=("one",)), Named(k=0, models=("two",))
    with serving(drafting) as first, serving(plain) as second:
        costs = time_servers([first, second], PROMPTS)
    assert turns[-12:] == ["one", "two"] * 6
    assert [c.num_speculative_tokens for c in costs] == [3] * 6 + [0] * 6
    assert [c.cost for c in costs] == pytest.approx([0.004] * 12)


def test_an_api_key_comes_from_the_environment_and_is_never_printed(monkeypatch):
    with serving(FakeServer(key="s3cret")) as url:
        with pytest.raises(UsageError, match=r"401.*SPECBENCH_API_KEY"):
            time_servers([url], PROMPTS)
        monkeypatch.setenv("SPECBENCH_API_KEY", "wr0ng")
        with pytest.raises(UsageError, match=r"answered 401: .*Bearer \*\*\*") as wrong:
            time_servers([url], PROMPTS)
        assert "wr0ng" not in str(wrong.value)
        monkeypatch.setenv("SPECBENCH_API_KEY_127_0_0_1", "s3cret")
        assert "s3cret" not in repr(time_servers([url], PROMPTS))


def test_a_redirect_to_another_host_is_refused():
    other = FakeServer()
    redirects = pytest.raises(UsageError, match="it redirects to another address")
    with serving(other) as elsewhere, redirects:
        timed(FakeServer(elsewhere=elsewhere))
    assert not other.requests
