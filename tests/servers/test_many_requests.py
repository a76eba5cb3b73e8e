"""Many concurrent requests to a server with faults: all are accounted for, and nothing grows."""

import asyncio
import gc
import logging
import random
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from contextlib import contextmanager

import aiohttp
import pytest

from specbench.engines.served.vllm import COUNTERS as VLLM
from tests.servers.crowd_server import FAULTS, IDS, CrowdServer
from tests.servers.event_loops import SkippingLoop, in_loop
from tests.servers.raw_server import client_of, posted, send_all

KEY = "s3cret-key"
SHARE_OF_FAULTS = 0.05
MAX_HANGS = 30  # fewer than the concurrent ones, so that they delay no other
KEPT_BYTES = 2_000  # of an answer: its tokens, marks and text
REQUEST_S = 0.001  # of the loop's time, so that connections settle and are used again


def prompt_request(prompt):
    return posted("completions", lambda _: {"prompt": prompt})


def planned(num_requests, seed=0):
    """Prompts, a share of which asks for faults of all kinds."""
    draw = random.Random(seed)
    kinds = [*FAULTS]
    prompts = [
        draw.choice(kinds) if draw.random() < SHARE_OF_FAULTS else f"prompt {i}"
        for i in range(num_requests)
    ]
    hangs = [i for i, prompt in enumerate(prompts) if prompt == "hang"]
    for i in hangs[MAX_HANGS:]:
        prompts[i] = "cut"
    return prompts


