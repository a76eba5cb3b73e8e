"""Any behavior of a server gives a response or a clear error. Only the given server is queried,
with its key, which is never shown.
"""

import asyncio
import json
import re
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from specbench.errors import LostError, RefusedError, ServerError, UsageError
from tests.servers.crowd_server import CLOSED, FAULTS, IDS, CrowdServer, reset
from tests.servers.event_loops import SkippingLoop, in_loop
from tests.servers.fake_server import FakeServer, serving
from tests.servers.raw_server import (
    client_of,
    failure_of,
    posted,
    raw_server,
    send_all,
    stream_of,
)


def responses_to(server, *prompts, **more):
    """The client's responses to the prompts, one after the other."""

    async def ask():
        async with server.serving() as url, client_of(url, **more) as client:
            return [await client.stream("completions", {"prompt": prompt}) for prompt in prompts]

    return asyncio.run(ask())


def test_a_streamed_response_is_read_completely():
    server = CrowdServer()
    (answer,) = responses_to(server, "a")
    assert list(answer.token_ids) == IDS * server.num_events
    assert answer.num_events == server.num_events
    assert answer.num_prompt_tokens == 5


def connections_of(prompts, idle_s, close=None):
    """The number of connections to a server after the response to each prompt."""
    server = CrowdServer()
    counts = []

    async def ask():
        async with server.serving() as url, client_of(url) as client:
            for prompt in prompts:
                answer = await client.stream("completions", {"prompt": prompt})
                assert list(answer.token_ids) == IDS * server.num_events
                counts.append(server.num_connections)
                if close:
                    close(*server.writers)
                    await server.until(lambda: not server.writers)
                asyncio.get_running_loop().skipped_s += idle_s

    in_loop(SkippingLoop, ask())
    return counts


def abort(writer):
    writer.transport.abort()


def test_a_connection_is_used_again_once_it_is_known_to_stay_open():
    """Not immediately, when the server may be about to close it, nor after a long time."""
    assert connections_of("aaa", idle_s=0.5) == [1, 1, 1]
    assert connections_of("aaa", idle_s=0.0) == [1, 2, 3]
    assert connections_of("aaa", idle_s=3.0) == [1, 2, 3]


def test_bytes_after_a_response_are_not_taken_for_the_next_one():
    assert connections_of(["more", "a"], idle_s=0.5) == [1, 2]


@pytest.mark.parametrize("close", [abort, reset])
def test_a_connection_that_the_server_closed_is_not_used_again(close):
    assert connections_of("aa", idle_s=0.5, close=close) == [1, 2]


@pytest.mark.parametrize("prompt", CLOSED)
def test_a_request_whose_idle_connection_is_closed_meanwhile_is_sent_on_a_new_one(prompt):
    assert connections_of(["a", prompt, "a"], idle_s=0.5) == [1, 2, 2]


@pytest.mark.parametrize("prompt", CLOSED)
def test_a_request_whose_new_connection_is_closed_is_not_sent_again(prompt):
    server = CrowdServer()
    with pytest.raises(LostError, match="broke off"):
        responses_to(server, prompt)
    assert server.requests == [prompt]


def test_a_request_whose_answer_has_begun_is_not_sent_again():
    server = CrowdServer()

    async def ask():
        async with server.serving() as url, client_of(url) as client:
            await client.stream("completions", {"prompt": "a"})
            asyncio.get_running_loop().skipped_s += 0.5  # its connection is used again
            with pytest.raises(LostError, match="broke off"):
                await client.stream("completions", {"prompt": "begun"})

    in_loop(SkippingLoop, ask())
    assert server.requests == ["a", "begun"]
    assert server.num_connections == 1


@pytest.mark.parametrize("prompt", FAULTS)
def test_a_faulty_response_is_an_error_and_the_next_request_works(prompt):
    server = CrowdServer()

    async def ask():
        async with server.serving() as url, client_of(url) as client:
            loop = asyncio.get_running_loop()
            skipping = loop.create_task(loop.skip_silence(server, num_requests=1))
            with pytest.raises(ServerError) as wrong:
                await client.stream("completions", {"prompt": prompt})
            answer = await client.stream("completions", {"prompt": "a"})
            assert list(answer.token_ids) == IDS * server.num_events
            await skipping
        assert str(wrong.value).startswith(f"{url}: ")
        return wrong

    wrong = in_loop(SkippingLoop, ask())
    assert FAULTS[prompt] in str(wrong.value)
    assert isinstance(wrong.value, RefusedError) == (prompt == "500")


