"""Round costs out of result files of `vllm bench serve`, one file or line for each K.

The file has no seconds of a round, but a round emits one token more than it accepts: with T
output tokens after the first ones and A accepted drafts there were T - A rounds.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NoReturn

from specbench.errors import UsageError
from specbench.json_text import parse_json
from specbench.records import EngineCost

_MARK = "mean_tpot_ms"  # every result has it, and no table of costs


def read_results(text: str, source: str) -> list[EngineCost] | None:
    """Costs of a JSON object, or of one per line; None for other text. UsageError if one is
    missing."""
    found = _objects(text)
    if not found or not all(_MARK in one for one in found.values()):
        return None
    return [_cost(one, source, line) for line, one in found.items()]


def _objects(text: str) -> dict[int, Mapping[str, Any]]:
    """JSON objects by the line they begin on; none where something else is in the text."""
    try:
        whole = parse_json(text)
    except ValueError:
        lines = {i: line for i, line in enumerate(text.splitlines(), start=1) if line.strip()}
        try:
            parsed = {i: parse_json(line) for i, line in lines.items()}
        except ValueError:
            return {}
        return parsed if all(isinstance(one, dict) for one in parsed.values()) else {}
    return {1: whole} if isinstance(whole, dict) else {}


def _cost(result: Mapping[str, Any], source: str, line: int) -> EngineCost:
    def fail(reason: str) -> NoReturn:
        raise UsageError(f"{source}:{line}: {reason}")

    def number(name: str) -> float | None:
        value = result.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
            fail(f"{name}: a number is needed, not {str(value)[:40]!r}")
        return float(value)

    completed, output = number("completed"), number("total_output_tokens")
    tpot_ms, rows = number(_MARK), number("max_concurrency")
    if not completed or output is None or not tpot_ms:
        fail("no request was completed, so it tells no cost; measure again")
    if rows is None or rows < 1:
        fail("max_concurrency is missing; run vllm bench serve with --max-concurrency N")
    after_first = output - completed
    accepted = number("spec_decode_accepted_tokens") or 0.0
    num_drafts = number("spec_decode_num_drafts") or 0.0
    # What a round accepts beyond the last token is counted by the server, and not in the output.
    num_rounds = max(after_first - accepted, num_drafts)
    if num_rounds <= 0:
        fail("its counts give no rounds; requests need more than one output token")
    k = _k(result, number("spec_decode_draft_tokens") or 0.0, num_drafts)
    if k and not num_drafts:
        fail(
            f"K = {k} without spec_decode_num_drafts: how many rounds there were is not known; "
            "leave --disable-log-stats out when serving"
        )
    return EngineCost(
        source=source,
        engine=_engine(result),
        num_speculative_tokens=k,
        concurrency=int(rows),
        cost=_decode_s(result, tpot_ms, after_first, fail) / num_rounds,
        is_relative=False,
        mean_acceptance_length=number("spec_decode_acceptance_length") if k else None,
    )


def _engine(result: Mapping[str, Any]) -> str:
    """vLLM, whose own tool and counters these are, unless the file names another server."""
    named = str(result.get("backend") or result.get("endpoint_type") or "vllm")
    is_vllm = "spec_decode_num_drafts" in result or named.startswith(("vllm", "openai"))
    return "vllm" if is_vllm else named


def _k(result: Mapping[str, Any], num_draft_tokens: float, num_drafts: float) -> int:
    """As `--metadata num_speculative_tokens=3` says, else a position each, else the mean."""
    said = result.get("num_speculative_tokens")
    if said is not None and str(said).isdigit():
        return int(said)
    positions = result.get("spec_decode_per_position_acceptance_rates")
    if isinstance(positions, list) and positions:
        return len(positions)
    return round(num_draft_tokens / num_drafts) if num_drafts else 0


def _decode_s(
    result: Mapping[str, Any],
    tpot_ms: float,
    after_first: float,
    fail: Callable[[str], NoReturn],
) -> float:
    """Seconds from first tokens to last ones: exact where the file has details."""
    gaps = result.get("itls")
    if isinstance(gaps, list) and gaps and all(isinstance(one, list) for one in gaps):
        spent = [gap for one in gaps for gap in one]
        if not all(type(gap) in (int, float) and 0 <= gap < inf for gap in spent):
            fail("itls: lists of seconds are needed")
        return float(sum(spent))
    return tpot_ms / 1000 * after_first
