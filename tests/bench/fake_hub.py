"""A hub on this machine that serves folders as models, and may require a license first."""

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tests.servers.http_server import Handler, serving_with

REVISION = "0123456789abcdef0123456789abcdef01234567"
_PIECE = 2**14


def serving(
    models: Mapping[str, Path], *, gated: frozenset[str] = frozenset(), pause_s: float = 0.0
) -> AbstractContextManager[str]:
    """The address of a hub with these folders by id; files come in pieces, with pauses."""

    class Hub(Handler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            source = next((s for s in models if f"/{s}/" in f"{path}/"), None)
            if path == "/":
                return self._send(200, b"", with_body=with_body)
            if source is None:
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            files = {f.name: f.read_bytes() for f in models[source].iterdir()}
            if "/resolve/" in path:
                if source in gated:
                    return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
                body = files.get(path.rpartition("/")[2])
                if body is None:
                    return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                headers = {"ETag": f'"{_oid(body)}"', "X-Repo-Commit": REVISION}
                return self._send(200, body, headers, with_body=with_body)
            listed = [
                {"type": "file", "path": n, "rfilename": n, "size": len(b), "oid": _oid(b)}
                for n, b in files.items()
            ]
            info = {"id": source, "sha": REVISION, "gated": source in gated, "siblings": listed}
            return self._send(200, json.dumps(listed if "/tree/" in path else info).encode())

        def _send(
            self,
            status: int,
            body: bytes,
            headers: Mapping[str, str] = {},
            *,
            with_body: bool = True,
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for start in range(0, len(body) if with_body else 0, _PIECE):
                self.wfile.write(body[start : start + _PIECE])
                time.sleep(pause_s if len(body) > _PIECE else 0)

    return serving_with(Hub)


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