def test_a_silent_server_gives_an_error_with_the_limit():
    with pytest.raises(ServerError, match=r"nothing for 0\.1 s"):
        responses_to(CrowdServer(), "hang", silence_s=0.1)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"", "broke off: Server disconnected"),
        (b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 500 Oh\r\n\r\n", "answered 500: Oh"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "broke off: "),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "broke off: its stream ended after 0 events"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\nplain",
            "Can not decode content-encoding",
        ),
        (stream_of(b"data: {"), "streams events that are not those of an OpenAI"),
        (stream_of(b"data: \xff\xfe"), "streams events that are not those of an OpenAI"),
        (stream_of(b"data: " + b"[" * 100_000), "streams events that are not those of an OpenAI"),
        (stream_of(b"data: 5"), "streams events that are not those of an OpenAI"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://[\r\n\r\n", "redirects to another address"),
        (b"HTTP/1.1 503 Busy\r\n\r\n<html>", "/v1/completions answered 503: Busy"),
    ],
)
def test_a_malformed_response_is_a_clear_error(reply, reason):
    assert reason in failure_of(lambda _: reply)


def test_a_last_line_without_an_end_is_read():
    reply = stream_of(b'data: {"choices": [{"text": "a"}]}') + b"data: [DONE]"

    async def ask():
        async with raw_server(lambda _: reply) as url, client_of(url) as client:
            return await client.stream("completions", {})

    answer = asyncio.run(ask())
    assert (answer.text, answer.is_done) == ("a", True)


@pytest.mark.parametrize(
    ("limit", "call", "reason"),
    [
        ("response.LONGEST_EVENT", lambda c: c.stream("completions", {}), "a line of more than"),
        ("client.LARGEST_PAGE", lambda c: c.json(c.address.root), "has more than"),
    ],
)
def test_an_endless_response_is_cut_off(limit, call, reason, monkeypatch):
    monkeypatch.setattr(f"specbench.servers.{limit}", 2**10)
    reply = b"HTTP/1.1 200 OK\r\n\r\ndata: " + b"9" * 2**12
    assert reason in failure_of(lambda _: reply, call)


@pytest.mark.parametrize("host", ["a b", "\u2028", "x" * 300, "xn--\u00e9"])
def test_an_unusable_address_is_a_server_error(host):
    async def ask():
        async with client_of(f"http://{host}:1") as client:
            await client.model_cards()

    with pytest.raises(ServerError, match="cannot be reached"):
        asyncio.run(ask())


def test_an_html_version_page_gives_no_version():
    async def ask(reply):
        async with raw_server(lambda _: reply) as url, client_of(url) as client:
            return await client.version()

    assert asyncio.run(ask(b"HTTP/1.1 200 OK\r\n\r\n<html>")) == ""
    assert asyncio.run(ask(b'HTTP/1.1 200 OK\r\n\r\n{"version": "1.2"}')) == "1.2"


def test_concurrent_requests_use_separate_connections():
    server = CrowdServer()

    async def ask():
        async with server.serving() as url, client_of(url) as client:
            hung = [
                asyncio.create_task(client.stream("completions", {"prompt": "hang"}))
                for _ in range(30)
            ]
            await server.until(lambda: server.num_hanging == 30)
            for task in hung:
                task.cancel()
            await asyncio.gather(*hung, return_exceptions=True)
            await client.stream("completions", {"prompt": "a"})

    asyncio.run(ask())
    assert server.max_active == 30
    assert server.num_connections in (30, 31)


def test_requests_reach_the_server_unchanged():
    heads = []

    async def ask():
        noting = raw_server(lambda head: heads.append(head) or b"")
        async with noting as url, client_of(url) as client:
            with pytest.raises(ServerError):
                await client.stream("chat/completions", {"messages": [], "stream": True})

    asyncio.run(ask())
    assert heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"authorization" not in heads[0].lower()
    assert b"accept-encoding: identity\r\n" in heads[0].lower()


def test_streamed_errors_are_json_of_any_shape():
    for error in ("text", 5, ["a"], {"code": 3}):
        line = b"data: " + json.dumps({"error": error}).encode()
        assert "failed while" in failure_of(lambda _, line=line: stream_of(line))


KEY = "s3cret"
UNVOUCHED = Path(__file__).with_name("unvouched.pem")  # an unsigned certificate and its key


def echoing_replies(form):
    """Replies that repeat the key of the request."""

    def reply(head):
        key = head.split(b"Bearer ")[1].split(b"\r\n")[0]
        return form.replace(b"KEY", key)

    return reply


@pytest.mark.parametrize(
    ("form", "call"),
    [
        (b"KEY nonsense\r\n\r\n", None),
        (b"HTTP/1.1 500 wrong KEY\r\n\r\n", None),
        (b'HTTP/1.1 400 Bad\r\n\r\n{"error": {"message": "KEY"}}', None),
        (b'HTTP/1.1 400 Bad\r\n\r\n{"detail": [{"input": "KEY"}]}', None),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"message": "KEY"}}\n\n', None),
        (b"HTTP/1.1 200 OK\r\n\r\na KEY\n", lambda client: client.counters("/metrics", ())),
    ],
)
def test_a_key_that_is_repeated_is_not_shown(form, call, monkeypatch):
    monkeypatch.setenv("SPECBENCH_API_KEY", KEY)
    message = failure_of(echoing_replies(form), *([call] if call else []))
    assert KEY not in message
    assert "***" in message


