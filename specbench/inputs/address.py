"""The address of a server, and the API key for its requests."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

from specbench.errors import UsageError

KEY = "SPECBENCH_API_KEY"  # its value is in no record, log, report or list of processes
EXAMPLE = "http://localhost:8000"
# Characters that a header may contain and that no quoting escapes. If a server's message repeated
# the key with escapes, the key would not be recognized and removed.
_SENDABLE = re.compile(r"""[!#-&(-\[\]-~]+""")
# The path before the API's, the version of the API, and the endpoint of a request.
_PATH = re.compile(r"(.*?)(/v\d+)?(/chat/completions|/completions)?/*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """The address of a server, without secrets, since it is stored and visible in process lists."""

    root: str  # the URL without the version of its API
    k: int | None = None  # the K that the server runs, as in `#k=0`
    version: str = "/v1"  # as in its path; empty if an endpoint came without one

    @property
    def api(self) -> str:
        return f"{self.root}{self.version}"

    @classmethod
    def at(cls, url: str, option: str) -> "Address":
        """The address in the URL given for `option`; UsageError if it is not a server's."""
        try:
            parts = urlsplit(url)
        except ValueError:  # its text may repeat a password of the URL
            raise UsageError(f"{option}: expected an address such as {EXAMPLE}") from None
        try:
            has_host = bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            has_host = False
        _, at_sign, host_and_port = parts.netloc.rpartition("@")
        path = _PATH.fullmatch(parts.path)
        assert path is not None, "it matches every path"
        base, version, endpoint = path.groups()
        root = urlunsplit(SplitResult(parts.scheme, host_and_port, base, "", ""))
        if at_sign:
            raise UsageError(
                f"{option} {root}: an address with a user or password in it would be stored; "
                f"leave it out and give a key as {KEY} in the environment"
            )
        if parts.query:
            raise UsageError(
                f"{option} {root!r}: leave out what follows the ?, which would be stored; set a "
                f"key as {KEY} in the environment"
            )
        if parts.scheme not in ("http", "https") or not has_host:
            raise UsageError(f"{option} {root}: expected an address such as {EXAMPLE}")
        k = parse_qs(parts.fragment).get("k", [""])[0]
        if parts.fragment and not k.isdecimal():
            raise UsageError(f"{option} {root!r}: after # expected the server's K, such as #k=0")
        version = version or ("" if endpoint else "/v1")
        return cls(root=root, k=int(k) if k else None, version=version)

    def key(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The API key for this server: the one set for its host, or else the general one.

        `SPECBENCH_API_KEY_MY_HOST_ORG` is for my-host.org, at any port. UsageError for a key that
        cannot be sent.
        """
        host = urlsplit(self.root).hostname or ""
        key_of_host = f"{KEY}_" + "".join(c if c.isalnum() else "_" for c in host).upper()
        for name in (key_of_host, KEY):
            key = environment.get(name, "").strip()
            if key and not _SENDABLE.fullmatch(key):
                raise UsageError(
                    f"{name} contains a character that no key has: a space, a quote, a "
                    "backslash or one beyond ASCII; set it again"
                )
            if key:
                return key
        return None
