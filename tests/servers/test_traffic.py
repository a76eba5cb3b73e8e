"""The order and times of requests, in virtual time, without a server."""

import asyncio
import ctypes
import re
import threading
import time
from dataclasses import dataclass, field
from time import process_time

import pytest

from specbench.engines.engine import Load, arriving
from specbench.errors import LostError, ServerError, WorkloadError
from specbench.metrics.aggregate import why_bound
from specbench.records import Kind, Request, Sampling
from specbench.records.requests import poisson_arrivals
from specbench.servers import traffic
from specbench.servers.response import StreamedResponse
from tests.servers.event_loops import in_virtual_time
from tests.servers.raw_server import posted, send_all


@dataclass
class PacedClient:
    """Answers a request after the seconds it names, with its number as the text."""

    num_events: int = 0
    served: list[int] = field(default_factory=list)
    num_active: int = 0
    max_active: int = 0

    async def stream(self, path, body):
        self.served.append(body["number"])
        self.num_active += 1
        self.max_active = max(self.max_active, self.num_active)
        await asyncio.sleep(body["seconds"])
        self.num_active -= 1
        if body["seconds"] == 13:
            raise ServerError("unlucky")
        self.num_events += 1
        return StreamedResponse(text=f"{path} {body['number']}")


def request(number, seconds=1.0, conversation=None):
    def body(_):
        return {"number": number, "seconds": seconds}

    return posted(path="completions", body=body, conversation=conversation)


def test_in_closed_loop_a_request_starts_when_another_ends():
    client = PacedClient()
    seconds = [4, 1, 1, 3]
    requests = [request(i, s) for i, s in enumerate(seconds)]
    answers, load = in_virtual_time(send_all(requests, [client], concurrency=2))
    assert [a.sent_s for a in answers] == pytest.approx([0, 0, 1, 2])
    assert [a.text for a in answers] == [f"completions {i}" for i in range(4)]
    assert client.max_active == 2
    more = in_virtual_time(send_all(requests[:1], [client], concurrency=2)).load
    assert (more.num_events, more.seconds) == (1, pytest.approx(4))
    assert (load.num_events, load.seconds) == (4, pytest.approx(5))


def test_in_open_loop_requests_start_at_their_arrival_times():
    client = PacedClient()
    requests = [request(i, 100.0) for i in range(20)]
    answers, _ = in_virtual_time(send_all(requests, [client], request_rate=4.0, seed=7))
    times_s = poisson_arrivals(4.0, 7)
    assert [a.sent_s for a in answers] == pytest.approx([next(times_s) for _ in answers])
    assert client.max_active == 20


class LosingClient(PacedClient):
    """A client whose server is gone at the third request."""

    async def stream(self, path, body):
        self.served.append(body["number"])
        if len(self.served) == 3:
            raise LostError("gone")
        return StreamedResponse(text=path)


@pytest.mark.parametrize("load", [{"request_rate": 4.0, "seed": 7}, {"concurrency": 1}], ids=str)
def test_no_request_is_sent_after_a_loss_that_ends_the_session(load):
    requests = [request(i) for i in range(8)]
    ending, going_on = LosingClient(), LosingClient()
    in_virtual_time(send_all(requests, [ending], ends_at_loss=True, **load))
    in_virtual_time(send_all(requests, [going_on], **load))
    assert ending.served == [0, 1, 2]
    assert going_on.served == [*range(8)]


def test_arrival_times_equal_those_for_served_engines():
    sampling = Sampling(temperature=0.0)
    requests = [
        Request(
            prompt_ids=(1,), max_new_tokens=1, sampling=sampling, seed=0, conversation=conversation
        )
        for conversation in ("a", "a", None, None, "b")
    ]
    times_s = poisson_arrivals(4.0, 7)
    expected = [next(times_s), None, next(times_s), next(times_s), next(times_s)]
    assert [a.at_s for a in arriving(requests, Load(request_rate=4.0, seed=7))] == expected


@pytest.mark.parametrize("is_open", [False, True])
def test_a_later_turn_waits_for_the_previous_response(is_open):
    seen = []

    def turn(number):
        def body(answers):
            seen.append([a.text for a in answers])
            return {"number": number, "seconds": 5.0}

        return posted(path="chat", body=body, conversation="talk")

    requests = [turn(0), turn(1), request(2, 1.0), turn(3)]
    client = PacedClient()
    load = {"request_rate": 1e6} if is_open else {"concurrency": 4}
    work = send_all(requests, [client], **load)
    answers, _ = in_virtual_time(work)
    assert [a.sent_s for a in answers] == pytest.approx([0, 5, 0, 10], abs=1e-3)
    assert seen == [[], ["chat 0"], ["chat 0", "chat 1"]]


def test_requests_alternate_between_servers_except_within_conversations():
    clients = [PacedClient(), PacedClient()]
    requests = [request(0, conversation="a"), request(1), request(2), request(3, conversation="a")]
    in_virtual_time(send_all(requests, clients, concurrency=1))
    assert [client.served for client in clients] == [[0, 3, 2], [1]]


