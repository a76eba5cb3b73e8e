"""A run over servers that run already, and its figures calculated again by hand."""

import asyncio
import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice, pairwise
from statistics import fmean, median
from unittest.mock import patch

import pytest

from specbench.bench.blocks import request_seed
from specbench.bench.planning import plan_run
from specbench.bench.served.running import (
    ExternalServers,
    ServerHandle,
    describe_servers,
    is_steady,
    server_warnings,
)
from specbench.bench.served.sessions import cycle_of, served_cells
from specbench.engines import recognition
from specbench.engines.served_engine import find_served
from specbench.errors import ServerError, UsageError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.address import Address
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Target
from specbench.records import ALL_PROMPTS, Kind
from specbench.records.requests import poisson_arrivals
from specbench.report.document import build_document
from specbench.servers.client import Client
from specbench.servers.facts import Fact, ModelNames, ServerFacts
from tests.bench.fake_runs import write_prompts
from tests.bench.served import fake_vllm
from tests.bench.served.running import is_warm_up, running
from tests.bench.served.served_runs import (
    SIX,
    measured,
    plan_of,
    running_settings,
    server_at,
    settings_for,
)

ROWS = 3
MAX_TOKENS = 24
LONG = ["word " * 2000, "word " * 200, "Hello"]


def test_prompts_beyond_the_servers_context_are_skipped_at_every_k(tmp_path):
    """The target's context is 1,024, so some of 3 prompts exceed it or 300 tokens."""
    given = {"pairings": ("demo/draft",), "workloads": (write_prompts(tmp_path / "p.jsonl", LONG),)}
    settings = settings_for(tmp_path, **given, max_new_tokens=16)
    pairings = load_pairings(None).select(("demo/draft",))

    def planned(context):
        running = [server_at(0, 10**6), server_at(2, context), server_at(4)]
        (plan,) = plan_run(settings, pairings, running).targets
        return {cell.num_prompts for cell in plan.cell_plans()}, [*plan.left_out]

    for context, num, expected in ((None, 2, "1 of 3"), (10**6, 2, "1 of 3"), (300, 1, "2 of 3")):
        numbers, (note,) = planned(context)
        assert numbers == {num}
        assert expected in note.figures["text"]
    assert planned(10)[0] == {3}  # none is left: the server reports the reason


class VisitedServers:
    """Two replicas at K = 0 and one server at K = 2, at concurrency 1 and 3."""

    def __init__(self, folder):
        # Rounds that are long enough for all rows to be under way together.
        with running(0, 0, 2) as servers, patch.object(fake_vllm, "ROUND_S", 0.001):
            servers[-1].engine.word = "other"  # as near-ties make texts differ by K
            settings = running_settings(
                folder,
                *(server.url for server in servers),
                concurrency=(1, ROWS),
                max_new_tokens=MAX_TOKENS,
            )
            self.stored = measured(folder, settings)
        self.servers = servers
        cells = build_document(self.stored).cells
        self.cells = {(c.key.draft.k, c.key.condition.concurrency): c for c in cells}

    @property
    def answer(self):
        """The response to the first turn of the last prompt, without speculation."""
        plain = [r for rows in (1, ROWS) for b in self.blocks(0, rows) for r in b.requests]
        (text,) = {r.text for r in plain if (r.prompt_id, r.turn) == ("p5", 0)}
        return text

    def blocks(self, k, rows, purpose="explore"):
        cell_id = self.cells[k, rows].key.id
        return [b for b in self.stored.blocks if b.order == (cell_id,) and b.purpose == purpose]


@pytest.fixture(scope="module")
def attached(tmp_path_factory):
    return VisitedServers(tmp_path_factory.mktemp("attached"))


def test_replicas_share_the_requests_and_their_counters_are_summed(attached):
    first, other, _ = (len(server.measured) for server in attached.servers)
    assert first + other == sum(
        len(b.requests) for b in attached.stored.blocks if "|none|" in b.session
    )
    assert 0.8 < first / other < 1.25  # conversations take turns
    for server in attached.stored.servers:
        blocks = [b for b in attached.stored.blocks if b.session == server.session]
        num_tokens = sum(r.num_output_tokens for b in blocks for r in b.requests)
        assert server.counters["num_tokens"] == num_tokens
        assert server.seconds == pytest.approx(sum(load.seconds for load in server.client))
        assert [load.cell_id for load in server.client] == [b.order[0] for b in blocks]
        assert server.problems == server.warnings == ()
        assert len(server.addresses) == (1 if server.num_speculative_tokens else 2)
        assert (server.start_s, server.num_gpus, server.command) == (None, None, ())


