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
from specbench.importers.result_file import ResultObject, parse_digits
from specbench.metrics.streams import faulty_streams
from specbench.records import EngineCost, Kind
from specbench.settings.words import MAX_K
from specbench.stats.rounds import mean_length, rounds_counted
from specbench.words.answers import text

TOOL = "vllm bench serve"

_CURVE = "spec_decode_per_position_acceptance_rates"
_DATE = re.compile(r"(\d{4})(\d{2})(\d{2})-(\d{2})(\d{2})(\d{2})")


def recognizes(result: ResultObject) -> bool:
    is_result = result.has("model_id", "tokenizer_id", "completed", "total_token_throughput")
    return is_result and result.values.get("run_number") != -1  # a warm-up


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:
    """The facts of a result, with its K if it states one."""
    prompt_tokens, duration_s = result.number("total_input_tokens"), result.number("duration")
    acceptance = _acceptance(result, given)
    return ParsedResult(
        engine="vllm",
        model=result.text("model_id"),
        num_speculative_tokens=_stated_k(result),
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
        requests=requests_of(result, is_sampled=bool(given.temperature)),
        parameters=_parameters(result),
        warnings=(Kind.PAST_THE_END(),) if acceptance else (),
    )


def has_step_time(result: ResultObject) -> bool:
    """Whether it has a field of every benchmark's result, which no table of costs has."""
    return result.has("mean_tpot_ms")


def step_time(result: ResultObject) -> EngineCost:
    """Decode seconds over rounds: exact with the gaps of --save-detailed, else by the mean TPOT.

    Servers of other engines are named by `backend`. A result without speculation counters is K = 0.
    UsageError if the rounds or the times are unknown, or if requests failed: their gaps and their
    rounds count, their tokens do not.
    """
    if result.whole("failed"):
        result.fail("failed", "requests broke off, so the rounds are unknown; measure again")
    completed, output = result.whole("completed"), result.whole("total_output_tokens")
    tpot_s, concurrency = result.milliseconds("mean_tpot_ms"), result.whole("max_concurrency")
    if not completed or output is None or not tpot_s:
        result.fail("completed", "no request was completed, so the cost is unknown; measure again")
    if not concurrency:
        result.fail("max_concurrency", "missing; run vllm bench serve with --max-concurrency N")
    num_drafts, drafted, accepted = (count or 0 for count in _counts(result))
    after_first = output - completed
    num_rounds = rounds_counted(after_first, accepted, num_drafts)
    if num_rounds <= 0:
        result.fail(
            "total_output_tokens", "no rounds; requests need more than one output token each"
        )
    k = _stated_k(result)
    if k is None:
        k = round(drafted / num_drafts) if num_drafts else 0
    if k and not num_drafts:
        result.fail(
            "spec_decode_num_drafts",
            f"missing at K={k}, so the number of rounds is unknown; leave --disable-log-stats out "
            "when serving",
        )
    if fault := faulty_streams(requests_of(result), k):
        result.fail("itls", text(fault))
    gaps_s = result.lists("itls")
    backend = result.text("backend") or result.text("endpoint_type") or "vllm"
    is_vllm = result.has("spec_decode_num_drafts") or backend.startswith(("vllm", "openai"))
    return EngineCost(
        source=result.file_name,
        engine="vllm" if is_vllm else backend,
        num_speculative_tokens=k,
        concurrency=concurrency,
        cost=(sum(map(sum, gaps_s)) if gaps_s else tpot_s * after_first) / num_rounds,
        is_relative=False,
        mean_acceptance_length=result.number("spec_decode_acceptance_length") if k else None,
    )


def _stated_k(result: ResultObject) -> int | None:
    """From `--metadata num_speculative_tokens=3`, else the number of positions."""
    k = parse_digits(str(result.values.get("num_speculative_tokens")), MAX_K)
    if k is not None:
        return k
    return len(result.numbers(_CURVE) or ()) or None


def _counts(result: ResultObject) -> tuple[int | None, int | None, int | None]:
    """Rounds that drafted, their draft tokens, and those accepted."""
    return (
        result.whole("spec_decode_num_drafts"),
        result.whole("spec_decode_draft_tokens"),
        result.whole("spec_decode_accepted_tokens"),
    )


def _acceptance(result: ResultObject, given: ImportOverrides) -> Figures:
    rounds, drafted, accepted = _counts(result)
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
        per_position=result.numbers(_CURVE),
    )


def _parameters(result: ResultObject) -> str:
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
