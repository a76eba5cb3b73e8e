"""Reports of GuideLLM (`benchmarks.json`): a report has a benchmark for each strategy.

Sources: guidellm/schemas/request_stats.py and benchmark/schemas/metrics.py of 0.7 and 0.8. Its
inter-token latency is our time per output token: (last - first) / (n - 1), weighted by tokens. Its
time per output token includes the first token; we have no such metric.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from specbench.importers.imported_cell import (
    ImportOverrides,
    ParsedResult,
    latencies,
    prompt_names,
    request_of,
)
from specbench.importers.result_file import ResultObject
from specbench.records import RequestRecord

TOOL = "guidellm"

_LATENCIES = {
    "ttft_s": "time_to_first_token_ms",
    "tpot_s": "inter_token_latency_ms",
    "request_latency_s": "request_latency",
}
# Rates with the requests that they count, and others for a report without them: only finished
# requests are served, but tokens of a request that was cut off were decoded.
_RATES = {
    "requests_per_s": ("requests_per_second", ("successful", "total")),
    "input_tokens_per_s": ("prompt_tokens_per_second", ("successful", "total")),
    "aggregate_tokens_per_s": ("output_tokens_per_second", ("total", "successful")),
}


def recognizes(result: ResultObject) -> bool:
    about = result.values.get("metadata")
    return isinstance(about, dict) and "guidellm_version" in about and result.has("benchmarks")


def split(result: ResultObject) -> Iterator[ResultObject]:
    """A report for each benchmark of the report."""
    for part in result.sections("benchmarks") or result.fail("benchmarks", "is empty"):
        yield replace(result, values={**result.values, "benchmarks": [part.values]})


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:
    """The strategy has the load; the body of a request has the model and the temperature."""
    benchmark = result.sections("benchmarks")[0]
    metrics = benchmark.section("metrics") or benchmark.fail("metrics", "is missing")
    strategy, totals = benchmark.inner("config", "strategy"), metrics.inner("request_totals")
    body, kind = _body(benchmark), strategy.text("type_")
    completed, failed = totals.whole("successful"), totals.whole("errored")
    started = benchmark.number("start_time")
    concurrency = strategy.whole("streams") or strategy.whole("max_concurrency")
    peak = _distribution(metrics, "request_concurrency", "total").number("max")
    return ParsedResult(
        engine="openai",
        model=body.text("model") or benchmark.inner("config", "backend").text("model"),
        # The observed peak differs between repeats, so a given number takes precedence over it.
        concurrency=(1 if kind == "synchronous" else concurrency)
        or given.concurrency
        or (int(peak) if peak else None),
        request_rate=strategy.rate("rate"),
        temperature=body.number("temperature"),
        tool_version=result.inner("metadata").text("guidellm_version"),
        measured_at=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds")
        if started is not None and started < 1e11
        else None,
        num_completed=completed,
        num_failed=failed,
        figures={
            **{name: _rate(metrics, *rate) for name, rate in _RATES.items()},
            "num_output_tokens": _distribution(metrics, "output_token_count", "successful").number(
                "total_sum"
            ),
            **latencies(lambda name, percent: _seconds(metrics, name, percent), **_LATENCIES),
        },
        requests=_requests(benchmark, completed),
    )


def _distribution(metrics: ResultObject, name: str, status: str) -> ResultObject:
    """The statistics of a distribution; empty if nothing was counted, for which it has zeros."""
    stated = metrics.inner(name, status)
    return replace(stated, values={}) if stated.number("count") == 0 else stated


def _rate(metrics: ResultObject, name: str, statuses: Sequence[str]) -> float | None:
    means = (_distribution(metrics, name, status).number("mean") for status in statuses)
    return next((mean for mean in means if mean is not None), None)


def _seconds(metrics: ResultObject, name: str, percent: int) -> float | None:
    """The median or a percentile over the requests that succeeded."""
    stated, key = _distribution(metrics, name, "successful"), "median"
    if percent != 50:
        stated, key = stated.inner("percentiles"), f"p{percent}"
    return stated.milliseconds(key) if name.endswith("_ms") else stated.number(key)


def _body(benchmark: ResultObject) -> ResultObject:
    """The body of a request; if no request is stored, the part of it that options added."""
    for request in benchmark.inner("requests").sections("successful")[:1]:
        try:
            values = json.loads(request.text("request_args") or "")
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            return replace(request, values=values).inner("body")
    return benchmark.inner("config", "backend", "extras", "body")


def _requests(benchmark: ResultObject, completed: int | None) -> tuple[RequestRecord, ...]:
    """The requests in the order they were sent; empty if the file has only a sample of them."""
    stored = benchmark.inner("requests").sections("successful")
    if len(stored) != completed:
        return ()
    records: list[RequestRecord] = []
    by_start = sorted(stored, key=lambda request: request.number("request_start_time") or 0.0)
    prompts = prompt_names(
        str(request.values.get("request_args") or i) for i, request in enumerate(by_start)
    )
    for i, request in enumerate(by_start):
        tokens, ttft = request.number("output_tokens"), request.number("time_to_first_token_ms")
        gap = request.number("inter_token_latency_ms") or 0.0
        records.append(
            request_of(
                prompts[i],
                i,
                num_prompt_tokens=request.number("prompt_tokens"),
                num_tokens=tokens,
                ttft_s=None if ttft is None else ttft / 1e3,
                total_s=request.number("request_latency")
                if ttft is None
                else (ttft + gap * ((tokens or 1) - 1)) / 1e3,
            )
        )
    return tuple(records)