def test_a_session_is_warmed_up_with_twice_its_concurrency(attached):
    *plain, drafting = attached.servers
    sessions = Counter(server.num_speculative_tokens for server in attached.stored.servers)
    for k, servers in ((0, plain), (2, [drafting])):
        warm_ups = sum(is_warm_up(body) for server in servers for body in server.engine.requests)
        assert warm_ups == sessions[k] * 2 * (1 + ROWS) * len(servers)
    texts = {b["messages"][0]["content"] for b in drafting.engine.requests if is_warm_up(b)}
    assert len(texts) == ROWS  # otherwise a prefix cache would serve all but the first


@pytest.mark.parametrize(
    ("paces", "steady"),
    [
        ([1.0, 1.0], False),  # too few for an interval
        ([1.0, 1.05, 1.0], True),
        ([3.0, 1.0, 1.05, 1.0], True),
        ([2.0, 1.0, 1.0], False),
        ([1.0, 1.0, 1.0, 1.3], False),
    ],
)
def test_a_server_is_steady_if_its_last_batches_agree(paces, steady):
    assert is_steady(paces) == steady


def test_a_server_is_warmed_up_until_its_speed_is_steady(tmp_path):
    """Each of its first ten requests is faster than the previous one."""
    num_slow = 10
    with running(0) as (server,), patch.object(fake_vllm, "ROUND_S", 0.001):
        settings = running_settings(tmp_path, server.url, max_new_tokens=MAX_TOKENS, cycles=1)
        server.engine.num_slow = num_slow
        stored = measured(tmp_path, settings, longest_warm_up_s=600.0)
        first = [is_warm_up(body) for body in server.engine.requests].index(False)
    assert first > num_slow
    assert not any(server.problems for server in stored.servers)


@pytest.mark.parametrize(
    ("root", "may_spin"), [("http://127.0.0.1:1", True), ("http://10.0.0.1:1", False)]
)
def test_only_local_servers_spin_during_a_session(root, may_spin):
    facts = ServerFacts(version="1", model="m", k=Fact.read("#k", 0))
    beside = ServerHandle(engine="vllm", clients=(Client(Address(root=root)),), facts=facts)
    assert beside.may_spin == may_spin


@pytest.mark.parametrize("num", [0, 5])
def test_a_session_sends_the_requested_number_of_warm_up_requests(tmp_path, num):
    with running(0, 2) as servers:
        settings = running_settings(
            tmp_path,
            *(server.url for server in servers),
            concurrency=(ROWS,),
            max_new_tokens=MAX_TOKENS,
            num_requests=4,
            num_warmups=num,
            cycles=1,
        )
        stored = measured(tmp_path, settings)
        sessions = Counter(server.num_speculative_tokens for server in stored.servers)
        for k, server in zip((0, 2), servers, strict=True):
            warm_ups = sum(is_warm_up(body) for body in server.engine.requests)
            assert warm_ups == num * sessions[k]
    assert {len({(r.prompt_id, r.repeat) for r in b.requests}) for b in stored.blocks} == {4}


def test_every_k_gets_the_same_requests_in_the_same_order_in_each_session(attached):
    for rows in (1, ROWS):
        requests = {k: [_requests_of(b) for b in attached.blocks(k, rows)] for k in (0, 2)}
        by_leg = {k: {b.repeat: _requests_of(b) for b in attached.blocks(k, rows)} for k in (0, 2)}
        assert by_leg[0] == by_leg[2]
        assert sorted(by_leg[0]) == [0, 1, 2, 3]  # two cycles of two
        prompts = {tuple(prompt for prompt, *_ in block) for block in requests[0]}
        assert len(prompts) > 1  # the order is drawn for each session
        seeds = [seed for block in requests[0] for *_, seed in block]
        assert len(set(seeds)) == len(seeds)
        repeats = [(p, turn, repeat) for block in requests[0] for p, turn, repeat, _ in block]
        assert len(set(repeats)) == len(repeats)


