"""When the requests of a session come in."""

from itertools import islice

from specbench.bench.blocks import request_seed
from specbench.records import ALL_PROMPTS
from specbench.records.requests import poisson_arrivals
from tests.bench.served.running import running
from tests.bench.served.served_runs import measured, running_settings


def test_arrivals_of_an_open_loop_are_drawn_for_each_session(tmp_path):
    """They come late, by as much as this machine is busy, and nearest to their own times."""
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
            own = drawn[repeat]
            return sum(abs(a - b + own[0]) for a, b in zip(came_s, own, strict=True))

        assert min(drawn, key=off_s) == block.repeat