@contextmanager
def all_logged_to(path):
    """All logs go to this file, and not into memory."""
    handler = logging.FileHandler(path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        handler.close()


def served(num_requests, tmp_path, on_request=lambda _: None):
    """The outcomes of this many planned requests, 64 concurrent ones; each is counted when it is
    made.

    All are accounted for, and no file that was written meanwhile has the key.
    """
    server = CrowdServer(key=KEY)
    prompts = planned(num_requests)
    numbers = iter(range(num_requests))

    def stopping_request(prompt):
        def body(_):
            asyncio.get_running_loop().skipped_s += REQUEST_S
            on_request(next(numbers))
            return {"prompt": prompt}

        return posted("completions", body)

    async def ask():
        loop = asyncio.get_running_loop()
        async with server.serving() as url, client_of(url) as client:
            skipping = loop.create_task(loop.skip_silence(server, num_requests))
            requests = [stopping_request(prompt) for prompt in prompts]
            traffic = await send_all(requests, [client], concurrency=64)
            await skipping
            return traffic

    with all_logged_to(tmp_path / "everything.log"):
        traffic = in_loop(SkippingLoop, ask())
    assert_accounted_for(prompts, traffic.answers)
    assert Counter(server.requests) == Counter(prompts)
    assert server.max_active <= 64
    assert server.num_connections < num_requests / 4

    (tmp_path / "answers.txt").write_text(repr(traffic))
    assert not [path for path in tmp_path.rglob("*") if KEY in path.read_text()]


def assert_accounted_for(prompts, answers):
    assert set(FAULTS) <= set(prompts)
    for prompt, answered in zip(prompts, answers, strict=True):
        if prompt in FAULTS:
            assert answered.error
            assert FAULTS[prompt] in answered.error
        else:
            assert answered.error is None
            assert len(answered.token_ids) == 3 * len(IDS)


def test_no_response_objects_remain_after_many_requests(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECBENCH_API_KEY", KEY)
    served(400, tmp_path)
    gc.collect()
    left = [
        obj
        for obj in gc.get_objects()
        if issubclass(type(obj), aiohttp.ClientResponse)  # some warn on inspection
    ]
    assert not left


@pytest.mark.long
def test_ten_thousand_requests_are_accounted_for_and_memory_is_flat(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECBENCH_API_KEY", KEY)
    used = []

    def measure(number):
        if number in (2_000, 9_900):
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        served(10_000, tmp_path, on_request=measure)
    finally:
        tracemalloc.stop()
    growth_bytes = (used[1] - used[0]) / 7_900
    print(f"\n10,000 requests: {growth_bytes:.0f} bytes stay of each, which are its answer")
    assert growth_bytes < KEPT_BYTES


def test_after_a_restart_requests_are_answered_again():
    """The restart ends the responses in progress and resets its counters."""
    server = CrowdServer()

    async def ask():
        async with server.serving() as url, client_of(url) as client:
            before = await client.counters(VLLM.path, [VLLM])
            restarting = asyncio.create_task(server.restart_when(2))
            requests = [prompt_request(prompt) for prompt in ("hang", "hang", "a", "b")]
            answers, _ = await send_all(requests, [client], concurrency=2)
            await restarting
            return answers, (await client.counters(VLLM.path, [VLLM])).since(before)

    answers, counted = asyncio.run(ask())
    assert ["broke off" in (a.error or "") for a in answers] == [True, True, False, False]
    assert [not a.error for a in answers] == [False, False, True, True]
    assert counted.spans_restart


def test_tokens_that_a_server_counts_for_others_are_noticed():
    server = CrowdServer()

    def other_body(_):
        server.num_tokens += 40
        return {"prompt": "a"}

    async def ask():
        async with server.serving() as url, client_of(url) as client:
            before = await client.counters(VLLM.path, [VLLM])
            requests = [prompt_request("a"), posted("completions", other_body), prompt_request("a")]
            answers, _ = await send_all(requests, [client], request_rate=1e6)
            return answers, (await client.counters(VLLM.path, [VLLM])).since(before)

    answers, counted = asyncio.run(ask())
    assert counted.num_tokens - sum(answered.num_tokens for answered in answers) == 40


def test_ctrl_c_closes_every_connection():
    server = CrowdServer()

    async def interrupt():
        await server.until(lambda: server.num_hanging == 8)
        signal.raise_signal(signal.SIGINT)

    async def ask():
        async with server.serving() as url, client_of(url) as client:
            interrupting = asyncio.create_task(interrupt())
            try:
                await send_all([prompt_request("hang")] * 20, [client], concurrency=8)
            finally:
                async with asyncio.timeout(60):
                    await server.until(lambda: not server.writers)
                await interrupting

    # A shell that starts the tests in the background lets them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(ask())
    finally:
        signal.signal(signal.SIGINT, before)
    assert server.requests == ["hang"] * 8


NUM_EVENTS = 40  # of an answer, and its end


@contextmanager
def another_process(pause_s):
    command = [sys.executable, "-m", "tests.servers.crowd_server", str(NUM_EVENTS), str(pause_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


async def load_at(url, concurrency, num_requests):
    requests = [posted(path="completions", body=lambda _: {"prompt": "a"})] * num_requests
    async with client_of(url) as client:
        await send_all(requests[:concurrency], [client], concurrency=concurrency)
        answers, load = await send_all(requests, [client], concurrency=concurrency)
    assert all(len(a.token_ids) == len(IDS) * NUM_EVENTS for a in answers)
    assert load.num_events == num_requests * (NUM_EVENTS + 2)
    return load


@pytest.mark.long
def test_the_cpu_cost_per_event_is_constant_in_the_concurrency():
    """Streams are paced like a server's; connection pools once made requests expensive."""
    costs_s = {}
    for concurrency, num_requests, pause_s in ((1, 10, 0.005), (64, 192, 0.05), (256, 768, 0.2)):
        with another_process(pause_s) as url:
            load = asyncio.run(load_at(url, concurrency, num_requests))
        costs_s[concurrency] = load.cpu_s / load.num_events
        print(
            f"{concurrency} concurrent requests: {costs_s[concurrency] * 1e6:.0f} us of CPU per "
            f"streamed event, {load.num_events / load.seconds:.0f} events per second, lag "
            f"{load.mean_lag_s * 1e3:.2f} ms on average"
        )
    assert costs_s[256] < 1.5 * costs_s[64]
