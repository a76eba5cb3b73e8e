"""The warnings and failures of a run as lines, each once, for every format and notebooks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial

from specbench.decide.explanation import units_of
from specbench.metrics.summary import import_warnings
from specbench.records import CellKey, CellSummary, Environment, Kind, lengths, no_template
from specbench.report.document import Document, is_cut_short
from specbench.report.sections import sections
from specbench.report.sessions import lost_line, session_warnings
from specbench.runs import resume_command
from specbench.stats.spread import MIN_UNITS
from specbench.words.answers import noise_lines
from specbench.words.numbers import listed, plural

_FAILURES, _INVALID, WARNINGS = "Not measured", "Invalid cells", "Warnings"
_COUNTS: Mapping[str, Callable[[int], str]] = {
    _FAILURES: "{} not measured".format,
    _INVALID: lambda count: plural(count, "invalid-cell note"),
    WARNINGS: lambda count: plural(count, "warning"),
}
_STAGES = {
    "load": "failed while loading",
    "prompts": "left out",
    "warm_up": "failed while warming up",
    "decode": "failed while decoding",
}


def notes(document: Document) -> dict[str, list[str]]:
    """Lines by heading, the most severe heading first; no heading is empty."""
    lines = {
        _FAILURES: failure_lines(document),
        _INVALID: _cell_lines(document, lambda cell: cell.invalid_reasons),
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
    return list(
        dict.fromkeys(
            (
                *run_warnings(document),
                *_cell_lines(document, lambda cell: (*cell.warnings, *confirmed.get(cell.key, ()))),
            )
        )
    )


def run_warnings(document: Document) -> list[str]:
    """Warnings about the run as a whole."""
    return [
        *import_warnings(document.imported),
        *(
            no_template(model.name)
            for model in document.models
            if model.template_sha256 == ""
            and any(key.condition.target == model.name for key in document.run.keys)
        ),
        *_synthetic(document),
        *_lossy(document),
        *noise_lines(document.noise),
        *document.run.warnings,
        *_unfinished(document),
        *_cell_lines(document, partial(_too_few_prompts, document)),
        *_differing_prompts(document),
        *_resumed(document),
        *session_warnings(document),
    ]


def _cell_lines(document: Document, texts_of: Callable[[CellSummary], Iterable[str]]) -> list[str]:
    return _key_lines(
        (section.title, cell.key, text)
        for section in sections(document)
        for cell in section.measured
        for text in dict.fromkeys(texts_of(cell))
    )


def _key_lines(texts: Iterable[tuple[str, CellKey, str]]) -> list[str]:
    """Lines such as `demo/draft K=2..4 (chat and code): text`, one per text."""
    keys: dict[tuple[str, str, str], list[CellKey]] = {}
    for title, key, text in texts:
        keys.setdefault((title, key.source, text), []).append(key)
    titles: dict[tuple[str, str, str], list[str]] = {}
    for (title, label, text), keys_of_text in keys.items():
        ks = lengths([key.draft.length for key in keys_of_text])
        titles.setdefault((label, ks, text), []).append(title)
    cells: dict[str, list[str]] = {}
    for (label, ks, text), names in titles.items():
        cells.setdefault(text, []).append(f"{label} K={ks} ({listed(names)})")
    return [f"{'; '.join(names)}: {text}" for text, names in cells.items()]


def _synthetic(document: Document) -> Iterator[str]:
    decoder = document.run.settings.decoder
    synthetic = []
    if decoder.acceptance is not None:
        rates = () if isinstance(decoder.acceptance, str) else decoder.acceptance
        by_k = rates if isinstance(rates, Mapping) else {0: rates}
        texts = {k: ", ".join(f"{a:g}" for a in of_k) for k, of_k in by_k.items()}
        text = "; ".join(f"K={k}: {of_k}" if k else of_k for k, of_k in texts.items())
        synthetic.append(f"simulated acceptance {text}")
    if decoder.dummy_weights:
        synthetic.append("dummy weights")
    if synthetic:
        yield f"{', '.join(synthetic)}: timings are real; text and acceptance are not"


def _lossy(document: Document) -> Iterator[str]:
    for pairing, rule in {key.pairing: key.draft.lossy for key in document.run.keys}.items():
        if rule is not None:
            yield (
                f"{pairing} is lossy by choice (rule {rule}): it accepts drafts that the target "
                "would not have generated, so its text is not the target's"
            )


def _unfinished(document: Document) -> Iterator[str]:
    run, missing = document.run, document.missing
    if not document.is_complete:
        yield (
            "incomplete: interrupted or still running, so recommendations may change. To continue: "
            f"{resume_command(document.folder, run)}"
        )
    unbudgeted = [key for key in missing if document.is_skipped_for_budget(key)]
    if lost := [key for key in missing if key not in unbudgeted]:
        names = ", ".join(
            dict.fromkeys(f"{key.pairing} on {key.condition.workload}" for key in lost)
        )
        cells = f"{len(lost)} of {len(run.cells)} cells"
        yield f"not measured, so without a recommendation: {cells}: {names}"
    text = "not measured: the time budget went to other K of this drafter"
    yield from _key_lines((key.condition.workload, key, text) for key in unbudgeted)


def _too_few_prompts(document: Document, cell: CellSummary) -> Iterator[str]:
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
        needed = plural(MIN_UNITS, units.name)
        yield f"no interval: the time budget ended after {units.count} of the {needed} it needs"


def _differing_prompts(document: Document) -> Iterator[str]:
    """A warning if the K of one table were not measured on the same prompts."""
    nums = {s.title: {cell.num_prompts for cell in s.measured} for s in sections(document)}
    differing = {title: of for title, of in nums.items() if len(of) > 1}
    if differing:
        every = set.union(*differing.values())
        yield (
            f"{listed(list(differing))}: cells have {min(every)} to {max(every)} prompts. A "
            "speedup compares the same prompts at K and at K=0; tok/s and rates of rows with "
            "different prompts are not comparable"
        )


def _resumed(document: Document) -> Iterator[str]:
    for session in document.sessions:
        changed = ", ".join(_changes(document.run.environment, session))
        if changed:
            event = f"resumed {session.created_at}"
            if session.node is not None:
                event = f"also measured on node {session.node}"
            yield f"{event} under different conditions, which the results mix: {changed}"


def _changes(first: Environment, later: Environment) -> Iterator[str]:
    for field in fields(Environment):
        before, after = getattr(first, field.name), getattr(later, field.name)
        if before == after or field.name in {"created_at", "command", "node"}:
            continue
        if isinstance(before, Mapping):
            names = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
            yield from (f"{n} {before.get(n)} -> {after.get(n)}" for n in names)
        else:
            yield f"{field.name} {before} -> {after}"
