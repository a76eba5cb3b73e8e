"""Servers of HTTP in threads of this process, with what most of their handlers need."""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers requests without a log."""

    def read_body(self) -> dict[str, Any]:
        """The JSON of the request's body."""
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def send(
        self, body: str | bytes, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a page."""
        page = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Length": str(len(page)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(page)

    def stream(self, events: Iterable[dict[str, Any]]) -> None:
        """Send events as they are made."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving_with(handler: type[BaseHTTPRequestHandler], **known: Any) -> Iterator[str]:
    """The address of a server with this handler; `known` are attributes of the handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (handler,), known))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
