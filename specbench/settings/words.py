"""Values as people type them: 0..8, 4k, 3m, 2%."""

import math
import re
import shlex
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path, PurePath
from typing import NamedTuple, TypeVar

from specbench.errors import UsageError

MAX_K = 64
MAX_CONCURRENCY = 1024
AUTO = "auto"
DTYPES = ("float32", "bfloat16", "float16", "float64")
BUILTIN, TRANSFORMERS = "builtin", "transformers"
OPENAI = "openai"  # any running server with that API: it is neither started nor exported to
# Engines that serve, each in its own process: the names of the files in engines/served/.
_ENGINE_FILES = (Path(__file__).parents[1] / "engines" / "served").glob("[!_]*.py")
SERVED = tuple(sorted(path.stem for path in _ENGINE_FILES))
ENGINES = (BUILTIN, TRANSFORMERS, *SERVED)
STARTED = tuple(name for name in SERVED if name != OPENAI)
EXPORTED = tuple(sorted((*STARTED, TRANSFORMERS)))
# Fields of requests that may be left out: the settings of a run do not depend on them.
OMITTABLE = (
    *("seed", "max_tokens", "max_completion_tokens", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "cache_salt", "return_token_ids"),
)
Choice = TypeVar("Choice", bound=str)
MAX_CONTEXT = 1024 * 1024
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
# Limits on each request, as in `vllm bench serve --goodput`, and their metrics.
REQUEST_LIMITS = {"ttft": "ttft_s", "tpot": "tpot_s", "request_latency": "request_latency_s"}
_LIMIT = re.compile(r"\s*([a-z0-9_]+)\s*=\s*([0-9]*\.?[0-9]+)\s*(us|ms|s)\s*")
_LIMIT_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class Ks(NamedTuple):
    """The fixed K to measure, none for only `auto`. `adaptive`: also one picked round by round."""

    fixed: tuple[int, ...]
    adaptive: bool


def parse_ks(text: str) -> Ks:
    """`4`, `0..8`, `1,2,4` (also mixed), `auto`, or `0..8,auto`; sorted, each once."""
    ks: set[int] = set()
    adaptive = False
    for part in text.split(","):
        if part.strip() == AUTO:
            adaptive = True
            continue
        match = re.fullmatch(r"\s*(\d{1,4})(?:\.\.(\d{1,4}))?\s*", part)
        if match is None:
            raise UsageError(
                f"-k {text!r}: expected a number, a range, a list or auto: 4, 0..8, 1,2,4,auto"
            )
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last > MAX_K:
            raise UsageError(f"-k {text!r}: K is at most {MAX_K}")
        if first > last:
            raise UsageError(f"-k {text!r}: a range ascends: {last}..{first}")
        ks |= set(range(first, last + 1))
    return Ks(tuple(sorted(ks)), adaptive)


def parse_concurrency(text: str) -> tuple[int, ...]:
    """`1` or `1,4,16`: concurrent requests."""
    if not re.fullmatch(r"\s*\d{1,4}\s*(,\s*\d{1,4}\s*)*", text):
        raise UsageError(f"--concurrency {text!r}: expected numbers such as 1 or 1,4,16,64")
    rows = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if not all(1 <= n <= MAX_CONCURRENCY for n in rows):
        raise UsageError(
            f"--concurrency {text!r}: expected 1 to {MAX_CONCURRENCY} concurrent requests"
        )
    return rows


