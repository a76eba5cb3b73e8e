"""What a streamed event costs this process, whose server is another one."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.servers.crowd_server import IDS
from tests.servers.raw_server import client_of, posted, send_all

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
    """Streams are paced as those of a server; pools of connections once made requests dear."""
    costs_s = {}
    for concurrency, num_requests, pause_s in ((1, 10, 0.005), (64, 192, 0.05), (256, 768, 0.2)):
        with another_process(pause_s) as url:
            load = asyncio.run(load_at(url, concurrency, num_requests))
        costs_s[concurrency] = load.cpu_s / load.num_events
        print(
            f"{concurrency} concurrent requests: {costs_s[concurrency] * 1e6:.0f} us of CPU per "
            f"streamed event, {load.num_events / load.wall_s:.0f} events per second, lag "
            f"{load.mean_lag_s * 1e3:.2f} ms on average"
        )
    assert costs_s[256] < 1.5 * costs_s[64]
