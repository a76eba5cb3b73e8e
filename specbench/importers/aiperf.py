"""`profile_export_aiperf.json` of NVIDIA's aiperf, schema 1.x, and the files written with it.

Sources: docs/reference/json-export-schema.md and metrics-reference.md of aiperf. Each metric states
its unit. Its inter-token latency is our time per output token: (last - first) / (n - 1) of a
request. Its acceptance sums the counts that vLLM reports per request.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

from specbench.errors import UsageError
from specbench.importers.imported_cell import (
    Figures,
    ImportOverrides,
    ParsedResult,
    acceptance_when_drafted,
    latencies,
    request_of,
)
from specbench.importers.result_file import ResultObject, parse_digits
from specbench.records import Kind, RequestRecord
from specbench.settings.words import MAX_K
from specbench.stats.rounds import mean_length, num_reaching

TOOL = "aiperf"

_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SHARES = {"%": 0.01, "percent": 0.01, "ratio": 1.0}
_RATES = dict.fromkeys(("tokens/sec", "tokens/s", "tokens/sec/user", "tokens/s/user"), 1.0)
_COUNTS = dict.fromkeys(("tokens", "count", "requests", "steps", "ratio"), 1.0)

# Our metric -> aiperf's tag, its statistic, and the units it may have.
_FIGURES: Mapping[str, tuple[str, str, Mapping[str, float]]] = {
    "requests_per_s": ("request_throughput", "avg", {"requests/sec": 1.0}),
    "input_tokens_per_s": ("input_token_throughput", "avg", _RATES),
    "aggregate_tokens_per_s": ("output_token_throughput", "avg", _RATES),
    "user_tokens_per_s": ("output_token_throughput_per_user", "p50", _RATES),
    "num_output_tokens": ("total_output_tokens", "avg", _COUNTS),
    "num_failed": ("error_request_count", "avg", _COUNTS),
    "mean_acceptance_length_per_request": ("spec_decode_acceptance_length", "avg", _COUNTS),
}

# Keys under which `join` adds the lines of requests and the server's counters; names of counters.
_REQUESTS, _COUNTERS = "profile_export", "server_metrics"
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFTED = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_HISTOGRAM = "pooled_spec_decode_acceptance_histogram"


def recognizes(result: ResultObject) -> bool:
    return (
        result.has("input_config", "request_latency")
        or result.has("aiperf_version")
        or _is_request(result)
    )


def join(results: Sequence[ResultObject]) -> list[ResultObject]:
    """Every result, with the requests of its folder and the server metrics of its benchmark.

    UsageError if one of these has no result.
    """
    metrics = [r for r in results if r.has("aiperf_version", "metrics", "summary")]
    lines = [r for r in results if _is_request(r)]
    joined = [r for r in results if r not in metrics and not _is_request(r)]
    for folder in dict.fromkeys(Path(line.place).parent for line in lines):
        part = {_REQUESTS: [line.values for line in lines if Path(line.place).parent == folder]}
        found_in = [
            i for i, r in enumerate(joined) if recognizes(r) and Path(r.place).parent == folder
        ]
        if len(found_in) != 1:
            raise UsageError(
                f"{folder}: requests of an aiperf benchmark need one profile_export_aiperf.json "
                f"in the same folder, and {len(found_in)} are given; import the folder"
            )
        i = found_in[0]
        joined[i] = replace(joined[i], values={**joined[i].values, **part})
    for server in metrics:
        part, benchmark = {_COUNTERS: server.values["metrics"]}, server.text("benchmark_id")
        matching = [i for i, r in enumerate(joined) if r.values.get("benchmark_id") == benchmark]
        if benchmark is None or not matching:
            raise UsageError(
                f"{server.place}: server metrics of an aiperf benchmark whose "
                "profile_export_aiperf.json is not given; import both files, or their folder"
            )
        for i in matching:
            joined[i] = replace(joined[i], values={**joined[i].values, **part})
    return joined


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:
    """K is only in the server metrics; the model and the load are in the command line."""
    options = _options(result)
    by_name = dict(options)  # the last value of a repeated option
    finished = _figure(result, "request_count", "avg", _COUNTS)
    failed = _figure(result, "error_request_count", "avg", _COUNTS)
    k = _num_speculative_tokens(result)
    acceptance = _acceptance(result, given, given.num_speculative_tokens if k is None else k)
    return ParsedResult(
        engine="openai",
        model=by_name.get("--model") or by_name.get("-m"),
        concurrency=parse_digits(by_name.get("--concurrency") or ""),
        num_speculative_tokens=k,
        # Without a rate, or with an infinite one, a request is sent when another ends.
        request_rate=max(_finite(by_name.get("--request-rate")) or 0.0, 0.0) or None,
        temperature=_temperature(options),
        tool_version=result.text("aiperf_version"),
        measured_at=result.text("start_time"),
        num_completed=None if finished is None else int(finished),
        num_failed=None if failed is None else int(failed),
        figures={
            **{name: _figure(result, *source) for name, source in _FIGURES.items()},
            **latencies(
                lambda tag, percent: _figure(result, tag, f"p{percent}", _SECONDS),
                ttft_s="time_to_first_token",
                tpot_s="inter_token_latency",
                request_latency_s="request_latency",
                inter_chunk_latency_s="inter_chunk_latency",
            ),
            **acceptance,
        },
        requests=tuple(_requests(result)),
        warnings=(
            *([Kind.CANCELLED()] if result.values.get("was_cancelled") is True else []),
            *([Kind.PAST_THE_END()] if acceptance else []),
        ),
    )


def _is_request(result: ResultObject) -> bool:
    return result.has("metadata", "metrics")


def _requests(result: ResultObject) -> Iterator[RequestRecord]:
    """The requests in the order they were sent, without those of the warm-up."""
    lines = []
    for line in result.sections(_REQUESTS):
        about = line.section("metadata") or line.fail("metadata", "is missing")
        if about.text("benchmark_phase") in (None, "profiling"):
            lines.append((about.number("request_start_ns") or 0.0, about, line.inner("metrics")))
    for index, (_, about, metrics) in enumerate(sorted(lines, key=lambda line: line[0])):
        prompt, latency, first, tokens = (
            _figure(metrics, tag, "value", units)
            for tag, units in (
                ("input_sequence_length", _COUNTS),
                ("request_latency", _SECONDS),
                ("time_to_first_token", _SECONDS),
                ("output_sequence_length", _COUNTS),
            )
        )
        yield request_of(
            str(about.text("conversation_id")),
            index,
            turn=about.whole("turn_index") or 0,
            num_prompt_tokens=prompt,
            num_tokens=tokens,
            ttft_s=first,
            total_s=latency,
        )


def _num_speculative_tokens(result: ResultObject) -> int | None:
    """K, from vLLM's counters per position; 0 if it has none, None without vLLM's counters."""
    counters = result.inner(_COUNTERS)
    if not any(name.startswith("vllm:") for name in counters.values):
        return None
    return len(_totals(counters, f"{_ACCEPTED}_per_pos", "position"))


def _acceptance(result: ResultObject, given: ImportOverrides, k: int | None) -> Figures:
    """Acceptance from the counts of requests, or else from the server's counters."""
    steps = _figure(result, "total_spec_decode_steps", "avg", _COUNTS)
    counters = result.section(_COUNTERS)
    if steps or counters is None:
        return acceptance_when_drafted(
            given,
            rate=_figure(result, "spec_decode_overall_draft_acceptance_rate", "avg", _SHARES),
            length=_figure(result, "spec_decode_token_weighted_acceptance_length", "avg", _COUNTS),
            num_rounds=steps,
            per_position=_per_position(result, k),
        )
    rounds, drafted, accepted = (
        sum(_totals(counters, name, "engine").values()) for name in (_DRAFTS, _DRAFTED, _ACCEPTED)
    )
    if not rounds:
        return {}
    at = _totals(counters, f"{_ACCEPTED}_per_pos", "position")
    return acceptance_when_drafted(
        given,
        rate=accepted / drafted if drafted else None,
        length=mean_length(accepted, rounds),
        num_rounds=rounds,
        per_position=tuple(at[position] / rounds for position in sorted(at, key=int)),
    )