def test_a_failed_request_ends_only_its_own_conversation():
    def refuse(_):
        raise WorkloadError("the template refuses")

    requests = [
        request(0, conversation="a"),
        request(1, 13, conversation="a"),
        request(2, conversation="a"),
        request(3, 13),
        posted(path="chat", body=refuse),
        request(5),
    ]
    answers, load = in_virtual_time(send_all(requests, [PacedClient()], concurrency=2))
    errors = [a.error for a in answers]
    assert re.match("not sent: turn 2 ", errors.pop(2) or "")
    assert errors == [None, "unlucky", "unlucky", "the template refuses", None]
    assert [i for i, a in enumerate(answers) if not a.error] == [0, 5]
    assert load.num_events == 2


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="concurrency is 0"):
        asyncio.run(send_all([request(0)], [PacedClient()], concurrency=0))


class StallingClient(PacedClient):
    """Pauses after each response, as a client that is too slow does."""

    stall_s = 0.1

    async def stream(self, path, body):
        answer = await super().stream(path, body)
        asyncio.get_running_loop().stand_still(self.stall_s)
        return answer


def load_with_stalls(stall_s, every_s):
    client = StallingClient()
    client.stall_s = stall_s
    requests = [request(i, every_s) for i in range(20)]
    return in_virtual_time(send_all(requests, [client], concurrency=1)).load


def test_an_event_loop_that_is_often_blocked_marks_the_client_as_bound():
    """40 ms after every tenth of a second. Of 14 ticks four wait, for 40, 30, 20 and 10 ms, and the
    latest 1.4 of them do not count."""
    load = load_with_stalls(stall_s=0.04, every_s=0.1)
    assert load.pauses_s == ()
    assert load.mean_lag_s == pytest.approx((0.6 * 0.03 + 0.02 + 0.01) / 12.6, rel=0.3)
    assert why_bound(load, round_s=0.02).kind is Kind.CLIENT_LAGGED
    assert why_bound(load, round_s=0.2) is None


@pytest.mark.parametrize(("stall_s", "every_s"), [(0.0, 1.0), (0.04, 1.0), (0.5, 1.0)])
def test_rare_stalls_do_not_make_a_lag_and_long_ones_count_as_pauses(stall_s, every_s):
    load = load_with_stalls(stall_s, every_s)
    assert load.mean_lag_s == pytest.approx(0, abs=1e-3)
    is_pause = stall_s >= traffic.PAUSE_S
    assert load.pauses_s == pytest.approx([stall_s] * 20 * is_pause, abs=1.01 * traffic.TICK_S)


class PausingClient(PacedClient):
    """Its process stands still for half a second during request 1."""

    async def stream(self, path, body):
        loop = asyncio.get_running_loop()
        if body["number"] == 1:
            loop.call_later(0.25, loop.stand_still, 0.5)
        await super().stream(path, body)
        return StreamedResponse(first_s=loop.time(), last_s=loop.time())


def test_a_pause_counts_for_the_requests_that_it_hits():
    requests = [request(i, 2.0) for i in range(4)]
    answers, load = in_virtual_time(send_all(requests, [PausingClient()], concurrency=2))
    assert [a.paused_s for a in answers] == pytest.approx(
        [0.5, 0.5, 0, 0], abs=1.01 * traffic.TICK_S
    )
    assert load.pauses_s == pytest.approx([0.5], abs=1.01 * traffic.TICK_S)


def test_a_pause_at_the_end_is_measured():
    load = in_virtual_time(send_all([request(0)], [StallingClient()], concurrency=1)).load
    assert load.pauses_s == pytest.approx([0.1], abs=1.01 * traffic.TICK_S)


class SleepyClient(PacedClient):
    """Lets its whole process wait half of the time."""

    async def stream(self, *_):
        await asyncio.sleep(0.1)
        time.sleep(0.1)
        return StreamedResponse()


def test_the_pauses_of_a_blocked_event_loop_are_measured():
    requests = [request(i) for i in range(5)]
    load = asyncio.run(send_all(requests, [SleepyClient()], concurrency=1)).load
    assert len(load.pauses_s) >= 5
    assert sum(load.pauses_s) > 0.8 * 5 * 0.1
    assert not [thread for thread in threading.enumerate() if thread.name == "ticks"]


class RaisingClient(PacedClient):
    async def stream(self, *_):
        raise ValueError("a bug")


def test_the_thread_ends_even_after_an_error():
    with pytest.raises(ExceptionGroup):
        asyncio.run(send_all([request(0)], [RaisingClient()], concurrency=1))
    assert not [thread for thread in threading.enumerate() if thread.name == "ticks"]


class HoldingClient(PacedClient):
    """Lets no other thread of this process run until the end."""

    async def stream(self, *_):
        await asyncio.sleep(0.1)
        ctypes.PyDLL(None).usleep(400_000)
        return StreamedResponse()


def test_a_stall_at_the_end_that_holds_the_gil_is_fully_measured():
    load = asyncio.run(send_all([request(0)], [HoldingClient()], concurrency=1)).load
    assert sum(load.pauses_s) > 0.8 * 0.4


def test_no_task_remains_after_the_last_response():
    async def ask():
        await send_all([request(0)], [PacedClient()], concurrency=2)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert not in_virtual_time(ask())


def test_client_cpu_seconds_are_those_of_this_process():
    def busy(_):
        end_s = process_time() + 0.02
        while process_time() < end_s:
            pass
        return {"number": 0, "seconds": 0.5}

    requests = [posted(path="chat", body=busy)]
    load = in_virtual_time(send_all(requests, [PacedClient()], concurrency=1)).load
    assert load.cpu_s >= 0.02
    assert load.seconds == pytest.approx(0.5)
