"""A result as a cell: what the file says, completed by what the user told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from specbench.errors import UsageError
from specbench.importers.result_file import JsonObject
from specbench.methods import METHODS
from specbench.records import (
    CellKey,
    Condition,
    Draft,
    Fixed,
    ImportedRecord,
    Request,
    RequestRecord,
    Result,
)

UNKNOWN = "unknown"  # a name that neither the file nor the user gives
N = TypeVar("N", int, float)
Figures = Mapping[str, float | tuple[float, ...] | None]

# The convention of vLLM's counters, and so of the tools that read them: metrics/acceptance.py.
PAST_THE_END = (
    "acceptance is as vLLM counts it, with drafts accepted past the end of an answer: at least "
    "what specbench measures for the same texts"
)

NO_ACCEPTANCE = (
    "no acceptance in the file: check that its server speculated; for aiperf import its "
    "server_metrics_export.json as well"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOverrides:
    """What the user says about the files; None and "": nothing."""

    pairing: str = ""  # target/drafter
    method: str = ""
    workload: str = ""
    dtype: str = ""
    num_speculative_tokens: int | None = None
    concurrency: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedResult:
    """What one result says, in our words and units; None: it does not."""

    engine: str
    model: str | None = None
    workload: str | None = None
    num_speculative_tokens: int | None = None  # 0: it did not speculate
    concurrency: int | None = None
    request_rate: float | None = None
    temperature: float | None = None
    tool_version: str | None = None
    measured_at: str | None = None
    num_requests: int | None = None
    num_failed: int | None = None
    figures: Figures = field(default_factory=dict)
    requests: tuple[RequestRecord, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The model without its owner or folder."""
        return (self.model or UNKNOWN).rstrip("/").rsplit("/", 1)[-1]


class Format(Protocol):
    """A file of this room."""

    TOOL: str

    def recognises(self, result: JsonObject) -> bool:
        """Whether the result is of this tool."""
        ...

    def read(self, result: JsonObject, told: ImportOverrides) -> ParsedResult:
        """What it says; UsageError for a value that cannot be."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCell:
    """A cell of an imported run."""

    key: CellKey
    record: ImportedRecord


def to_cell(
    tool: str, reading: ParsedResult, result: JsonObject, told: ImportOverrides
) -> ImportedCell:
    """The cell of a result; UsageError names what neither the file nor the user says.

    K of the file goes before the one told. A file that does not say whether its server
    speculated needs the one told, and at K = 0 is a baseline, whatever pairing was told.
    """
    name = result.file_name
    wanted = f"{name}#k=4, or {name}#k=0 for a server without speculation"
    k = _first(reading.num_speculative_tokens, told.num_speculative_tokens, result, "K", wanted)
    temperature = _first(
        reading.temperature, told.temperature, result, "the temperature", "--temperature 0"
    )
    concurrency = _first(
        reading.concurrency,
        told.concurrency,
        result,
        "how many requests ran at once",
        "--concurrency 8",
    )
    told_target, _, told_drafter = told.pairing.partition("/")
    target = told_target or reading.target
    key = CellKey(
        condition=Condition(
            target=target,
            workload=told.workload or reading.workload or UNKNOWN,
            temperature=temperature,
            concurrency=concurrency,
            request_rate=reading.request_rate,
            dtype=told.dtype or UNKNOWN,
            engine=reading.engine,
        ),
        draft=Draft(drafter=told_drafter or UNKNOWN, method=told.method or UNKNOWN, length=Fixed(k))
        if k
        else Draft.none,
    )
    figures = _known(reading.figures)
    has_acceptance = any("accept" in name for name in figures)
    return ImportedCell(
        key=key,
        record=ImportedRecord(
            cell_id=key.id,
            tool=tool,
            tool_version=reading.tool_version,
            file=result.file_name,
            file_sha256=result.sha256,
            measured_at=reading.measured_at,
            num_requests=reading.num_requests,
            num_failed=reading.num_failed,
            figures=figures,
            requests=tuple(replace(one, cell_id=key.id) for one in reading.requests),
            warnings=(*reading.warnings, *([NO_ACCEPTANCE] if k and not has_acceptance else [])),
        ),
    )


def latencies(percentile: Callable[[str, int], float | None], **names: str) -> Figures:
    """Medians and percentiles of our metrics, by the tool's name of each."""
    return {
        name if percent == 50 else f"{name}_p{percent}": percentile(theirs, percent)
        for name, theirs in names.items()
        for percent in (50, 90, 95, 99)
    }


