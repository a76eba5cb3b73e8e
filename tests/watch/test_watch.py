"""Watching a server: acceptance of its traffic, alarms, and the K that its step times favor.

The traffic is simulated from the rounds of recorded requests (tests/stats/test_recorded_sweep.py).
"""

import asyncio
import json
import signal
from dataclasses import replace
from functools import partial
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import pytest

from specbench.errors import ServerError, UsageError
from specbench.forecast.cost_curve import CostCurve, curve_from
from specbench.records import EngineCost, Kind
from specbench.servers.metrics_page import Counters
from specbench.watch.k_forecast import best_of, curve_near, forecasts
from specbench.watch.report import DOCUMENT, has_fault, summary_of
from specbench.watch.server import windows
from specbench.watch.traffic import WatchedTraffic, Window, rates
from tests.cli.calls import specbench
from tests.servers.http_server import Handler, serving_with

K = 4
# Chance that a position is accepted if all before were: of texts that differ by request.
CODE, PROSE = (0.85, 0.8, 0.78, 0.75), (0.6, 0.5, 0.45, 0.4)


def request(rng, chances, tokens=96):
    """Rounds and accepted tokens by position of one request, whose text is easier or harder."""
    easier = np.clip(np.array(chances) + rng.normal(0, 0.08), 0.0, 0.98)
    kept = (rng.random((tokens, K)) < easier).cumprod(1)  # of more rounds than it has
    emitted = (kept.sum(1) + 1).cumsum()
    rounds = int(np.searchsorted(emitted, tokens)) + 1
    return rounds, kept[:rounds].sum(0, dtype=np.float64), int(emitted[rounds - 1])


def window(rng, chances, num_requests=2):
    parts = [request(rng, chances) for _ in range(num_requests)]
    rounds, at, tokens = (sum(column) for column in zip(*parts, strict=True))
    return Window(
        began_at="2026-01-01T00:00:00+00:00",
        seconds=5.0,
        counters=Counters(
            engine="vllm",
            num_rounds=float(rounds),
            num_draft_tokens=float(K * rounds),
            num_accepted=float(at.sum()),
            num_accepted_at=tuple(at),
            num_positions=K,
            num_tokens=float(tokens),
            num_requests=float(num_requests),
        ),
    )


def watched(windows):
    """The traffic, and what it showed, by the number of its window."""
    traffic = WatchedTraffic()
    return traffic, [(i, reason) for i, w in enumerate(windows) for reason in traffic.add(w)]


def test_steady_traffic_gives_no_alarm():
    """2,000 windows; at the stated rate an alarm is seen in 1 of 50 seeds."""
    for seed, chances in ((1, CODE), (2, PROSE)):
        rng = np.random.default_rng(seed)
        traffic, found = watched(window(rng, chances) for _ in range(1_000))
        assert found == []
        length = traffic.length
        assert length.low < length.estimate < length.high < 1.03 * length.estimate


