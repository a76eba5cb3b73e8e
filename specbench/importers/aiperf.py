"""`profile_export_aiperf.json` of NVIDIA's aiperf, schema 1.x.

Facts: docs/reference/json-export-schema.md and metrics-reference.md of aiperf. A metric states
its unit, which alone says how to read its value. Its inter-token latency is our time per output
token: (last - first) / (n - 1) of a request. Its acceptance sums up what vLLM says of each request.
"""

import shlex
from collections.abc import Mapping, Sequence
from math import inf

from specbench.importers.imported_cell import PAST_THE_END, Figures, Reading, Told, known
from specbench.importers.result_file import Result

TOOL = "aiperf"

_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SHARES = {"%": 0.01, "percent": 0.01, "ratio": 1.0}
_RATES = dict.fromkeys(("tokens/sec", "tokens/s", "tokens/sec/user", "tokens/s/user"), 1.0)
_COUNTS = dict.fromkeys(("tokens", "count", "requests", "steps", "ratio"), 1.0)

# Our metric -> aiperf's tag, which of its statistics, and the units it may be in.
_FIGURES: Mapping[str, tuple[str, str, Mapping[str, float]]] = {
    "ttft_s": ("time_to_first_token", "p50", _SECONDS),
    "ttft_s_p95": ("time_to_first_token", "p95", _SECONDS),
    "tpot_s": ("inter_token_latency", "p50", _SECONDS),
    "tpot_s_p95": ("inter_token_latency", "p95", _SECONDS),
    "aggregate_tokens_per_s": ("output_token_throughput", "avg", _RATES),
    "user_tokens_per_s": ("output_token_throughput_per_user", "p50", _RATES),
    "num_output_tokens": ("total_output_tokens", "avg", _COUNTS),
    "num_failed": ("error_request_count", "avg", _COUNTS),
    "num_rounds": ("total_spec_decode_steps", "avg", _COUNTS),
    "mean_acceptance_length": ("spec_decode_token_weighted_acceptance_length", "avg", _COUNTS),
    "mean_acceptance_length_per_request": ("spec_decode_acceptance_length", "avg", _COUNTS),
    "acceptance_rate": ("spec_decode_overall_draft_acceptance_rate", "avg", _SHARES),
}


def recognises(result: Result) -> bool:
    return result.has("input_config", "request_latency") or result.has("aiperf_version")


def read(result: Result, told: Told) -> Reading:  # noqa: ARG001
    """K is never in the file; the model and the load are, in its command line."""
    words = _words(result)
    asked = _options(words)
    finished = _figure(result, "request_count", "avg", _COUNTS)
    failed = _figure(result, "error_request_count", "avg", _COUNTS)
    figures = _figures(result)
    return Reading(
        engine="openai",
        model=asked.get("--model") or asked.get("-m"),
        concurrency=_number(asked.get("--concurrency")),
        request_rate=_rate(asked.get("--request-rate")),
        temperature=_temperature(words),
        tool_version=result.text("aiperf_version"),
        measured_at=result.text("start_time"),
        num_requests=None if finished is None else int(finished + (failed or 0)),
        num_failed=None if failed is None else int(failed),
        figures=figures,
        warnings=(
            *(["the run was cancelled"] if result.values.get("was_cancelled") is True else []),
            *([PAST_THE_END] if "mean_acceptance_length" in figures else []),
        ),
    )


def _figures(result: Result) -> Figures:
    return known(
        {name: _figure(result, tag, stat, units) for name, (tag, stat, units) in _FIGURES.items()}
    )


def _figure(result: Result, tag: str, statistic: str, units: Mapping[str, float]) -> float | None:
    metric = result.section(tag)
    value = metric.number(statistic) if metric else None
    if metric is None or value is None:
        return None
    unit = metric.text("unit") or ""
    if unit.lower() not in units:
        metric.fail("unit", f"{unit!r} is unknown; allowed: {', '.join(units)}")
    return value * units[unit.lower()]


def _words(result: Result) -> list[str]:
    """Its command line; empty where the file has none."""
    holders = (result.section("run_info"), result.section("input_config"))
    lines = [line for holder in holders if holder and (line := holder.text("cli_command"))]
    try:
        return shlex.split(lines[0]) if lines else []
    except ValueError:  # an open quote: it was cut
        return []


def _options(words: Sequence[str]) -> dict[str, str]:
    """The value of each option, of one given several times the last."""
    options = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            options[name] = value if equals else following
    return options


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and 0 < len(text) < 7 else None


def _rate(text: str | None) -> float | None:
    """Arrivals a second; None where requests come as soon as others end."""
    try:
        rate = float(text) if text else 0.0
    except ValueError:
        return None
    return rate if 0 < rate < inf else None


def _temperature(words: Sequence[str]) -> float | None:
    """Read from all extra inputs: the option may repeat, with several NAME:VALUE each."""
    found, is_extra = None, False
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            is_extra = name == "--extra-inputs"
        told = (value if equals else "") if name.startswith("-") else word
        for pair in told.split(",") if is_extra else ():
            name, _, value = pair.partition(":")
            found = value if name.strip() == "temperature" else found
    try:
        return None if found is None else float(found)
    except ValueError:
        return None