def request_of(
    prompt: str,
    place: int,
    *,
    num_prompt_tokens: float | None,
    num_tokens: float | None,
    ttft_s: float | None,
    total_s: float | None,
) -> RequestRecord:
    """The record of the request sent at `place`; without a token it failed."""
    result = Result.failed("it has no output token in the file")
    if num_tokens and ttft_s is not None and total_s is not None:
        result = replace(
            result,
            finish_reason="eos",
            error=None,
            ttft_s=ttft_s,
            decode_s=total_s - ttft_s,
            total_s=total_s,
            num_tokens=int(num_tokens),
        )
    request = Request(prompt_id=prompt, repeat=place, max_new_tokens=0)
    return RequestRecord.of("", request, result, num_prompt_tokens=int(num_prompt_tokens or 0))


def requests_of(result: JsonObject) -> tuple[RequestRecord, ...]:
    """In the order they were sent; empty if the file has no such lists.

    `itls` has the seconds between a request's chunks: their sum is its decode time, whatever a
    chunk holds. Prompts of equal length that got equal texts are taken for one, asked repeatedly.
    """
    prompts, lengths, ttfts = map(result.numbers, ("input_lens", "output_lens", "ttfts"))
    gaps, texts = result.lists("itls"), result.values.get("generated_texts")
    if prompts is None or lengths is None or ttfts is None or gaps is None:
        return ()
    for name, column in (("input_lens", prompts), ("ttfts", ttfts), ("itls", gaps)):
        if len(column) != len(lengths):
            result.fail(name, f"{len(column)} requests, {len(lengths)} in output_lens")
    if not isinstance(texts, list) or len(texts) != len(lengths):
        texts = [*range(len(lengths))]
    first: dict[tuple[float, str], int] = {}
    return tuple(
        request_of(
            f"prompt {first.setdefault((prompts[i], str(texts[i])), i)}",
            i,
            num_prompt_tokens=prompts[i],
            num_tokens=lengths[i],
            ttft_s=ttfts[i],
            total_s=ttfts[i] + sum(gaps[i]),
        )
        for i in range(len(lengths))
    )


def bench_speeds(result: JsonObject, latency: str) -> Figures:
    """What vLLM's and SGLang's benchmarks name alike; `latency`: their name of a request's."""
    names = {"ttft_s": "ttft", "tpot_s": "tpot", "inter_chunk_latency_s": "itl"}
    return {
        "aggregate_tokens_per_s": result.number("output_throughput"),
        "num_output_tokens": result.number("total_output_tokens"),
        "requests_per_s": result.number("request_throughput"),
        **latencies(result.milliseconds, **names, request_latency_s=latency),
    }


def acceptance_when_drafted(
    told: ImportOverrides,
    *,
    rate: float | None,
    length: float | None,
    num_rounds: float | None,
    per_position: tuple[float, ...] | None,
) -> Figures:
    """Figures over the rounds that drafted: over all of them only if the method always drafts."""
    figures: Figures = {"acceptance_rate": rate, "mean_acceptance_length_when_drafted": length}
    method = METHODS.get(told.method)
    if method is not None and method.always_drafts:
        of_all_rounds = {"mean_acceptance_length": length, "num_rounds": num_rounds}
        figures = {**figures, **of_all_rounds, "acceptance_rate_per_position": per_position}
    return _known(figures)


def _known(figures: Figures) -> dict[str, float | tuple[float, ...]]:
    """The figures that are there."""
    return {name: value for name, value in figures.items() if value is not None and value != ()}


def _first(read: N | None, told: N | None, result: JsonObject, what: str, option: str) -> N:
    """What the file says, else the user; UsageError if neither does."""
    value = told if read is None else read
    if value is None:
        raise UsageError(f"{result.place}: the file does not say {what}; give {option}")
    return value