def busy_windows(rng, engine, length, concurrency, chances):
    """A server that decodes `concurrency` requests at once, each over about `length` windows, with
    the chances of each window.

    vLLM counts rounds as they end; llama.cpp and SGLang count those of a request when it ends.
    """
    shortest = -(-length // 2)
    left = rng.integers(1, length + 1, concurrency)
    easier = rng.normal(0, 0.08, concurrency)
    at_end = np.zeros((K + 1, concurrency))  # not counted yet: rounds, then accepted by position
    for of_window in chances:
        easy = np.clip(np.array(of_window)[:, None] + easier, 0.0, 0.98)
        reached = [np.full(concurrency, 20)]  # rounds, then those in which each position is kept
        for chance in easy:
            reached.append(rng.binomial(reached[-1], chance))
        at_end += reached
        left -= 1
        ended = left == 0
        is_counted = np.full(concurrency, engine == "vllm") | ended
        rounds, *at = at_end[:, is_counted].sum(1).tolist()
        at_end[:, is_counted] = 0.0
        requests = float(ended.sum())
        sglang = {"num_tokens": rounds + sum(at) + requests, "counts_all_rounds": True}
        others = {"num_draft_tokens": K * rounds, "num_accepted": sum(at)}
        counters = Counters(
            engine=engine,
            num_rounds=rounds,
            num_requests=None if engine == "llama_cpp" else requests,
            num_in_progress=None if engine == "sglang" else float(concurrency),
            **(sglang if engine == "sglang" else others),
        )
        yield Window(began_at="", seconds=5.0, counters=counters)
        left[ended] = rng.integers(shortest, length + shortest, ended.sum())
        easier[ended] = rng.normal(0, 0.08, ended.sum())


@pytest.mark.sampled(one_in=6, every=["engine", "length", "concurrency"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama_cpp"])
@pytest.mark.parametrize("length", [1, 4, 13])
@pytest.mark.parametrize("concurrency", [1, 16])
def test_requests_that_last_for_many_windows_give_no_alarm(engine, length, concurrency):
    """The rounds of a request are alike in 1, 4 or 13 windows; so are windows of one request.

    At the stated rate, more than 1 of 10 streams has an alarm in 1 of 240 seeds.
    """
    alarmed = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        windows = busy_windows(rng, engine, length, concurrency, repeat(CODE, 1_000))
        traffic, found = watched(windows)
        alarmed += bool(found)
        assert len(traffic.batches) > 30
    assert alarmed <= 1


@pytest.mark.sampled(one_in=6, every=["engine", "length", "concurrency"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama_cpp"])
@pytest.mark.parametrize("length", [1, 4, 13])
@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_collapse_is_named_soon_however_long_requests_last(engine, length, concurrency):
    """After 20 requests; if more are in progress than a batch has, after a few of each user's."""
    before, requests = 60 * length, max(20, 5 * concurrency)
    after = requests * length // concurrency
    delays = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        chances = [CODE] * before + [(0.01,) * K] * 4 * after
        _, found = watched(busy_windows(rng, engine, length, concurrency, chances))
        named = [i for i, reason in found if reason.kind is Kind.COLLAPSED]
        delays.append(named[0] - before + 1 if named else 4 * after)
    print(f"after {max(delays) * concurrency / length:.0f} requests at most")
    assert max(delays) <= after


def test_intervals_contain_the_mean_of_all_traffic():
    """At 95%, fewer than 82 of 100 in 1 of 100,000 seeds."""
    rng = np.random.default_rng(4)
    truth = watched(window(rng, PROSE) for _ in range(2_000))[0].length.estimate
    lengths = [watched(window(rng, PROSE) for _ in range(12))[0].length for _ in range(100)]
    assert sum(length.low <= truth <= length.high for length in lengths) >= 82


@pytest.mark.parametrize(
    ("after", "kind"),
    [(PROSE, Kind.ACCEPTANCE_MOVED), ((0.01, 0.01, 0.01, 0.01), Kind.COLLAPSED)],
)
def test_a_change_is_named_within_twenty_requests(after, kind):
    delays = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        _, found = watched(window(rng, CODE if i < 40 else after) for i in range(60))
        at, named = found[-1]
        assert named.kind is kind
        assert {reason.kind for _, reason in found[:-1]} <= {Kind.ACCEPTANCE_MOVED}
        delays.append(at - 39)
        assert has_fault([named]) == (kind is Kind.COLLAPSED)
    late = 2 * np.quantile(delays, 0.9)
    print(f"{kind}: after {2 * np.median(delays):.0f} requests, 9 of 10 after {late:.0f}")
    assert late <= 20


def test_aborted_requests_leave_a_length_unknown_and_not_below_1():
    """SGLang counts aborted requests, and not all of their tokens."""
    counted = {"num_rounds": 40.0, "num_requests": 60.0, "counts_all_rounds": True}
    traffic, found = watched([of_server(num_tokens=90.0, **counted)] * 6)
    summary = summary_of(traffic, [reason for _, reason in found], None, None)
    assert (traffic.windows[0].length, traffic.length, traffic.batches) == (None, None, [])
    assert summary.reasons == (Kind.LENGTH_NOT_KNOWN(rounds=240.0, tokens=180.0, requests=360.0),)
    whole = of_server(num_tokens=180.0, **counted)
    assert whole.length == 3.0


def test_a_batch_does_not_span_a_restart():
    rng = np.random.default_rng(0)
    half = window(rng, CODE, num_requests=1)
    traffic = WatchedTraffic()
    assert traffic.add(half) == []
    assert traffic.add("http://a restarted") == []
    assert traffic.add(half) == []
    assert traffic.batches == []
    traffic.add(half)
    (batch,) = traffic.batches
    assert batch.num_rounds == 2 * half.counters.num_rounds
    assert traffic.total.num_rounds == 3 * half.counters.num_rounds


def test_windows_of_a_server_that_has_not_drafted_yet_are_no_traffic():
    """vLLM has no counters of drafts before its first request, also after a restart."""
    rng = np.random.default_rng(3)
    empty = Window(began_at="", seconds=5.0, counters=Counters(engine="vllm", num_tokens=0.0))
    before, after = ([window(rng, chances) for _ in range(40)] for chances in (CODE, PROSE))
    traffic, found = watched([empty, *before, empty, *after])
    assert [reason.kind for _, reason in found] == [Kind.ACCEPTANCE_MOVED]
    assert len(traffic.batches) == 80
    assert traffic.total.num_requests == 160


@pytest.mark.parametrize(
    ("chances", "kind"), [((0.0,) * K, Kind.NONE_ACCEPTED), ((1.0,) * K, Kind.ALL_ACCEPTED)]
)
def test_none_or_all_accepted_is_probably_a_fault(chances, kind):
    rng = np.random.default_rng(0)
    windows = [window(rng, CODE) for _ in range(20)]
    for i, each in enumerate(windows):
        rounds = each.counters.num_rounds
        at = tuple(rounds * chance for chance in chances)
        counted = Counters(
            engine="vllm",
            num_rounds=rounds,
            num_draft_tokens=K * rounds,
            num_accepted=sum(at),
            num_accepted_at=at,
            num_positions=K,
        )
        windows[i] = Window(began_at="", seconds=5.0, counters=counted)
    _, found = watched(windows)
    assert [reason.kind for _, reason in found] == [kind]


def test_a_fault_shows_before_as_many_requests_end_as_are_in_progress():
    counted = {"num_rounds": 25_000.0, "num_draft_tokens": 100_000.0, "num_accepted": 0.0}
    _, found = watched([of_server(**counted, num_requests=40.0, num_in_progress=64.0)])
    assert [reason for _, reason in found] == [Kind.NONE_ACCEPTED(drafted=100_000.0)]
    assert has_fault([reason for _, reason in found])


def of_server(**counts):
    return Window(began_at="", seconds=5.0, counters=Counters(engine="sglang", **counts))


def test_a_counter_that_appears_with_the_first_request_was_0_before():
    """Some servers create a counter when they first count."""
    rng = np.random.default_rng(3)
    windows = [window(rng, CODE) for _ in range(6)]
    (late, found), (known, _) = watched([of_server(num_tokens=0.0), *windows]), watched(windows)
    assert found == []
    assert late.total.num_rounds == known.total.num_rounds
    assert late.total.num_positions == K
    assert late.length == known.length
    assert len(late.batches) == 6


def test_a_pause_before_a_batch_is_not_part_of_it():
    """A change is dated to the traffic that shows it, not to the idle hours before it."""
    rng = np.random.default_rng(0)
    windows = [window(rng, CODE) for _ in range(40)] + [window(rng, PROSE) for _ in range(20)]
    windows = [replace(w, began_at=f"{i:02}") for i, w in enumerate(windows)]
    idle = replace(of_server(num_rounds=0.0, num_tokens=0.0), began_at="idle")
    (_, found), (_, after_pauses) = watched(windows), watched([*windows[:40], idle, *windows[40:]])
    assert [reason for _, reason in found] == [reason for _, reason in after_pauses]


def test_a_summary_has_the_requests_in_progress_at_its_end():
    rng = np.random.default_rng(0)
    windows = [window(rng, CODE) for _ in range(3)]
    counted = [replace(w.counters, num_in_progress=float(n)) for n, w in enumerate(windows, 4)]
    traffic, _ = watched(replace(w, counters=c) for w, c in zip(windows, counted, strict=True))
    assert traffic.total.num_in_progress == 6
    assert traffic.mean_in_progress == 5


def test_drafts_without_a_count_of_rounds_are_not_called_none():
    """TensorRT-LLM counts draft tokens, but no rounds."""
    counted = of_server(num_tokens=900.0, num_draft_tokens=800.0, num_accepted=500.0)
    traffic, _ = watched([counted] * 4)
    reasons = summary_of(traffic, [], None, None).reasons
    assert reasons == (Kind.ROUNDS_NOT_COUNTED(accepted=2000.0, drafted=3200.0),)


@pytest.mark.parametrize(
    ("accepted", "kind"), [(0.0, Kind.NONE_ACCEPTED), (90.0, Kind.ALL_ACCEPTED)]
)
def test_a_fault_shows_without_a_count_of_rounds(accepted, kind):
    counted = of_server(num_tokens=100.0, num_draft_tokens=90.0, num_accepted=accepted)
    _, found = watched([counted] * 4)
    assert [reason for _, reason in found] == [kind(drafted=270.0)]


def test_rates_and_length_are_those_of_all_windows_and_at_most_1():
    """Also of the windows after the last batch, and if every first draft is accepted."""
    at = (400.0, 200.0, 0.0, 0.0)
    counts = {"num_rounds": 400.0, "num_draft_tokens": 1600.0, "num_accepted": sum(at)}
    every = of_server(**counts, num_accepted_at=at, num_requests=9.0)
    last = of_server(num_rounds=20.0, num_draft_tokens=80.0, num_accepted=0.0, num_requests=0.0)
    traffic, _ = watched([every] * 6 + [last])
    assert [rate.estimate for rate in traffic.rates] == [*rates(traffic.total)]
    assert traffic.length.estimate == 1 + 6 * 600 / 2420
    assert all(rate.low <= rate.estimate <= rate.high <= 1 for rate in traffic.rates)


def test_no_accepted_draft_leaves_a_rate_its_error():
    """None of 10,000: 0.5 / 10,000, up to 16 times as many by the variance 0.5 / 0.5**2."""
    rounds = (1_990.0, 2_010.0, 2_000.0, 1_980.0, 2_020.0)
    traffic, _ = watched(
        of_server(num_rounds=n, num_accepted=0.4 * n, num_accepted_at=(0.4 * n, 0.0))
        for n in rounds
    )
    first, second = traffic.rates
    assert (second.estimate, second.low) == (0, 0)
    assert second.high == pytest.approx(0.5 / 10_000 * np.exp(1.96 * 2**0.5), rel=1e-3)
    assert 1 < first.high / first.estimate < 1.001


def test_a_share_of_drafts_is_saved_only_where_every_round_drafts_k():
    """Lookups and p_min end drafts early."""
    rng = np.random.default_rng(2)
    windows = [window(rng, PROSE) for _ in range(10)]
    for drafted, share in ((K, 0.25), (K - 0.5, None)):
        few = [
            replace(w.counters, num_draft_tokens=drafted * w.counters.num_rounds) for w in windows
        ]
        traffic, _ = watched(replace(w, counters=c) for w, c in zip(windows, few, strict=True))
        reasons = summary_of(traffic, [], K).reasons
        smaller = next(reason for reason in reasons if reason.kind is Kind.SMALLER_K)
        saved = smaller.figures["fewer"]
        assert saved == (None if share is None else 1 - smaller.figures["k"] / K)


def test_a_k_without_costs_is_not_called_slower():
    traffic, _ = watched(window(np.random.default_rng(2), CODE) for _ in range(10))
    ends = [cost for cost in costs(draft=0.0, verify=0.0) if cost.num_speculative_tokens in (0, K)]
    curve = curve_from(ends, concurrency=1, ks=range(K + 1))
    *_, last = summary_of(traffic, [], K, curve).reasons
    assert (last.kind, last.figures["ks"]) == (Kind.NO_SMALLER_K, (0,))


def test_nothing_read_is_not_called_no_traffic():
    assert summary_of(WatchedTraffic(), [], K).reasons == (Kind.NOTHING_READ(),)


def costs(*, draft, verify, concurrency=1, **of_run):
    """Step times of a round: a step and, for each draft token, a draft and its check."""
    return [
        EngineCost(
            source="run 1",
            engine="vllm 0.32.0",
            num_speculative_tokens=k,
            concurrency=concurrency,
            cost=0.02 * (1 + k * (draft + verify)),
            is_relative=False,
            **of_run,
        )
        for k in range(K + 1)
    ]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(("draft", "verify"), [(0.02, 0.01), (0.1, 0.05), (0.25, 0.1), (0.9, 0.3)])
def test_the_named_k_is_that_of_a_sweep(draft, verify):
    """A sweep measures every K with the same costs; its best is near the named one's speed."""
    curve = curve_from(costs(draft=draft, verify=verify), concurrency=1, ks=range(K + 1))
    hits = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        traffic, _ = watched(window(rng, PROSE) for _ in range(40))
        named = best_of(forecasts(traffic.batches, K, curve)).num_speculative_tokens
        others = [request(rng, PROSE) for _ in range(200)]
        rounds = sum(r for r, _, _ in others)
        reached = np.cumsum([rounds, *sum(at for _, at, _ in others)])
        speeds = [reached[k] / curve.costs[k][0] for k in range(K + 1)]
        hits += speeds[named] >= 0.99 * max(speeds)
    assert hits >= 16


def test_rounds_without_drafts_also_take_a_step_time():
    """vLLM counts the 300 of 1,000 rounds in which n-grams found a draft."""
    counted = Counters(
        engine="vllm",
        num_rounds=300.0,
        num_draft_tokens=1200.0,
        num_accepted=600.0,
        num_accepted_at=(240.0, 180.0, 120.0, 60.0),
        num_tokens=1610.0,
        num_requests=10.0,
    )
    curve = CostCurve(costs={0: (1.0,), K: (1.7,)}, source="run 1")
    plain, *_, now = forecasts([counted] * 5, K, curve)
    assert plain.speed.estimate == pytest.approx(1.7 / 1.6)
    assert best_of([plain, now]) is plain
    assert now.tokens_per_round == 3  # of the rounds that are counted, as the mean length
    every = replace(counted, num_rounds=1000.0, counts_all_rounds=True)
    assert forecasts([every] * 5, K, curve)[0].speed.estimate == pytest.approx(1.7 / 1.6)


def test_a_forecast_has_the_error_of_the_cost_that_was_repeated():
    traffic, _ = watched([window(np.random.default_rng(2), PROSE)] * 6)
    once, often = (0.02,), (0.018, 0.022, 0.02, 0.019, 0.021)
    for costs_of in ({0: once, K: often}, {0: often, K: once}):
        plain, *_ = forecasts(traffic.batches, K, CostCurve(costs=costs_of, source="run 1"))
        assert plain.speed.high / plain.speed.low > 1.05


def test_without_step_times_no_k_is_named_and_no_speed():
    traffic, found = watched(window(np.random.default_rng(2), PROSE) for _ in range(10))
    summary = summary_of(traffic, [reason for _, reason in found], K, None)
    kinds = [reason.kind for reason in summary.reasons]
    assert kinds[-1] is Kind.NEEDS_STEP_TIMES
    assert Kind.K_FORECAST not in kinds
    assert all(choice.speed is None for choice in summary.forecasts)


def test_drafts_of_a_tree_and_of_an_unknown_k_are_not_forecast():
    traffic, _ = watched(window(np.random.default_rng(2), PROSE) for _ in range(10))
    assert forecasts(traffic.batches, K + 1, None) == []
    wide = [
        Counters(
            engine="vllm",
            num_rounds=10.0,
            num_draft_tokens=100.0,
            num_accepted=20.0,
            num_accepted_at=(8.0, 6.0, 4.0, 2.0),
        )
    ]
    assert forecasts(wide, K, None) == []


def test_step_times_are_of_this_server_and_of_the_nearest_number_of_requests():
    near, far = (costs(draft=0.1, verify=0.1, concurrency=n, target="t") for n in (4, 16))
    for other in far:
        object.__setattr__(other, "cost", 9.0)
    curve, concurrency = curve_near([*near, *far], "vllm 0.32.0", 5.2, K)
    assert (curve.costs[0], concurrency) == ((0.02,), 4)
    assert curve_near([*near, *far], "vllm 0.32.0", 14.0, K)[1] == 16
    with pytest.raises(UsageError, match=r"4, 16 concurrent requests.*of one number"):
        curve_near([*near, *far], "vllm 0.32.0", None, K)
    assert curve_near(near, "vllm 0.32.0", None, K)[1] == 4
    for name, value in {"target": "u", "context": 16_000, "num_samples": 8}.items():
        one = costs(draft=0.1, verify=0.1, **{"target": "t", "context": 0, "num_samples": 1})
        other = [replace(cost, **{name: value}) for cost in one]
        with pytest.raises(UsageError, match=f"of several .*, {value};"):
            curve_near([*one, *other], "vllm 0.32.0", 1.0, K)
    with pytest.raises(Exception, match=r"vllm 0\.32\.0.*vllm 0\.33\.0"):
        curve_near(near, "vllm 0.33.0", 1.0, K)


class FakeVllm(Handler):
    """Counters that grow with every reading."""

    drafts = True
    rates = (0.8, 0.4)  # by position

    def do_GET(self):
        known = type(self)
        if self.path == "/version":
            return self.send(json.dumps({"version": "0.32.0"}))
        if self.path == "/v1/models":
            return self.send(json.dumps({"data": [{"id": "m", "root": "m"}]}))
        if self.path != "/metrics":
            return self.send("", status=404)
        known.readings = getattr(known, "readings", 0) + 1
        rounds = 100 * known.readings
        lines = [
            f"vllm:generation_tokens_total {300 * known.readings}",
            f"vllm:request_success_total {4 * known.readings}",
        ]
        if self.drafts:
            lines += [
                f"vllm:spec_decode_num_drafts_total {rounds}",
                f"vllm:spec_decode_num_draft_tokens_total {len(self.rates) * rounds}",
                f"vllm:spec_decode_num_accepted_tokens_total {int(sum(self.rates) * rounds)}",
            ]
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {int(n)}'
                for i, n in enumerate(rate * rounds for rate in self.rates)
            ]
        return self.send("\n".join(lines) + "\n")


@pytest.fixture
def run(tmp_path):
    """`specbench watch` in this process."""
    return partial(specbench, "watch", cwd=tmp_path)


def test_a_server_is_watched_and_the_lines_are_those_of_the_schema(tmp_path, run):
    table = tmp_path / "costs.csv"
    table.write_text("k,cost\n0,1\n1,1.1\n2,2.0\n")
    with serving_with(FakeVllm) as url:
        often = ("--base-url", url, "--for", "1s", "--every", "0.1s")
        done = run(*often, "--json")
        lines = [json.loads(line) for line in done.out.splitlines()]
        assert done.code == 0, done.err
        assert {frozenset(line) for line in lines} == {frozenset(DOCUMENT.keys)}
        assert [line["part"] for line in lines[-2:]] == ["window", "summary"]
        summary = lines[-1]
        assert summary["mean_acceptance_length"]["estimate"] == pytest.approx(2.2)
        rates = [rate["estimate"] for rate in summary["acceptance_rate_per_position"]]
        assert rates == pytest.approx([0.8, 0.4], abs=0.01)
        assert "forecast: K=1" in run(*often, "--step-times", table).out


@pytest.fixture
def harmless_signals():
    """A signal that the watch leaves alone fails its test, and does not end all tests."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("harmless_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_watch_with_its_summary(number, run):
    class Signaling(FakeVllm):
        def do_GET(self):
            super().do_GET()
            if self.path == "/metrics" and type(self).readings == 20:
                signal.raise_signal(number)

    with serving_with(Signaling) as url:
        done = run("--base-url", url, "--for", "60s", "--every", "0.05s", "--json")
    parts = [json.loads(line)["part"] for line in done.out.splitlines()]
    assert (done.code, parts[-1]) == (0, "summary")
    assert 1 < len(parts) <= 20  # it ended early


def test_a_server_without_drafts_or_without_counters_is_told(run):
    with serving_with(FakeVllm, drafts=False) as url:
        done = run("--base-url", url, "--for", "0.5s", "--every", "0.1s")
        assert "no drafts in" in done.out
    with serving_with(Handler, do_GET=lambda self: self.send("", status=404)) as url:
        done = run("--base-url", url, "--for", "0.5s", "--every", "0.1s")
        assert (done.code, "no page of counters" in done.err) == (2, True)
    done = run("--base-url", "http://localhost:1", "--for", "1s", "--every", "5s")
    assert (done.code, "--every" in done.err) == (2, True)


def test_an_error_page_is_no_restart_and_no_traffic(run):
    class Proxied(FakeVllm):
        def do_GET(self):
            if self.path == "/metrics" and getattr(type(self), "readings", 0) == 9:
                type(self).readings += 1
                return self.send("bad gateway", status=404)
            return super().do_GET()

    with serving_with(Proxied) as url:
        done = run("--base-url", url, "--for", "2s", "--every", "0.05s", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert "no counters" in done.err
    assert {line["num_rounds"] for line in lines[:-1]} == {100.0}


@pytest.mark.parametrize("after", [(0.5,), (0.5, 0.25)])
def test_only_a_restart_with_another_k_begins_anew(run, after):
    class Redeployed(FakeVllm):
        def do_GET(self):
            if self.path == "/metrics" and getattr(type(self), "readings", 0) == 16:
                type(self).readings, type(self).rates = 0, after
            return super().do_GET()

    with serving_with(Redeployed) as url:
        done = run("--base-url", url, "--for", "2s", "--every", "0.05s")
    assert "restarted" in done.err
    assert f"vllm 0.32.0, K={len(after)}:" in done.out
    is_anew = len(after) < len(FakeVllm.rates)
    assert ("acceptance changed" in done.out) != is_anew
    assert ("counted anew: vllm 0.32.0, K=1" in done.err) == is_anew
    assert ("1.50 tokens per round" in done.out) == is_anew


def test_step_times_that_do_not_fit_are_told_before_watching(tmp_path, run, monkeypatch):
    monkeypatch.setattr("specbench.watch.server.windows", None)
    table = tmp_path / "costs.csv"
    table.write_text("k,cost\n0,1\n1,1.1\n")
    with serving_with(FakeVllm) as url:
        done = run("--base-url", f"{url}#k=4", "--for", "1h", "--step-times", table)
        assert (done.code, "no cost of K=4" in done.err) == (2, True)


def test_step_times_that_turn_out_not_to_fit_leave_the_summary(tmp_path, run):
    class Late(FakeVllm):
        """It has counters of drafts, and so a K, from its first drafts on."""

        @property
        def drafts(self):
            return type(self).readings > 8

    table = tmp_path / "costs.csv"
    table.write_text("k,cost\n0,1\n1,1.1\n")
    with serving_with(Late) as url:
        words = ("--base-url", url, "--for", "2s", "--every", "0.05s", "--step-times", table)
        late = run(*words, "--json")
    assert json.loads(late.out.splitlines()[-1])["part"] == "summary"
    assert "warning: --step-times" in late.err


@pytest.mark.parametrize(
    ("before", "then"), [(0.0, "it answers again"), (9.0, "http://a restarted")]
)
def test_a_server_that_is_lost_is_told_once(before, then):
    answers = iter([before, None, None, None, 1.0])

    async def counters():
        if (rounds := next(answers, 2.0)) is None:
            raise ServerError("gone")
        return Counters(engine="vllm", num_rounds=rounds)

    async def watch():
        client = SimpleNamespace(address=SimpleNamespace(root="http://a"))
        server = SimpleNamespace(counters=counters, client=client)
        return [seen async for seen in windows(server, seconds=0.3, every_s=0.02)]

    told = [seen for seen in asyncio.run(watch()) if isinstance(seen, str)]
    assert told == ["gone", then]