def _requests_of(block):
    return [(r.prompt_id, r.turn, r.repeat, r.seed) for r in block.requests]


def test_a_later_turn_contains_the_k_0_response(attached):
    first, second = SIX[5]
    for server in attached.servers:
        later = [body["messages"] for body in server.measured if len(body["messages"]) > 1]
        assert later
        for messages in later:
            assert [(m["role"], m["content"]) for m in messages] == [
                ("user", first),
                ("assistant", attached.answer),
                ("user", second),
            ]


def test_the_served_speedup_follows_from_the_stored_seconds(attached):
    """Seconds per token at K = 0 divided by those at K = 2: the geometric mean of two cycles."""
    logs = []
    for cycle in (0, 1):
        pace = {}
        for k in (0, 2):
            timed = [r for b in attached.blocks(k, 1) if b.cycle == cycle for r in b.requests]
            pace[k] = sum(r.decode_s for r in timed) / sum(r.num_output_tokens - 1 for r in timed)
        logs.append(math.log(pace[0] / pace[2]))
    cell = attached.cells[2, 1]
    assert cell.metrics["decode_speedup"] == pytest.approx(math.exp(fmean(logs)))
    assert cell.speedup.estimate == pytest.approx(math.exp(fmean(logs)))
    assert cell.speedup.low < cell.speedup.estimate < cell.speedup.high


def test_the_acceptance_is_what_the_engine_drew_cut_at_the_end_of_each_answer(attached):
    engine = attached.servers[-1].engine
    first, second = SIX[5]
    prompts = {(f"p{i}", 0): text for i, text in enumerate(SIX[:5])}
    prompts |= {("p5", 0): first, ("p5", 1): "\n".join((first, attached.answer, second))}
    for rows in (1, ROWS):
        accepted = rounds = 0
        for request in (r for b in attached.blocks(2, rows) for r in b.requests):
            drawn = engine.rounds(prompts[request.prompt_id, request.turn], MAX_TOKENS)
            left = request.num_output_tokens - 1
            for num in drawn:
                accepted += min(num, left - 1)  # the last token is the round's own, also an end
                left -= num + 1
            rounds += len(drawn)
            assert left <= 0
        actual = attached.cells[2, rows].metrics["mean_acceptance_length"]
        assert actual == pytest.approx(1 + accepted / rounds)


def test_rates_of_concurrent_requests_follow_from_stored_times(attached):
    for k in (0, 2):
        tokens = seconds = busy_tokens = busy_s = 0.0
        for block in attached.blocks(k, ROWS):
            tokens += sum(r.num_output_tokens for r in block.requests)
            seconds += block.passes[0].seconds
            more_s, more = _busy(block.requests)
            busy_s, busy_tokens = busy_s + more_s, busy_tokens + more
        metrics = attached.cells[k, ROWS].metrics
        assert metrics["aggregate_tokens_per_s"] == pytest.approx(tokens / seconds)
        assert metrics["busy_tokens_per_s"] == pytest.approx(busy_tokens / busy_s)
        requests = [r for b in attached.blocks(k, ROWS) for r in b.requests]
        assert metrics["ttft_s"] == pytest.approx(median(r.ttft_s for r in requests))


def _busy(requests):
    """Seconds from when all rows were busy first until last, and the tokens in between."""
    ends = sorted({t for r in requests for t in (r.arrived_s, r.arrived_s + r.total_s)})
    full = [
        (a, b)
        for a, b in pairwise(ends)
        if sum(r.arrived_s <= a and b <= r.arrived_s + r.total_s for r in requests) == ROWS
    ]
    began_s, ended_s = full[0][0], full[-1][1]
    tokens = 0.0
    for r in requests:
        first_s = r.arrived_s + r.ttft_s
        tokens += began_s < first_s <= ended_s
        share = (min(ended_s, first_s + r.decode_s) - max(began_s, first_s)) / r.decode_s
        tokens += (r.num_output_tokens - 1) * max(share, 0.0)
    return ended_s - began_s, tokens


