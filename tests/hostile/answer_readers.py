"""Readers of responses of serving engines: pages of facts and counters, streams of tokens."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from specbench.engines.served_engine import find_served
from specbench.inputs.address import Address
from specbench.records import RequestCounts, ServerRecord
from specbench.runs.codec import encode_line
from specbench.servers.client import Client
from specbench.servers.facts import ModelNames
from tests.engines.served.replay import REQUEST, recorded
from tests.hostile import mutations
from tests.hostile.mutations import Case, Make, Mutation

MODELS = '{"data": [{"id": "tiny", "max_model_len": 1024}]}'
VERSION = '{"version": "0.32.0"}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
# Requests for the facts of each engine, and its responses.
PAGES: Mapping[str, Mapping[str, str]] = {
    "llama_cpp": {
        "/props": recorded("llama_cpp_props.json"),
        "/slots": recorded("llama_cpp_slots.json"),
        "/v1/models": recorded("llama_cpp_models.json"),
        "/metrics": recorded("llama_cpp_metrics.txt"),
    },
    "vllm": {
        "/version": VERSION,
        "/v1/models": MODELS,
        "/metrics": recorded("vllm_metrics.txt"),
    },
    "sglang": {"/server_info": recorded("sglang_server_info.json"), "/v1/models": MODELS},
    "tensorrt_llm": {
        "/prometheus/metrics": recorded("tensorrt_llm_metrics.txt"),
        "/version": VERSION,
        "/v1/models": MODELS,
    },
}
# Its response to a completion request.
ANSWERS: Mapping[str, Mapping[str, str]] = {
    "llama_cpp": {
        "/apply-template": recorded("llama_cpp_template.json"),
        "/tokenize": recorded("llama_cpp_tokens.json"),
        "/completion": recorded("llama_cpp_completion.sse"),
    },
    **{
        name: {"/v1/chat/completions": recorded(f"{name}_chat.sse")}
        for name in ("vllm", "sglang", "tensorrt_llm")
    },
    "openai": {"/v1/chat/completions": recorded("vllm_chat.sse")},
}


def _http_page(page: bytes) -> bytes:
    return HEAD % len(page) + page


def _with_client(replies: Callable[[str], bytes], ask: Callable[[Client], object]) -> None:
    """`replies` gives the bytes that answer a path, and nothing after them."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(replies(head.split()[1].decode()))
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Address.at(address, "--base-url"), silence_s=20.0) as client:
            await ask(client)

    asyncio.run(run())


async def _facts(engine: str, client: Client) -> None:
    """They are stored, and K decides what is planned."""
    facts = await find_served(engine).facts(client, ModelNames())
    assert facts.k.value is None or type(facts.k.value) is int
    assert facts.kv_tokens is None or type(facts.kv_tokens) is int
    encode_line(
        ServerRecord(
            **dict.fromkeys(("session", "place", "target", "engine", "drafter", "method"), "a"),
            num_speculative_tokens=1,
            cycle=0,
            version=facts.version,
            model=facts.model,
            addresses=(),
            settings=facts.settings,
            prefix_cache=facts.prefix_cache.value or "unknown",
            read_at=facts.places,
            kv_tokens=facts.kv_tokens,
        )
    )


async def _answer(engine: str, client: Client) -> None:
    """Its tokens are counted, and its text and counts are stored."""
    served = find_served(engine)
    response = await served.answer(client, "tiny", REQUEST)
    response.text.encode()
    assert all(0 <= token < 2**31 for token in response.token_ids)
    counts = served.counts(response, 4)
    if counts is not None:
        fields = {name: getattr(counts, name) for name in RequestCounts.__dataclass_fields__}
        flat = [*fields.values(), *(fields.pop("num_by_accepted") or ())]
        assert all(n is None or type(n) is int or n == fields for n in flat if type(n) is not tuple)


def _of_page(engine: str, path: str, pages: Mapping[str, str], ask: Callable[..., object]) -> Make:
    def make(folder: Path) -> Case:
        file = folder / "page"

        def replies(requested: str) -> bytes:
            page = file.read_bytes() if requested == path else pages.get(requested, "").encode()
            return _http_page(page) if page or requested in pages else b"HTTP/1.1 404 Not\r\n\r\n"

        return Case(
            file=file,
            content=pages[path].encode(),
            mutated=_mutation(path, pages[path]),
            read=lambda: _with_client(replies, lambda client: ask(engine, client)),
            place="",
        )

    return make


def _mutation(path: str, page: str) -> Mutation:
    if "data: " in page:
        return mutations.event_stream
    return mutations.counter_page if path.endswith("metrics") else mutations.json_file


def _raw(folder: Path) -> Case:
    """The bytes of the protocol itself."""
    file = folder / "reply"
    page = recorded("vllm_chat.sse").encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in page.splitlines(True))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    return Case(
        file=file,
        content=head + b"\r\n" + chunks + b"0\r\n\r\n",
        mutated=lambda content, rng: (
            mutations.damaged(content[:300], rng) + content[300:]
            if rng.random() < 0.7
            else mutations.damaged(content, rng)
        ),
        read=lambda: _with_client(
            lambda _: file.read_bytes(), lambda client: _answer("openai", client)
        ),
        place="http://127.0.0.1:",
    )


def _all() -> Iterator[tuple[str, Make]]:
    for engine, pages in PAGES.items():
        for path in pages:
            yield f"{path} of {engine}", _of_page(engine, path, pages, _facts)
    for engine, pages in ANSWERS.items():
        for path in pages:
            yield f"{path} of {engine}", _of_page(engine, path, pages, _answer)


READERS: dict[str, Make] = {**dict(_all()), "HTTP": _raw}
