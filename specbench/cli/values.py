"""Values as people type them: 0..8, 3m, 2%."""

import re

from specbench.errors import UsageError

MAX_K = 64
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_ks(text: str) -> tuple[int, ...]:
    """`4`, `0..8` or `1,2,4` (also mixed), sorted, each once."""
    ks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\.\.(\d{1,4}))?\s*", part)
        if match is None:
            raise UsageError(f"-k {text!r}: expected a number, a range or a list: 4, 0..8, 1,2,4")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if first > last or last > MAX_K:
            raise UsageError(f"-k {text!r}: K rises from 0 to {MAX_K} at most")
        ks |= set(range(first, last + 1))
    return tuple(sorted(ks))


def parse_temperatures(text: str) -> tuple[float, ...]:
    """`0`, `0.7` or `0,1`."""
    try:
        temperatures = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--temperature {text!r}: expected numbers such as 0 or 0,1") from None
    if not all(0 <= t <= 100 for t in temperatures):
        raise UsageError(f"--temperature {text!r}: 0 (greedy) to 100 is allowed")
    return tuple(dict.fromkeys(temperatures))


def parse_seconds(text: str) -> float:
    """`90s`, `3m`, `1.5h`, or seconds without a unit."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--budget {text!r}: expected a time such as 90s, 3m or 1h")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def parse_precision(text: str) -> float:
    """`2%` or `0.02`: half the width of an interval, relative to its estimate."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < value < 1:
        raise UsageError(f"--precision {text!r}: expected a share such as 2% or 0.02")
    return value