def nearest(word: str, allowed: Collection[str]) -> str:
    """`, did you mean x?` if an allowed word is close, else empty."""
    close = get_close_matches(word, allowed, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def parse_names(option: str, text: str, allowed: Collection[str]) -> tuple[str, ...]:
    """A comma-separated choice of `allowed`, each once, in any spelling."""
    return tuple(dict.fromkeys(one_of(option, part.strip(), *allowed) for part in text.split(",")))


def workload_named(word: str, known: Collection[str]) -> str:
    """The workload that a word names, as for a run: `code` is `demo code` if there is no `code`."""
    matching = [name for name in known if name.endswith(f" {word}")]
    return matching[0] if word not in known and len(matching) == 1 else word


def spelling(word: str) -> str:
    """The word without what its spellings differ in: TensorRT-LLM and tensorrt_llm are equal."""
    return re.sub(r"[-.]", "_", word.lower())


def one_of(option: str, text: str, *allowed: Choice) -> Choice:
    """The choice that a text names, in any spelling; UsageError suggests the nearest one."""
    for choice in allowed:
        if spelling(choice) == spelling(text):
            return choice
    close = nearest(text, allowed) or ":"
    raise UsageError(f"{option} {text!r}{close} choose from {', '.join(allowed)}")


def parse_acceptance(text: str) -> tuple[float, ...] | str:
    """Synthetic acceptance: `0.7` for every position, `0.8,0.6` by position (the share of rounds
    that accept at least 1, 2 drafts), or `histogram:40,20,40`, rounds that accepted 0, 1, 2. The
    name of a file is returned as it is."""
    if PurePath(text.partition("#")[0]).suffix.lower() in (".json", ".jsonl", ".yaml", ".yml"):
        return text
    kind, colon, numbers = text.rpartition(":")
    values = _numbers(numbers)
    if not values or kind not in ("", "histogram") or (colon and not kind):
        raise UsageError(
            f"--simulate-acceptance {text!r}: expected 0.7, a list such as 0.8,0.6,0.5, "
            "histogram:40,20,40 or a .json or .yaml file"
        )
    if kind == "histogram":
        rounds = sum(values)
        if min(values) < 0 or rounds <= 0 or not math.isfinite(rounds) or len(values) < 2:
            raise UsageError(
                f"--simulate-acceptance {text!r}: expected counts of rounds with 0, 1, 2 ... "
                "accepted drafts"
            )
        # The last 0: no round accepted more than these.
        return (*(sum(values[i:]) / rounds for i in range(1, len(values))), 0.0)
    falls = all(a >= b for a, b in pairwise(values))
    if not falls or not all(0 <= value <= 1 for value in values):
        raise UsageError(
            f"--simulate-acceptance {text!r}: shares must be from 0 to 1 and must not rise: two "
            "drafts cannot be accepted more often than one"
        )
    return values


def _numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them; empty for other text."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        return ()


def parse_temperatures(text: str) -> tuple[float, ...]:
    """`0`, `0.7` or `0,1`."""
    temperatures = _numbers(text)
    if not temperatures:
        raise UsageError(f"--temperature {text!r}: expected numbers such as 0 or 0,1")
    if not all(0 <= t <= 100 for t in temperatures):
        raise UsageError(f"--temperature {text!r}: expected 0 (greedy) to 100")
    return tuple(dict.fromkeys(temperatures))


def parse_p_mins(text: str) -> tuple[float, ...]:
    """`0.6` or `0,0.6,0.8`: probabilities, each once."""
    p_mins = _numbers(text)
    if not p_mins or not all(0 <= p_min <= 1 for p_min in p_mins):
        raise UsageError(
            f"--draft-p-min {text!r}: expected probabilities from 0 (off) to 1, such as 0,0.6,0.8"
        )
    return tuple(dict.fromkeys(p_mins))


def parse_device(text: str) -> str:
    """`auto`, `cpu`, `cuda` or `cuda:1`."""
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", text) is None:
        raise UsageError(f"--device {text!r}: choose from auto, cpu, cuda, cuda:N")
    return text


def parse_context(text: str, option: str = "--prompt-tokens") -> int:
    """A single length."""
    first, *rest = parse_contexts(text, option)
    if rest:
        raise UsageError(f"{option} {text!r}: expected a single length")
    return first


def parse_contexts(text: str, option: str = "--prompt-tokens") -> tuple[int, ...]:
    """`512`, `4k` or `512,4k,32k`, in tokens (k = 1024), sorted, each once."""
    contexts: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(k?)\s*", part, re.IGNORECASE)
        if match is None:
            raise UsageError(f"{option} {text!r}: expected tokens such as 512 or 512,4k,32k")
        contexts.add(int(match[1]) * (1024 if match[2] else 1))
    if min(contexts) < 1 or max(contexts) > MAX_CONTEXT:
        raise UsageError(f"{option} {text!r}: expected 1 to {MAX_CONTEXT // 1024}k tokens")
    return tuple(sorted(contexts))


def parse_limits(text: str, names: Mapping[str, str] = REQUEST_LIMITS) -> dict[str, float]:
    """`tpot=30ms,ttft=0.5s` in seconds by metric; `names`: the metric of each name."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if match is None or match[1] not in names:
            raise UsageError(
                f"--slo {part.strip()!r}: expected NAME=TIME such as tpot=30ms or ttft=0.5s; "
                f"names are {', '.join(names)}, units {', '.join(_LIMIT_UNITS)}"
            )
        if names[match[1]] in limits:
            raise UsageError(f"--slo names {match[1]} twice; leave one of the two out")
        limits[names[match[1]]] = float(match[2]) * _LIMIT_UNITS[match[3]]
    return limits


def limits_text(limits: Mapping[str, float]) -> str:
    """The limits as they are typed, in milliseconds: `ttft=200ms,tpot=20ms`."""
    names = {metric: name for name, metric in REQUEST_LIMITS.items()}
    return ",".join(f"{names[metric]}={limit * 1e3:g}ms" for metric, limit in limits.items())


def parse_engine_args(items: list[str], option: str = "--engine-args") -> tuple[str, ...]:
    """The words of engine arguments, split as by a shell."""
    try:
        return tuple(word for item in items for word in shlex.split(item))
    except ValueError as error:
        raise UsageError(f"{option} {' '.join(items)!r}: {error}") from error


PLAIN = "default"  # the variant without more arguments, if one variant is compared with it


def parse_variants(items: list[str]) -> dict[str, tuple[str, ...]] | None:
    """Engine arguments by variant, from words such as `eager=--enforce-eager`; None without one.

    A single variant is compared with `PLAIN`.
    """
    variants: dict[str, tuple[str, ...]] = {}
    for item in items:
        name, equals, words = item.partition("=")
        if not equals or re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) is None:
            raise UsageError(
                f"--variant {item!r}: expected a name of letters and digits, =, and arguments of "
                "the engine: --variant eager='--enforce-eager'"
            )
        if name in variants:
            raise UsageError(f"--variant {name}: this name is given twice; name each differently")
        variants[name] = parse_engine_args([words], f"--variant {name}")
    if [*variants] == [PLAIN]:
        raise UsageError(
            f"--variant {PLAIN}: a single variant is compared with the plain arguments, which have "
            "this name; choose another"
        )
    return {PLAIN: (), **variants} if len(variants) == 1 else variants or None


def parse_seconds(text: str, option: str = "--time-budget") -> float:
    """Seconds of `90s`, `3m` or `1.5h`; an error for a number without a unit."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option} {text!r}: expected a time such as 90s, 3m or 1h")
    if not match[2]:
        raise UsageError(
            f"{option} {text!r} has no unit: type {option} {match[1]}m for minutes or "
            f"{option} {match[1]}s for seconds"
        )
    return float(match[1]) * _SECONDS[match[2]]


def parse_share(text: str, option: str = "--margin-of-error") -> float:
    """`2%` or `0.02`, above 0 and below 1."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < value < 1:
        raise UsageError(f"{option} {text!r}: expected a share such as 2% or 0.02")
    return value