def test_speedups_of_concurrent_requests_use_busy_seconds(attached):
    logs = []
    for cycle in (0, 1):
        pace = {}
        for k in (0, 2):
            spans = [_busy(b.requests) for b in attached.blocks(k, ROWS) if b.cycle == cycle]
            pace[k] = sum(s for s, _ in spans) / sum(tokens for _, tokens in spans)
        logs.append(math.log(pace[0] / pace[2]))
    actual = attached.cells[2, ROWS].metrics["decode_speedup"]
    assert actual == pytest.approx(math.exp(fmean(logs)))


def test_the_round_of_a_server_is_its_decode_seconds_over_its_rounds(attached):
    for k in (0, 2):
        requests = [r for b in attached.blocks(k, 1) for r in b.requests]
        rounds = sum(r.counts.num_rounds if k else r.num_output_tokens - 1 for r in requests)
        actual = attached.cells[k, 1].metrics["round_s"]
        assert actual == pytest.approx(sum(r.decode_s for r in requests) / rounds)


def test_the_winner_is_confirmed_in_separate_cycles(attached):
    by_purpose = defaultdict(set)
    for block in attached.stored.blocks:
        by_purpose[block.purpose].add(block.cycle)
    assert by_purpose["explore"] == {0, 1}
    assert by_purpose["confirm"] <= {100, 101}


def test_an_address_without_a_server_is_refused_before_anything_is_measured(tmp_path):
    with running(0) as (gone,):
        pass
    with pytest.raises(UsageError, match="--base-url"):
        measured(tmp_path, running_settings(tmp_path, gone.url))
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ServerError):
        asyncio.run(describe_servers("vllm", [gone.url], ModelNames()))


async def visit(session, *addresses):
    async with ExternalServers("vllm", addresses, ModelNames()).open(session):
        pass


def test_a_server_that_changed_k_or_version_is_not_measured(tmp_path):
    plain, drafting, *_ = cycle_of(served_cells(plan_of(tmp_path), "vllm"), 0)
    with running(0, 0) as servers:
        first, second = (Address(root=server.url, k=0) for server in servers)
        asyncio.run(visit(plain, first, second))
        with pytest.raises(ServerError, match=r"0 \(/metrics\), 2 \(#k\)"):
            asyncio.run(visit(drafting, replace(first, k=2)))
        servers[1].engine.version = "0.33.0"
        with pytest.raises(ServerError, match=r"not replicas:\n  version: 0\.32\.0 and 0\.33\.0"):
            asyncio.run(visit(plain, first, second))


@pytest.mark.parametrize(("num_refused", "problem"), [(1, ""), (2, "answered no warm-up request")])
def test_a_server_that_answers_no_warm_up_is_not_measured(tmp_path, num_refused, problem):
    with running(0) as (server,):
        server.engine.num_to_refuse = num_refused
        settings = running_settings(tmp_path, server.url, concurrency=(2,), num_prompts=2)
        first, *later_servers = measured(tmp_path, settings).servers
    assert first.problems == () if not problem else problem in first.problems[0]
    assert [server.problems for server in later_servers] == [()] * 3


@pytest.mark.parametrize("num_refusing", [1, 2])
def test_a_run_ends_after_two_sessions_without_any_response(tmp_path, num_refusing):
    """The two servers of a run, at K = 0 and 2, have a cycle of four sessions."""
    with running(0, 2) as servers:
        for server in servers[:num_refusing]:
            server.engine.refuses_measured = True
        urls = [server.url for server in servers]
        stored = measured(tmp_path, running_settings(tmp_path, *urls))
    problems = [text for server in stored.servers for text in server.problems]
    assert len(problems) == 2
    assert all("no request was answered" in text and "not this one" in text for text in problems)


def describe(*urls: str, engine: str = "vllm"):
    return asyncio.run(describe_servers(engine, urls, ModelNames()))


