"""Versions of engines as people type them."""

import re

from specbench.errors import UsageError

Release = tuple[int, ...]


def read_release(engine: str, text: str | None, *, oldest: Release, newest: Release) -> Release:
    """`0.30`, `v0.30.1` -> (0, 30), (0, 30, 1); UsageError below `oldest`, whose flags differed.

    None is the newest. A later one is read as it is: what is known of the newest is written for it.
    """
    if text is None:
        return newest
    match = re.fullmatch(r"v?(\d{1,4}(?:\.\d{1,4}){0,3})(?:[a-z+.-].*)?", text.strip())
    if match is None:
        raise UsageError(f"--engine-version {text!r}: expected a release such as {dotted(newest)}")
    release = tuple(map(int, match[1].split(".")))
    if release < oldest:
        raise UsageError(
            f"--engine-version {text!r}: {engine} before {dotted(oldest)} took other flags; "
            f"{dotted(oldest)} to {dotted(newest)} are known"
        )
    return release


def dotted(release: Release) -> str:
    """(0, 30) -> `0.30`."""
    return ".".join(map(str, release))


def told_apart(release: Release, newest: Release) -> list[str]:
    """What to say of a release that is newer than all that are known."""
    if release[: len(newest)] <= newest:
        return []
    return [f"{dotted(release)} is newer than {dotted(newest)}, for which this is written"]
