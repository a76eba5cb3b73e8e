"""Where a server is, and the key it is asked with."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

from specbench.errors import UsageError

KEY = "SPECBENCH_API_KEY"  # its value is in no record, log, report or list of processes


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A server's place. No secret is in it: addresses are stored, and seen in process lists."""

    root: str
    k: int | None = None  # what `#k=0` says that it runs

    @property
    def api(self) -> str:
        return f"{self.root}/v1"

    @classmethod
    def at(cls, url: str, option: str) -> "Address":
        """UsageError, which names the option, for what is no address of a server."""
        parts = urlsplit(url)
        try:
            has_place = bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            has_place = False
        _, at, place = parts.netloc.rpartition("@")
        path = parts.path.rstrip("/").removesuffix("/v1")
        shown = urlunsplit(SplitResult(parts.scheme, place, path, "", ""))
        if at:
            raise UsageError(
                f"{option} {shown}: an address with a user or password in it would be stored; "
                f"leave it out and give a key as {KEY} in the environment"
            )
        if parts.scheme not in ("http", "https") or not has_place:
            raise UsageError(f"{option} {shown}: expected an address such as http://localhost:8000")
        said = parse_qs(parts.fragment).get("k", [""])[0]
        if parts.fragment and not said.isdigit():
            raise UsageError(f"{option} {shown}: after # only the K it runs is read, such as #k=0")
        return cls(root=shown, k=int(said) if said else None)

    def key(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The API key for this server: that of its host where there is one, else the general.

        `SPECBENCH_API_KEY_MY_HOST_ORG` is for my-host.org, at any port.
        """
        host = urlsplit(self.root).hostname or ""
        own = "".join(c if c.isalnum() else "_" for c in host).upper()
        return environment.get(f"{KEY}_{own}") or environment.get(KEY) or None
