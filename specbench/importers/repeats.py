"""Several results of one cell as one: means with their standard deviations."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from specbench.errors import UsageError
from specbench.importers.imported_cell import ImportedCell
from specbench.metrics.registry import number_of
from specbench.records import ImportedRecord

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
            figures[name] = tuple(map(fmean, zip(*lists, strict=True)))
        elif len(numbers) == len(records) and name.startswith("num_"):
            figures[name] = sum(numbers)
        elif len(numbers) == len(records):
            figures[name], deviations[name] = fmean(numbers), stdev(numbers)
    shown = [
        f"{name} {deviation / number:.1%}"
        for name, deviation in deviations.items()
        if name in _SHOWN and (number := number_of(figures, name))
    ]
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
            f"mean of {len(records)} repeats; standard deviation: {', '.join(shown) or 'unknown'}",
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
