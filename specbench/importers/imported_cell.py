"""A result as a cell: the facts in the file, and those that the user gives."""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Protocol, TypeVar

from specbench.errors import UsageError
from specbench.importers.result_file import ResultObject
from specbench.inputs.model_spec import without_owner
from specbench.methods import METHODS
from specbench.metrics.registry import number_of
from specbench.metrics.streams import faulty_streams, without_stream_times
from specbench.records import (
    CellKey,
    Condition,
    DraftConfig,
    Fixed,
    ImportedRecord,
    Kind,
    Reason,
    Request,
    RequestRecord,
    Result,
    StatedAnswer,
)
from specbench.stats.rounds import rates_of_length

UNKNOWN = "unknown"  # a name that is in neither the file nor the options
N = TypeVar("N", int, float)
Figures = Mapping[str, float | tuple[float, ...] | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOverrides:
    """Facts about the files that the user gives; None and "": not given."""

    pairing: str = ""  # target/drafter
    method: str = ""
    workload: str = ""
    dtype: str = ""
    num_speculative_tokens: int | None = None
    concurrency: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedResult:
    """The facts of one result in our terms and units; None: not in it."""

    engine: str
    model: str | None = None
    drafter: str | None = None
    method: str | None = None
    workload: str | None = None
    num_speculative_tokens: int | None = None  # 0: it did not speculate
    drafts_by: str = ""  # what in the file says that its server speculates
    is_chain: bool = False  # a smaller K drafts the first of these tokens, with their rates
    concurrency: int | None = None
    request_rate: float | None = None
    temperature: float | None = None
    tool_version: str | None = None
    measured_at: str | None = None
    num_completed: int | None = None
    num_failed: int | None = None
    figures: Figures = field(default_factory=dict)
    requests: tuple[RequestRecord, ...] = ()
    warnings: tuple[Reason, ...] = ()
    parameters: str = ""  # those that a sweep varied, if no other field has them
    axes: Mapping[str, object] = field(default_factory=dict)  # entries of a flat key that it has
    stated: StatedAnswer | None = None

    @property
    def target(self) -> str:
        """The model without its owner or folder."""
        return without_owner(self.model or UNKNOWN)


class Format(Protocol):
    """A module of this package that reads one format."""

    TOOL: str

    def recognizes(self, result: ResultObject) -> bool:
        """Whether this tool wrote the result."""
        ...

    def read(self, result: ResultObject, given: ImportOverrides) -> ParsedResult:
        """The facts of a result; UsageError for an impossible value."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCell:
    """A cell of an imported run."""

    key: CellKey
    record: ImportedRecord
    parameters: str
    is_chain: bool = False

    @property
    def acceptance_rates(self) -> tuple[float, ...] | None:
        """P(a round accepts at least 1 .. K draft tokens); None if the file has no acceptance.

        If there is only a mean length, the rates are those with the least variance, as in engines.
        """
        figures, k = self.record.figures, self.key.draft.k
        rates = figures.get("acceptance_rate_per_position")
        if isinstance(rates, tuple) and len(rates) == k:
            return rates
        names = ("mean_acceptance_length", "mean_acceptance_length_when_drafted")
        lengths = (number_of(figures, name) for name in names)
        return next((rates_of_length(length, k) for length in lengths if length), None)


_OF_STREAMS = ("ttft_s", "tpot_s", "inter_chunk_latency_s", "decode_")  # metrics


def to_cell(
    tool: str, parsed: ParsedResult, result: ResultObject, given: ImportOverrides
) -> ImportedCell:
    """The cell of a result; UsageError names facts that neither the file nor the user gives.

    K in the file takes precedence. A file that does not say whether its server speculated needs a
    given K, and at K = 0 it is a baseline for any given pairing.
    """
    name = result.file_name
    wanted = f"{name}#k=4, or {name}#k=0 for a server without speculation"
    k = _fact(parsed.num_speculative_tokens, given.num_speculative_tokens, result, "K", wanted)
    temperature = _fact(
        parsed.temperature, given.temperature, result, "the temperature", "--temperature 0"
    )
    concurrency = _fact(
        parsed.concurrency,
        given.concurrency,
        result,
        "the number of concurrent requests",
        "--concurrency 8",
    )
    given_target, _, given_drafter = given.pairing.partition("/")
    target = given_target or parsed.target
    method = given.method or (parsed.method if parsed.method in METHODS else None)
    key = CellKey(
        condition=Condition(
            target=target,
            workload=given.workload or parsed.workload or UNKNOWN,
            temperature=temperature,
            concurrency=concurrency,
            request_rate=parsed.request_rate,
            dtype=given.dtype or UNKNOWN,
            engine=parsed.engine,
        ),
        draft=DraftConfig(
            drafter=given_drafter or without_owner(parsed.drafter or UNKNOWN),
            method=method or UNKNOWN,
            length=Fixed(k),
        )
        if k
        else DraftConfig.none,
    )
    if parsed.axes:
        key = CellKey.of_flat({**key.flat, **parsed.axes})
    figures = _known(parsed.figures)
    has_acceptance = any("accept" in name for name in figures)
    requests, fault = parsed.requests, faulty_streams(parsed.requests, k)
    if fault:
        requests = tuple(map(without_stream_times, requests))
        figures = {n: v for n, v in figures.items() if not n.startswith(_OF_STREAMS)}
    return ImportedCell(
        key=key,
        parameters=parsed.parameters,
        is_chain=parsed.is_chain,
        record=ImportedRecord(
            cell_id=key.id,
            tool=tool,
            tool_version=parsed.tool_version,
            file=result.file_name,
            file_sha256=result.sha256,
            measured_at=parsed.measured_at,
            num_requests=None
            if parsed.num_completed is None
            else parsed.num_completed + (parsed.num_failed or 0),
            num_failed=parsed.num_failed,
            figures=figures,
            requests=tuple(replace(r, cell_id=key.id, chunk_s=None) for r in requests),
            warnings=(
                *filter(None, [fault]),
                *parsed.warnings,
                *(_without_acceptance(parsed) if k and not has_acceptance else ()),
            ),
            stated=parsed.stated,
        ),
    )


def _without_acceptance(parsed: ParsedResult) -> Iterator[Reason]:
    """What is known of a result at K without figures of acceptance."""
    if parsed.drafts_by:
        yield Kind.ACCEPTANCE_UNREPORTED(place=parsed.drafts_by)
    else:
        yield Kind.NO_ACCEPTANCE()


def conditions(named: Mapping[str, object], *sentences: str) -> tuple[Reason, ...]:
    """A note on the conditions that a file states; empty if it states none."""
    facts = [f"{name} {_in_words(value)}".strip() for name, value in named.items()]
    known = tuple(filter(None, (*facts, *sentences)))
    return (Kind.CONDITIONS(facts=known),) if known else ()


def _in_words(value: object) -> str:
    words = str(value) if isinstance(value, str | int | float) else json.dumps(value)
    return "".join(c for c in words if c.isprintable())[:200]


def latencies(percentile: Callable[[str, int], float | None], **names: str) -> Figures:
    """Medians and percentiles of our metrics, by the tool's name of each."""
    return {
        name if percent == 50 else f"{name}_p{percent}": percentile(theirs, percent)
        for name, theirs in names.items()
        for percent in (50, 90, 95, 99)
    }


def request_of(
    prompt: str,
    index: int,
    *,
    turn: int = 0,
    num_prompt_tokens: float | None,
    num_tokens: float | None,
    ttft_s: float | None,
    total_s: float | None,
    gaps_s: Sequence[float] | None = None,
) -> RequestRecord:
    """The record of a request, which failed if it has no output token. `ttft_s`: None if it was
    not streamed; `gaps_s`: seconds between its events, if the file has them."""
    result = Result.failed("it has no output token in the file")
    if num_tokens and total_s is not None:
        result = replace(
            result,
            finish_reason="eos",
            error=None,
            ttft_s=ttft_s,
            decode_s=None if ttft_s is None else total_s - ttft_s,
            total_s=total_s,
            num_tokens=int(num_tokens),
            chunk_s=None if gaps_s is None else tuple(gaps_s),
        )
    request = Request(prompt_id=prompt, turn=turn, repeat=index, max_new_tokens=0)
    return RequestRecord.of("", request, result, num_prompt_tokens=int(num_prompt_tokens or 0))


def requests_of(result: ResultObject, *, is_sampled: bool = False) -> tuple[RequestRecord, ...]:
    """The requests in the order they were sent; empty if the file has no such lists.

    `itls` has the seconds between the chunks of a request: their sum is its decode time. Prompts of
    equal length with equal texts count as one prompt, repeated. Sampled texts of one prompt differ,
    so all prompts of equal length then count as one.
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
    if is_sampled:
        texts = [""] * len(lengths)
    names = prompt_names(zip(prompts, map(str, texts), strict=True))
    return tuple(
        request_of(
            names[i],
            i,
            num_prompt_tokens=prompts[i],
            num_tokens=lengths[i],
            ttft_s=ttfts[i],
            total_s=ttfts[i] + sum(gaps[i]),
            gaps_s=gaps[i],
        )
        for i in range(len(lengths))
    )


def prompt_names(prompts: Iterable[Hashable]) -> list[str]:
    """A name per request, which requests with equal prompts share: `prompt 0` of the first."""
    first: dict[Hashable, int] = {}
    return [f"prompt {first.setdefault(prompt, i)}" for i, prompt in enumerate(prompts)]


def bench_speeds(result: ResultObject, latency: str) -> Figures:
    """Figures with the same names in vLLM's and SGLang's results, except a request's `latency`."""
    names = {"ttft_s": "ttft", "tpot_s": "tpot", "inter_chunk_latency_s": "itl"}

    def percentile(name: str, percent: int) -> float | None:
        statistic = "median" if percent == 50 else f"p{percent}"
        return result.milliseconds(f"{statistic}_{name}_ms")

    return {
        "aggregate_tokens_per_s": result.number("output_throughput"),
        "num_output_tokens": result.number("total_output_tokens"),
        "requests_per_s": result.number("request_throughput"),
        **latencies(percentile, **names, request_latency_s=latency),
    }


def acceptance_when_drafted(
    given: ImportOverrides,
    *,
    rate: float | None,
    length: float | None,
    num_rounds: float | None,
    per_position: tuple[float, ...] | None,
) -> Figures:
    """Figures over the rounds that drafted, and over all rounds if the method always drafts."""
    figures: Figures = {"acceptance_rate": rate, "mean_acceptance_length_when_drafted": length}
    method = METHODS.get(given.method)
    if method is not None and method.always_drafts:
        of_all_rounds = {"mean_acceptance_length": length, "num_rounds": num_rounds}
        figures = {**figures, **of_all_rounds, "acceptance_rate_per_position": per_position}
    return _known(figures)


def _known(figures: Figures) -> dict[str, float | tuple[float, ...]]:
    """The figures that the file contains."""
    return {name: value for name, value in figures.items() if value is not None and value != ()}


def _fact(parsed: N | None, given: N | None, result: ResultObject, fact: str, option: str) -> N:
    """The fact in the file, or else the given one; UsageError without either."""
    value = given if parsed is None else parsed
    if value is None:
        raise UsageError(f"{result.place}: the file does not say {fact}; give {option}")
    return value


_SAME_LENGTH = 1.1  # at most this ratio between the mean lengths of the prompts of repeats
_SHOWN = ("aggregate_tokens_per_s", "ttft_s", "tpot_s")


def pool(cells: Sequence[ImportedCell]) -> ImportedCell:
    """Means of the figures that all repeats have, with their deviations; sums of counts.

    UsageError if they are not repeats: they differ in tool, requests, prompts or parameters.
    """
    first = cells[0]
    if len(cells) == 1:
        return first
    for cell in cells[1:]:
        _require_repeat(first, cell)
    records = [cell.record for cell in cells]
    figures: dict[str, float | tuple[float, ...]] = {}
    deviations: dict[str, float] = {}
    for name in first.record.figures:
        numbers = [x for record in records if (x := number_of(record.figures, name)) is not None]
        lists = [v for r in records if isinstance(v := r.figures.get(name), tuple)]
        if len(lists) == len(records) and len(set(map(len, lists))) == 1:
            pooled = sum if name == "acceptance_histogram" else fmean
            figures[name] = tuple(map(pooled, zip(*lists, strict=True)))
        elif len(numbers) == len(records) and name.startswith("num_"):
            figures[name] = sum(numbers)
        elif len(numbers) == len(records):
            figures[name], deviations[name] = fmean(numbers), stdev(numbers)
    shown = tuple(
        Kind.DEVIATION(metric=name, share=deviation / number)
        for name, deviation in deviations.items()
        if name in _SHOWN and (number := number_of(figures, name))
    )
    requests = [request for record in records for request in record.requests]
    failed = [record.num_failed for record in records]
    hashes = sorted({record.file_sha256 for record in records})
    record = replace(
        first.record,
        file=", ".join(dict.fromkeys(record.file for record in records)),
        file_sha256=hashlib.sha256("".join(hashes).encode()).hexdigest()
        if len(hashes) > 1
        else hashes[0],
        num_requests=(first.record.num_requests or 0) * len(records) or None,
        num_failed=None if None in failed else sum(filter(None, failed)),
        figures=figures,
        num_repeats=len(records),
        deviations=deviations,
        requests=tuple(replace(request, repeat=i) for i, request in enumerate(requests))
        if all(record.requests for record in records)
        else (),
        warnings=(
            *dict.fromkeys(warning for record in records for warning in record.warnings),
            Kind.REPEATS(repeats=(len(records), "repeat"), deviations=shown),
        ),
    )
    return replace(first, record=record)


def _require_repeat(first: ImportedCell, cell: ImportedCell) -> None:
    """Raise UsageError if the second result is not a repeat of the first."""
    facts = [
        ("tool", first.record.tool, cell.record.tool),
        ("number of requests", first.record.num_requests, cell.record.num_requests),
        ("swept parameters", first.parameters or "none", cell.parameters or "none"),
    ]
    here, there = map(_prompt_tokens, (first.record, cell.record))
    if here and there and not 1 / _SAME_LENGTH < here / there < _SAME_LENGTH:
        facts.append(("input tokens per request", f"{here:.0f}", f"{there:.0f}"))
    for name, wanted, value in facts:
        if value != wanted:
            raise UsageError(
                f"{cell.record.file}: not a repeat of {first.record.file}, {first.key.label}: "
                f"{name}: {wanted} and {value}; if their K differ, give each, such as "
                f"{cell.record.file}#k=4, or else import one of the two"
            )


def _prompt_tokens(record: ImportedRecord) -> float | None:
    """The mean length of a prompt: the ratio of two rates over the same time."""
    names = ("input_tokens_per_s", "requests_per_s")
    tokens, requests = (number_of(record.figures, name) for name in names)
    return tokens / requests if tokens and requests else None