def test_k_comes_from_the_address_or_else_from_the_server():
    with running(0, 2) as (plain, drafting):
        servers = describe(drafting.url, f"{plain.url}#k=0", plain.url)
        assert {server.facts.context for server in servers} == {1024}
        assert all(s.facts.places["drafting"] == "/metrics" for s in servers)
        assert [(s.address.root, s.address.k, s.facts.places["K"]) for s in servers] == [
            (drafting.url, 2, "/metrics"),
            (plain.url, 0, "/metrics"),
            (plain.url, 0, "/metrics"),
        ]
        with pytest.raises(ServerError, match=r"2 \(/metrics\), 4 \(#k\)"):
            describe(f"{drafting.url}#k=4")
        with pytest.raises(ServerError, match=r"0 \(/metrics\), 4 \(#k\)"):
            describe(f"{plain.url}#k=4")


def test_a_server_that_does_not_send_its_facts_is_refused(monkeypatch):
    async def hang(_client, _names):
        await asyncio.sleep(60.0)

    monkeypatch.setattr(find_served("openai"), "facts", hang)
    monkeypatch.setattr(recognition, "NOTICE_S", 0.01)
    with pytest.raises(ServerError, match=r"http://a: .*0\.01 s") as wrong:
        describe("http://a", engine="openai")
    assert "/v1/models" not in str(wrong.value)


def test_a_server_that_drafts_with_an_unknown_k_needs_it_in_its_address(monkeypatch):
    async def drafting(_client, _names):
        return ServerFacts(version="", model="a", drafts=Fact.read("/slots", True))

    monkeypatch.setattr(find_served("openai"), "facts", drafting)
    with pytest.raises(ServerError, match=r"it drafts.*http://a#k=4$"):
        describe("http://a", engine="openai")


def test_a_server_of_another_engine_is_refused_by_its_counters():
    with running(0) as (server,), pytest.raises(UsageError, match="--engine vllm"):
        describe(server.url, engine="sglang")


def test_assumptions_about_a_server_are_printed():
    target = Target(name="big", model=ModelSpec(source="org/Llama-3-8B"), drafters=())

    def warnings_for(model, *, ks=(0, 4)):
        servers = [
            server._replace(facts=replace(server.facts, model=model))
            for server in map(server_at, ks)
        ]
        return list(server_warnings(servers, "vllm", target))

    for model in ("org/Llama-3-8B", "llama-3-8b", "/models/Llama-3-8B", "big", "llama-3-8b.gguf"):
        assert not warnings_for(model)
    other, _ = warnings_for("org/Llama-3-70B")
    assert other.kind is Kind.OTHER_MODEL
    names = {"served": "org/Llama-3-70B", "target": "big", "model": "org/Llama-3-8B"}
    assert names.items() <= other.figures.items()
    assert warnings_for("big", ks=(0, 0)) == [Kind.REPLICAS(servers=2, k=0)]


def test_a_server_of_unknown_engine_gives_a_warning():
    target = Target(name="big", model=ModelSpec(source="big"), drafters=())
    server = server_at(0)._replace(facts=ServerFacts(version="", model="big"))
    assert list(server_warnings([server], "openai", target)) == []
    (warning,) = server_warnings([server], "vllm", target)
    assert (warning.kind, warning.figures["engine"]) == (Kind.NO_VERSION, "vllm")


def test_arrivals_of_an_open_loop_are_drawn_for_each_session(tmp_path):
    """Requests start late by the load of this machine, nearest to their own times."""
    rate, num = 20.0, 6
    with running(0) as (server,):
        settings = running_settings(
            tmp_path,
            server.url,
            request_rate=rate,
            num_prompts=num,
            max_new_tokens=4,
        )
        stored = measured(tmp_path, settings)
    drawn = {
        repeat: [*islice(poisson_arrivals(rate, request_seed(0, ALL_PROMPTS, repeat, 0)), num)]
        for repeat in range(4)
    }
    drawn[-1] = [*islice(poisson_arrivals(rate, 0), num)]
    assert len(stored.blocks) == 4
    for block in stored.blocks:
        came_s = [r.arrived_s for r in block.requests if r.turn == 0]

        def off_s(repeat, came_s=came_s):
            arrivals = drawn[repeat]
            return sum(abs(a - b + arrivals[0]) for a, b in zip(came_s, arrivals, strict=True))

        assert min(drawn, key=off_s) == block.repeat
