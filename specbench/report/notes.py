"""The warnings and failures of a run as lines, each once, for every format and notebooks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial

from specbench.decide.explanation import units_of
from specbench.metrics.summary import import_warnings
from specbench.records import CellKey, CellSummary, Environment, Kind, Reason, lengths
from specbench.report.document import Document, is_cut_short
from specbench.report.sections import sections
from specbench.report.sessions import lost_line, session_warnings
from specbench.runs import resume_command
from specbench.words.answers import text
from specbench.words.numbers import listed, plural

_FAILURES, _INVALID, WARNINGS = "Not measured", "Invalid cells", "Warnings"
_COUNTS: Mapping[str, Callable[[int], str]] = {
    _FAILURES: "{} not measured".format,
    _INVALID: lambda count: plural(count, "invalid-cell note"),
    WARNINGS: lambda count: plural(count, "warning"),
}
_STAGES = {
    "load": "failed while loading",
    "warm_up": "failed while warming up",
    "decode": "failed while decoding",
}


def notes(document: Document) -> dict[str, list[str]]:
    """Lines by heading, the most severe heading first; no heading is empty."""
    lines = {
        _FAILURES: failure_lines(document),
        _INVALID: [*map(text, _of_cells(document, lambda cell: cell.invalid_reasons))],
        WARNINGS: warning_lines(document),
    }
    return {heading: some for heading, some in lines.items() if some}


def notes_title(run_notes: Mapping[str, Sequence[str]]) -> str:
    """`Read before you rely on it: 2 not measured, 1 invalid-cell note and 3 warnings`."""
    counts = [_COUNTS[heading](len(lines)) for heading, lines in run_notes.items()]
    return f"Read before you rely on it: {listed(counts)}" if counts else ""


def failure_lines(document: Document) -> list[str]:
    """Failed measurements with their reasons."""
    lines = [
        f"{', '.join(filter(None, (failure.pairing, failure.workload)))}: "
        f"{_STAGES[failure.stage]}: {failure.reason}"
        for failure in document.failures
    ]
    return [*lines, *filter(None, [lost_line(document)])]


def warning_lines(document: Document) -> list[str]:
    """Warnings about the run, then about its cells, those of confirmation runs included."""
    confirmed = {decision.leader: decision.warnings for decision in document.decisions}
    of_cells = _of_cells(document, lambda cell: (*cell.warnings, *confirmed.get(cell.key, ())))
    return list(dict.fromkeys(map(text, (*run_warnings(document), *of_cells))))


def run_warnings(document: Document) -> list[Reason]:
    """Warnings about the run as a whole."""
    return [
        *import_warnings(document.imported),
        *(
            Kind.NO_TEMPLATE(target=model.name)
            for model in document.models
            if model.template_sha256 == ""
            and any(key.condition.target == model.name for key in document.run.keys)
        ),
        *_synthetic(document),
        *_lossy(document),
        *([Kind.NOISY(signs=document.noise)] if document.noise else ()),
        *document.run.warnings,
        *_unfinished(document),
        *_of_cells(document, partial(_too_few_prompts, document)),
        *_differing_prompts(document),
        *_resumed(document),
        *session_warnings(document),
    ]


def _of_cells(
    document: Document, reasons_of: Callable[[CellSummary], Iterable[Reason]]
) -> Iterator[Reason]:
    return _of_keys(
        (section.title, cell.key, reason)
        for section in sections(document)
        for cell in section.measured
        for reason in dict.fromkeys(reasons_of(cell))
    )


def _of_keys(reasons: Iterable[tuple[str, CellKey, Reason]]) -> Iterator[Reason]:
    """Each reason once, with its cells: `demo/draft K=2..4 (chat and code): ...`."""
    keys: dict[tuple[str, str, Reason], list[CellKey]] = {}
    for title, key, reason in reasons:
        keys.setdefault((title, key.source, reason), []).append(key)
    titles: dict[tuple[str, str, Reason], list[str]] = {}
    for (title, label, reason), some in keys.items():
        ks = lengths([key.draft.length for key in some])
        titles.setdefault((label, ks, reason), []).append(title)
    cells: dict[Reason, list[str]] = {}
    for (label, ks, reason), names in titles.items():
        cells.setdefault(reason, []).append(f"{label} K={ks} ({listed(names)})")
    return (Kind.OF_CELLS(cells=tuple(n), because=(reason,)) for reason, n in cells.items())


def _synthetic(document: Document) -> Iterator[Reason]:
    decoder = document.run.settings.decoder
    synthetic = []
    if decoder.acceptance is not None:
        rates = () if isinstance(decoder.acceptance, str) else decoder.acceptance
        by_k = rates if isinstance(rates, Mapping) else {0: rates}
        texts = {k: ", ".join(f"{a:g}" for a in of_k) for k, of_k in by_k.items()}
        each = "; ".join(f"K={k}: {of_k}" if k else of_k for k, of_k in texts.items())
        synthetic.append(f"simulated acceptance {each}")
    if decoder.dummy_weights:
        synthetic.append("dummy weights")
    if synthetic:
        yield Kind.SYNTHETIC(made=tuple(synthetic))


def _lossy(document: Document) -> Iterator[Reason]:
    for pairing, rule in {key.pairing: key.draft.lossy for key in document.run.keys}.items():
        if rule is not None:
            yield Kind.LOSSY(pairing=pairing, rule=rule)


def _unfinished(document: Document) -> Iterator[Reason]:
    run, missing = document.run, document.missing
    if not document.is_complete:
        yield Kind.INCOMPLETE(command=resume_command(document.folder, run))
    unbudgeted = [key for key in missing if document.is_skipped_for_budget(key)]
    if lost := [key for key in missing if key not in unbudgeted]:
        names = dict.fromkeys(f"{key.pairing} on {key.condition.workload}" for key in lost)
        yield Kind.CELLS_MISSING(missing=len(lost), cells=len(run.cells), names=tuple(names))
    yield from _of_keys(
        (key.condition.workload, key, Kind.BUDGET_ELSEWHERE()) for key in unbudgeted
    )


def _too_few_prompts(document: Document, cell: CellSummary) -> Iterator[Reason]:
    """A warning if a time budget ended before a K had the prompts of an interval, unless the answer
    says so.
    """
    units = units_of(cell)
    is_told = any(
        decision.leader == cell.key and Kind.LONGER_BUDGET() in decision.answer
        for decision in document.decisions
    )
    is_short = units.are_too_few and is_cut_short(document.run, cell)
    if cell.key.draft.k > 0 and is_short and not is_told:
        yield Kind.BUDGET_ENDED(measured=units.count, needed=units.needed)


def _differing_prompts(document: Document) -> Iterator[Reason]:
    """A warning if the K of one table were not measured on the same prompts."""
    nums = {s.title: {cell.num_prompts for cell in s.measured} for s in sections(document)}
    differing = {title: of for title, of in nums.items() if len(of) > 1}
    if differing:
        every = set.union(*differing.values())
        yield Kind.PROMPTS_DIFFER(settings=tuple(differing), fewest=min(every), most=max(every))


def _resumed(document: Document) -> Iterator[Reason]:
    for session in document.sessions:
        changes = tuple(_changes(document.run.environment, session))
        if changes and session.node is not None:
            yield Kind.ALSO_ON_NODE(node=session.node, changes=changes)
        elif changes:
            yield Kind.RESUMED_ELSEWHERE(created_at=session.created_at, changes=changes)


def _changes(first: Environment, later: Environment) -> Iterator[Reason]:
    for field in fields(Environment):
        before, after = getattr(first, field.name), getattr(later, field.name)
        if before == after or field.name in {"created_at", "command", "node"}:
            continue
        pairs = {field.name: (before, after)}
        if isinstance(before, Mapping):
            pairs = {n: (before.get(n), after.get(n)) for n in sorted({*before, *after})}
        for name, (old, new) in pairs.items():
            if old != new:
                yield Kind.FACT_CHANGED(name=name, baseline=str(old), candidate=str(new))
