"""Result files of `vllm bench serve` (--save-result, --append-result, --save-detailed).

`vllm bench sweep serve` adds `run_number` and, after it, the parameters that it varied; a summary
is a list of runs, each of which is also a file (vllm/benchmarks/sweep/serve.py of 0.33).

Source: vllm/benchmarks/serve.py of 0.30 to 0.33. Acceptance is the difference of the server's
counters: they exclude rounds that drafted nothing and include draft tokens accepted past the end
of an output. The rate is a percentage.
"""

import re

from specbench.importers.imported_cell import (
    Figures,
    ImportOverrides,
    ParsedResult,
    acceptance_when_drafted,
    bench_speeds,
    requests_of,
)
from specbench.importers.result_file import JsonObject
from specbench.records import Kind
from specbench.stats.rounds import mean_length

TOOL = "vllm bench serve"

_DATE = re.compile(r"(\d{4})(\d{2})(\d{2})-(\d{2})(\d{2})(\d{2})")


def recognizes(result: JsonObject) -> bool:
    is_result = result.has("model_id", "tokenizer_id", "completed", "total_token_throughput")
    return is_result and result.values.get("run_number") != -1  # a warm-up


def read(result: JsonObject, given: ImportOverrides) -> ParsedResult:
    """K is the number of positions with an acceptance rate."""
    curve = result.numbers("spec_decode_per_position_acceptance_rates")
    prompt_tokens, duration_s = result.number("total_input_tokens"), result.number("duration")
    acceptance = _acceptance(result, given, curve)
    return ParsedResult(
        engine="vllm",
        model=result.text("model_id"),
        num_speculative_tokens=len(curve) if curve else None,
        # `max_concurrent_requests` is the observed peak, which differs between repeats.
        concurrency=result.whole("max_concurrency")
        or given.concurrency
        or result.whole("max_concurrent_requests"),
        request_rate=result.rate("request_rate"),
        measured_at=_iso(result.text("date")),
        num_completed=result.whole("completed"),
        num_failed=result.whole("failed"),
        figures={
            **bench_speeds(result, "e2el"),
            "num_failed": result.number("failed"),
            "input_tokens_per_s": prompt_tokens / duration_s
            if prompt_tokens is not None and duration_s
            else None,
            **acceptance,
        },
        requests=requests_of(result),
        parameters=_parameters(result),
        warnings=(Kind.PAST_THE_END(),) if acceptance else (),
    )


def _acceptance(
    result: JsonObject, given: ImportOverrides, curve: tuple[float, ...] | None
) -> Figures:
    names = ("num_drafts", "draft_tokens", "accepted_tokens")
    rounds, drafted, accepted = (result.whole(f"spec_decode_{name}") for name in names)
    percent = result.number("spec_decode_acceptance_rate")
    share = None if percent is None else percent / 100
    rate = accepted / drafted if drafted and accepted is not None else share
    length = (
        mean_length(accepted, rounds)
        if rounds and accepted is not None
        else result.number("spec_decode_acceptance_length")
    )
    return acceptance_when_drafted(
        given,
        rate=rate,
        length=length,
        num_rounds=rounds,
        per_position=curve,
    )


def _parameters(result: JsonObject) -> str:
    """The keys that a sweep added after its run number, with their values."""
    names = list(result.values)
    added = names[names.index("run_number") + 1 :] if "run_number" in names else []
    return ", ".join(f"{name}={result.values[name]}" for name in added)


def _iso(stamp: str | None) -> str | None:
    """`20261121-010203`, the client's local time -> ISO 8601 without a zone."""
    match = _DATE.fullmatch(stamp or "")
    if match is None:
        return None
    return "{}-{}-{}T{}:{}:{}".format(*match.groups())
