"""A minimal serving engine: `python fake_engine.py FACTS`, a JSON object of these.

port: the port of its server. family: a file for the ids of its four processes; else it has one.
deaf: each process ignores SIGTERM and prints "no"; else it ends with "goodbye". health: the
status of /health. says: its output. status: it ends immediately with this exit code.
"""

import contextlib
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def main(facts: dict) -> None:
    signal.signal(signal.SIGTERM, _refuse_to_end if facts.get("deaf") else _end)
    print(facts.get("says", ""), flush=True)
    if "status" in facts:
        sys.exit(facts["status"])
    if "family" in facts:
        _raise_family(Path(facts["family"]))
    if "port" in facts:
        _Handler.health = facts.get("health", 200)
        HTTPServer(("127.0.0.1", facts["port"]), _Handler).serve_forever(poll_interval=0.01)
    _wait()


def _refuse_to_end(*_: object) -> None:
    os.write(sys.stdout.fileno(), b"no\n")


def _end(*_: object) -> None:
    os.write(sys.stdout.fileno(), b"goodbye\n")
    sys.exit()


def _raise_family(file: Path) -> None:
    """A child, another in its own session, and a grandchild in a third one."""
    reading, writing = os.pipe()
    if not os.fork():
        _join(writing)
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)  # so that its child is an orphan
        _join(writing)
    os.close(writing)
    pids = [str(os.getpid())]
    with os.fdopen(reading) as stream:
        pids += [stream.readline().strip() for _ in range(3)]
    draft = file.with_suffix(".tmp")
    draft.write_text(" ".join(pids))
    draft.replace(file)


def _join(writing: int) -> None:
    os.write(writing, f"{os.getpid()}\n".encode())
    _wait()


def _wait() -> None:
    while True:
        signal.pause()


class _Handler(BaseHTTPRequestHandler):
    health = 200

    def do_GET(self) -> None:
        if self.path == "/environment":
            body = json.dumps(dict(os.environ)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            self.send_error(self.health) if self.health != 200 else self.send_response(200)
            self.end_headers()

    def handle_one_request(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client timed out
            super().handle_one_request()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