def _totals(counters: ResultObject, name: str, label: str) -> dict[str, float]:
    """A counter's increase over the profiling phase, by one of its labels; {} without it."""
    totals: dict[str, float] = {}
    for series in counters.inner(name).sections("series"):
        value = series.inner("labels").text(label) or "0"
        if parse_digits(value) is None:
            series.fail(f"labels.{label}", f"expected a small number, not {value[:40]!r}")
        totals[value] = totals.get(value, 0.0) + (series.inner("stats").number("total") or 0.0)
    return totals


def _per_position(result: ResultObject, k: int | None) -> tuple[float, ...] | None:
    """Shares of the rounds that accepted at least 1, 2 .. K tokens, from the pooled histogram."""
    most = MAX_K if k is None else k
    by_accepted = result.inner(_HISTOGRAM).histogram(
        range(most + 1), f"a number of accepted tokens from 0 to {most}"
    )
    rounds, *reached = num_reaching(by_accepted, k or 0)
    return tuple(n / rounds for n in reached) if rounds else None


def _figure(
    result: ResultObject, tag: str, statistic: str, units: Mapping[str, float]
) -> float | None:
    metric = result.inner(tag)
    value = metric.number(statistic)
    if value is None:
        return None
    unit = metric.text("unit") or ""
    if unit.lower() not in units:
        metric.fail("unit", f"{unit!r} is unknown; allowed: {', '.join(units)}")
    return value * units[unit.lower()]


def _options(result: ResultObject) -> list[tuple[str, str]]:
    """The options of its command line with their values; empty if the file has no command line."""
    holders = (result.inner("run_info"), result.inner("input_config"))
    line = next(filter(None, (holder.text("cli_command") for holder in holders)), "")
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote: the line was cut
        words = []
    options, name = [], ""
    for word in words:
        equals, value = "=", word
        if word.startswith("-"):
            name, equals, value = word.partition("=")
        if equals:
            options.append((name, value))
    return options


def _finite(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if isfinite(value) else None


def _temperature(options: Sequence[tuple[str, str]]) -> float | None:
    """The temperature among the extra inputs: a repeatable option with NAME:VALUE pairs."""
    extra = ",".join(value for option, value in options if option == "--extra-inputs")
    pairs = (pair.partition(":") for pair in extra.split(","))
    return _finite({name.strip(): value for name, _, value in pairs}.get("temperature"))