def test_an_invalid_api_key_is_refused_before_any_request(monkeypatch):
    monkeypatch.setenv("SPECBENCH_API_KEY", "s3cret s3cret")
    with pytest.raises(UsageError, match="contains a character") as wrong:
        client_of("http://127.0.0.1:1")
    assert KEY not in str(wrong.value)


def test_the_client_ignores_proxies_and_netrc(monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password wrong")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("SPECBENCH_API_KEY", KEY)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    proxy = FakeServer()
    with serving(proxy) as elsewhere:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, elsewhere)
        server = CrowdServer(key=KEY)

        async def ask():
            async with server.serving() as url, client_of(url) as client:
                await client.stream("completions", {"prompt": "a"})

        asyncio.run(ask())
    assert not proxy.requests
    assert server.requests == ["a"]


async def model_over_tls(host="127.0.0.1"):
    """The model of a server with this certificate, which is for 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(UNVOUCHED)
    page = b'{"data": [{"id": "tiny"}]}'
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(page), page)
    async with (
        raw_server(lambda _: reply, ssl=context) as url,
        client_of(url.replace("http://127.0.0.1", f"https://{host}")) as client,
    ):
        (card,) = await client.model_cards()
        return card["id"]


def test_a_certificate_is_trusted_by_a_file_or_a_folder_of_the_environment(monkeypatch, tmp_path):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "38f0f5c9.0").write_bytes(UNVOUCHED.read_bytes())  # `openssl x509 -hash` names it
    for name, path in (("SSL_CERT_FILE", UNVOUCHED), ("SSL_CERT_DIR", tmp_path)):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(path))
            assert asyncio.run(model_over_tls()) == "tiny"
        with pytest.raises(LostError, match=r"CERTIFICATE_VERIFY_FAILED.*SSL_CERT_FILE"):
            asyncio.run(model_over_tls())


def test_a_certificate_that_cannot_be_trusted_is_an_error_with_its_remedy(monkeypatch, tmp_path):
    absent = tmp_path / "absent.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(absent))
    with pytest.raises(LostError, match=re.escape(str(absent))):
        asyncio.run(model_over_tls())
    monkeypatch.setenv("SSL_CERT_FILE", str(UNVOUCHED))
    with pytest.raises(LostError, match="mismatch") as wrong:
        asyncio.run(model_over_tls(host="localhost"))
    assert "SSL_CERT_FILE" not in str(wrong.value)  # it would not help


def limited(retry_after):
    return b"HTTP/1.1 429 Slow\r\nretry-after: %s\r\ncontent-length: 0\r\n\r\n" % retry_after


ANSWER = stream_of(b'data: {"choices": [{"text": "a"}]}', b"data: [DONE]")


def test_a_request_is_sent_again_when_the_server_says_if_it_limits_the_rate(monkeypatch):
    monkeypatch.setattr("specbench.servers.client.SHORTEST_DELAY_S", 0.05)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=5), usegmt=True).encode()

    async def ask(*replies):
        left = iter(replies)
        async with raw_server(lambda _: next(left)) as url, client_of(url) as client:
            answer, _ = await send_all(
                [posted("completions", lambda _: {"prompt": "a"})], [client], concurrency=1
            )
            return answer[0], client

    answer, client = asyncio.run(ask(limited(b"0"), limited(past), ANSWER))
    assert (answer.error, answer.text) == (None, "a")
    assert answer.delayed_s >= 2 * 0.05
    assert answer.last_s - answer.sent_s < answer.last_s - answer.delayed_s
    assert (client.num_open, client.num_closed) == (0, 3)
    assert asyncio.run(ask(ANSWER))[0].delayed_s == 0


@pytest.mark.parametrize("retry_after", [b"3600", b"soon", b"", b"-1", b"nan"])
def test_a_rate_limit_without_an_end_in_sight_is_a_lost_request(retry_after):
    message = failure_of(lambda _: limited(retry_after))
    assert "answered 429" in message
    assert "--concurrency" in message
    assert ("3600 s" in message) == (retry_after == b"3600")


def test_a_server_that_always_limits_the_rate_is_given_up(monkeypatch):
    monkeypatch.setattr("specbench.servers.client.SHORTEST_DELAY_S", 0.02)
    monkeypatch.setattr("specbench.servers.client.LONGEST_DELAY_S", 0.05)
    num_asked = []
    message = failure_of(lambda head: num_asked.append(head) or limited(b"0"))
    assert "answered 429" in message
    assert len(num_asked) in (2, 3)


def test_an_api_with_another_path_is_an_error_with_addresses_to_try():
    reply = b"HTTP/1.1 404 Not Found\r\n\r\n"
    message = failure_of(lambda _: reply, lambda client: client.model_cards())
    assert "/v1/models answered 404" in message
    assert "/chat/completions" in message


def test_a_server_without_tls_is_an_error_with_a_hint():
    with serving(FakeServer(k=0)) as url:
        client = client_of(url.replace("http://", "https://"))
        with pytest.raises(ServerError, match="http://"):
            asyncio.run(client.model_cards())
