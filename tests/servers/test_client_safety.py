"""Only the given server is asked, with its key, which is shown nowhere."""

import asyncio
import ssl
from pathlib import Path

import pytest

from specbench.errors import ServerError, UsageError
from tests.servers.crowd_server import CrowdServer
from tests.servers.fake_server import FakeServer, serving
from tests.servers.raw_server import client_of, failure_of

KEY = "s3cret"
UNVOUCHED = Path(__file__).with_name("unvouched.pem")  # a certificate that nobody signed, its key


def echoing_replies(form):
    """Replies that repeat the key they were asked with."""

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


def test_the_client_ignores_proxies_netrc_and_certificate_variables(monkeypatch, tmp_path):
    """No proxy, no password of a .netrc, no certificates of somebody else."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password wrong")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent.pem"))
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


def test_a_server_with_an_untrusted_certificate_gets_no_request(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(UNVOUCHED))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(UNVOUCHED)
    calls = []

    async def ask():
        server = await asyncio.start_server(
            lambda _, writer: calls.append(writer.close()), "127.0.0.1", 0, ssl=context
        )
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with client_of(url) as client:
                with pytest.raises(ServerError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.model()

    asyncio.run(ask())
    assert not calls


def test_a_server_without_tls_is_an_error_with_a_hint():
    with serving(FakeServer(k=0)) as url:
        client = client_of(url.replace("http://", "https://"))
        with pytest.raises(ServerError, match="http://"):
            asyncio.run(client.model())
