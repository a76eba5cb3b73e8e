"""Result files of other tools as records: one file per format, recognized by its keys.

A format has `TOOL`, `recognizes(result)` and `read(result, given)`. If a result is spread over
several files it also has `join(results)`, and `split(result)` if a file has several results.
Metrics that a file does not contain are absent; facts that a cell's key needs are given as options.
Open `imported_cell.py` first.
"""

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from specbench.errors import UsageError
from specbench.importers import golden_lengths
from specbench.importers.imported_cell import Format, ImportedCell, ImportOverrides, pool, to_cell
from specbench.importers.result_file import ResultObject, parse_digits, read_results
from specbench.settings.words import MAX_K

_NOT_FORMATS = ("imported_cell", "result_file")


def formats() -> tuple[Format, ...]:
    """Every format that can be read, by file name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_FORMATS)
    return tuple(cast(Format, import_module(f"{__name__}.{name}")) for name in names)


def import_files(
    files: Sequence[str | Path],
    given: ImportOverrides,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[ImportedCell, ...]:
    """A cell for each setting of the results in the files, in order.

    `FILE#k=4` gives a file's K, and `FILE#thinking_on` chooses a curve of golden lengths.

    For a folder, the results of known tools in it are read. Results of one cell are pooled. `note`
    is called with warnings. UsageError names file and key: not JSON, an unknown format, an
    impossible value, a missing fact that was not given, or different models.
    """
    given_k: dict[str, int | None] = {}
    results: list[ResultObject] = []
    for path, k, curve in map(_split, map(str, files)):
        in_file = _results_in(path, note) if path.is_dir() else read_results(path)
        if curve is not None:
            in_file = [golden_lengths.choose(result, curve) for result in in_file]
        given_k |= {result.place: k for result in in_file}
        results += in_file
    repeats: dict[str, list[ImportedCell]] = {}
    seen: list[tuple[int | None, Mapping[str, Any]]] = []
    targets: dict[str, str] = {}
    for known in formats():
        if (join := getattr(known, "join", None)) is not None:
            results = join(results)
        if (split := getattr(known, "split", None)) is not None:
            results = [
                part for r in results for part in (split(r) if known.recognizes(r) else (r,))
            ]
    for result in results:
        known = _format_of(result)
        k = given_k[result.place]
        if (k, result.values) in seen:  # a sweep stores a run twice: by itself, in its summary
            note(f"{result.place}: in another file as well, and counted once")
            continue
        seen.append((k, result.values))
        facts = given if k is None else replace(given, num_speculative_tokens=k)
        parsed = known.read(result, facts)
        if k is not None and parsed.num_speculative_tokens not in (None, k):
            raise UsageError(
                f"{result.place}: #k={k} was given, but the file has K="
                f"{parsed.num_speculative_tokens}; leave #k={k} out"
            )
        if parsed.model:
            targets.setdefault(parsed.target, result.place)
        cell = to_cell(known.TOOL, parsed, result, facts)
        repeats.setdefault(cell.key.id, []).append(cell)
    if len(targets) > 1:
        models = ", ".join(f"{target} in {place}" for target, place in targets.items())
        if not given.pairing:
            raise UsageError(
                f"different models: {models}; import each model by itself, or name the one that "
                "they are with --pairing target/drafter"
            )
        note(f"different models, treated as one because of --pairing: {models}")
    for cells in repeats.values():
        if len(cells) > 1:
            note(
                f"pooled as {len(cells)} repeats of {cells[0].key.label}: "
                + ", ".join(dict.fromkeys(cell.record.file for cell in cells))
            )
    return tuple(map(pool, repeats.values()))


def _split(text: str) -> tuple[Path, int | None, str | None]:
    """The path, and the K or the curve after #."""
    path, mark, fact = text.rpartition("#")
    if not mark or Path(text).exists():
        return Path(text), None, None
    k = fact.removeprefix("k=")
    if k == fact:
        return Path(path), None, fact
    number = parse_digits(k, MAX_K)
    if number is None:
        raise UsageError(f"{text}: after # only K from 0 to {MAX_K} is allowed: {path}#k=4")
    return Path(path), number, None


def acceptance_by_k(cells: Iterable[ImportedCell]) -> dict[int, tuple[float, ...]]:
    """P(a round accepts at least 1 .. K draft tokens), by K; of a chain also for each smaller K."""
    known = {c.key.draft.k: c for c in cells if c.key.draft.k and c.acceptance_rates is not None}
    by_k = {k: cell.acceptance_rates or () for k, cell in known.items()}
    for k, cell in known.items():
        if cell.is_chain:
            by_k = {**{i: by_k[k][:i] for i in range(1, k)}, **by_k}
    return dict(sorted(by_k.items()))


def _results_in(folder: Path, note: Callable[[str], None]) -> list[ResultObject]:
    """The results of known tools in a folder and the folders below it."""
    results: list[ResultObject] = []
    for file in sorted(p for p in folder.rglob("*.json*") if p.is_file()):
        try:
            in_file = read_results(file)
            for result in in_file:
                _format_of(result)
        except UsageError as error:
            note(f"not imported: {error}")
        else:
            results += in_file
    if not results:
        raise UsageError(f"{folder}: the folder has no result of a known tool (known: {_tools()})")
    return results


def _tools() -> str:
    return ", ".join(known.TOOL for known in formats())


def _format_of(result: ResultObject) -> Format:
    for known in formats():
        if known.recognizes(result):
            return known
    raise UsageError(f"{result.place}: not a result file of a known tool (known: {_tools()})")
