"""Runs summarized for comparison: one run, or several pooled as a baseline; `baseline.json`.

Several runs of the same work show how much identical runs differ. Prompts within one run do not
show this, because they share its clocks, its memory layout and its neighbors.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from specbench.doc import Doc
from specbench.errors import StoreError, UsageError
from specbench.gate.figures import CellFigures, Figure, cell_figures, imported_figures, rounded
from specbench.gate.fingerprint import (
    AROUND,
    DRAFTER,
    SOFTWARE,
    Fingerprint,
    differences,
    draft_changes,
    fingerprint_of,
    software_changes,
)
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.machine import all_signs, cpu_share, noise_signs
from specbench.metrics.summary import summarize_imported
from specbench.records import NO_DRAFTER, CellKey, Kind, Reason
from specbench.runs import StoredRun
from specbench.stats.crossed import MIN_CYCLES
from specbench.untrusted import parse_json
from specbench.whole_file import write_errors_named, write_whole
from specbench.words.answers import joined


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRun:
    """A run of a snapshot: its id, versions and signs of noise."""

    run_id: Annotated[str, Doc("id of the run")]
    created_at: Annotated[str, Doc("ISO 8601, UTC")]
    specbench_version: Annotated[str, Doc("version of the program that measured it")]
    git_commit: Annotated[str | None, Doc("its commit; absent outside a checkout")] = None
    imported_sha256: Annotated[
        tuple[str, ...] | None, Doc("of the result files of an imported run; else absent")
    ] = None
    noise: Annotated[
        tuple[Reason, ...] | None, Doc("the signs that its machine was busy; else absent")
    ] = None
    cpu_share: Annotated[
        float | None, Doc("CPU seconds of its process per second of K = 0; absent if unknown")
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One run, or several pooled; `baseline.json` contains one snapshot."""

    origins: tuple[SourceRun, ...]
    fingerprint: Fingerprint
    cells: tuple[CellFigures, ...]
    unmeasured: tuple[CellKey, ...] = ()  # planned without a request; of a pool: not in every run
    is_complete: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError without a run, as in an edited file."""
        if not self.origins:
            raise ValueError("origins: at least one run is needed")

    @property
    def num_runs(self) -> int:
        return len(self.origins)

    @property
    def noise(self) -> Mapping[str, tuple[Reason, ...]]:
        """The signs that a machine was busy, by run; without runs that have none."""
        return {origin.run_id: origin.noise for origin in self.origins if origin.noise}

    @property
    def cpu_share(self) -> float | None:
        """CPU seconds per second of K = 0: the mean of the runs that have it."""
        known = [o.cpu_share for o in self.origins if o.cpu_share is not None]
        return fmean(known) if known else None


def snapshot(stored: StoredRun, names: Collection[str] | None = None) -> Snapshot:
    """The figures of one run; `names`: only these metrics, of cells that were not imported."""
    run, imported = stored.run, stored.imported
    cells = aggregate_run(stored)
    confirmed = aggregate_run(stored, "confirm")
    signs = noise_signs((*cells, *confirmed), device=run.environment.device)
    # Limited clocks are as true in every other run.
    noise = tuple(s for s in all_signs(run.busy, signs) if s.kind is not Kind.CLOCKS_LIMITED)
    share = cpu_share((*cells, *confirmed))
    figures = [cell_figures(cell, names) for cell in cells]
    figures += map(imported_figures, summarize_imported(run.keys, imported))
    measured = {cell.key for cell in figures}
    return Snapshot(
        origins=(
            SourceRun(
                run_id=run.run_id,
                created_at=run.environment.created_at,
                specbench_version=run.environment.specbench_version,
                git_commit=run.environment.git_commit,
                imported_sha256=tuple(record.file_sha256 for record in imported) or None,
                noise=noise or None,
                cpu_share=None if share is None else rounded(share),
            ),
        ),
        fingerprint=fingerprint_of(run, stored.models, stored.engines, imported, stored.servers),
        cells=tuple(figures),
        unmeasured=tuple(key for key in run.keys if key not in measured),
        is_complete=stored.is_complete,
    )


def pool(runs: Sequence[Snapshot], allowed: Collection[str] = ()) -> Snapshot:
    """One baseline of several runs of the same work: geometric means of cells valid in all runs.

    UsageError for interrupted runs, duplicates, and fingerprints that differ in more than
    `allowed`.
    """
    first = runs[0]
    for run in runs:
        origin = run.origins[0]
        if not run.is_complete:
            raise UsageError(
                f"run {origin.run_id} was interrupted and cannot be a baseline; resume it: "
                f"--resume {origin.run_id}"
            )
        for word, difference in _pooling_obstacles(first.fingerprint, run.fingerprint):
            if word not in allowed:
                raise UsageError(
                    f"runs {first.origins[0].run_id} and {origin.run_id} {difference}; "
                    f"to pool them anyway: --allow-different {word}"
                )
    _refuse_duplicates([run.origins[0] for run in runs])
    cells = tuple(_pooled_cells(runs))
    if not cells:
        raise UsageError("no cell is valid in all of these runs, so the baseline would be empty")
    drafted = [cell for run in runs for cell in run.cells if cell.key.draft.drafter != NO_DRAFTER]
    if drafted and all(cell.key.draft.drafter == NO_DRAFTER for cell in cells):
        raise UsageError(
            "no cell with drafts is valid in all of these runs, only K=0 would remain: "
            f"{drafted[0].key.label} is not in all of them"
        )
    kept = {cell.key for cell in cells}
    planned = (key for run in runs for key in (*(c.key for c in run.cells), *run.unmeasured))
    return Snapshot(
        origins=tuple(run.origins[0] for run in runs),
        fingerprint=replace(first.fingerprint, hardware=_all_hardware(runs)),
        cells=cells,
        # Planned cells: if a candidate lacks them, they are missing and not different work.
        unmeasured=tuple(dict.fromkeys(key for key in planned if key not in kept)),
    )


def left_out(runs: Sequence[Snapshot], pooled: Snapshot) -> Iterator[str]:
    """Why cells of the runs are not in their baseline, one line per cell and run."""
    kept = {cell.key for cell in pooled.cells}
    for run in runs:
        name = run.origins[0].run_id
        for cell in run.cells:
            if cell.key not in kept and cell.problems:
                yield f"{cell.key.label}, run {name}: {joined(cell.problems)}"
        for key in run.unmeasured:
            yield f"{key.label}, run {name}: not measured"
    explained = {cell.key for run in runs for cell in run.cells if cell.problems}
    explained |= {key for run in runs for key in run.unmeasured}
    for cell in runs[0].cells:
        if cell.key not in kept | explained:
            yield f"{cell.key.label}: not in every run, or with different prompts"


def _pooling_obstacles(first: Fingerprint, second: Fingerprint) -> Iterator[tuple[str, str]]:
    """Differences that forbid pooling two runs, each with the word of --allow-different for it."""
    for name, ours, theirs in differences(first, second, threads=False):
        yield name, f"did different work: {name}: {ours} and {theirs}"
    for pairing, change in draft_changes(first, second):
        fact = "weights" if change.name.startswith("weights") else "method or parameters"
        yield DRAFTER, f"did different work: {fact} of {pairing} differ"
    for name, ours, theirs in software_changes(first, second, AROUND):
        yield SOFTWARE, f"are not repeats of each other: {name}: {ours} and {theirs}"


def _refuse_duplicates(origins: Sequence[SourceRun]) -> None:
    """UsageError if a run or a result file is given twice, since copies do not vary."""
    for i, origin in enumerate(origins):
        for earlier in origins[:i]:
            if origin.run_id == earlier.run_id:
                fault = f"run {origin.run_id} was named twice"
            elif set(origin.imported_sha256 or ()) & set(earlier.imported_sha256 or ()):
                fault = (
                    f"runs {earlier.run_id} and {origin.run_id} were imported from the same file"
                )
            else:
                continue
            raise UsageError(f"{fault}: the variation between runs would be underestimated")


def _all_hardware(runs: Sequence[Snapshot]) -> dict[str, str]:
    """The hardware of all runs, different values joined, so that no single run has the same."""
    machines = [run.fingerprint.hardware for run in runs]
    names = dict.fromkeys(name for facts in machines for name in facts)
    return {
        name: " | ".join(dict.fromkeys(facts.get(name, "") for facts in machines)) for name in names
    }


def _pooled_cells(runs: Sequence[Snapshot]) -> Iterator[CellFigures]:
    by_key = [{cell.key: cell for cell in run.cells} for run in runs]
    for cell in runs[0].cells:
        same = [cells[cell.key] for cells in by_key if cell.key in cells]
        valid = all(
            not twin.problems
            and _have_same_prompts(cell, twin)
            and (cell.shows_clock(twin) or not cell.changed_prompts(twin))
            for twin in same
        )
        if len(same) == len(runs) and valid:
            yield _pooled_cell(same) if len(same) > 1 else cell


def _have_same_prompts(first: CellFigures, second: CellFigures) -> bool:
    """Whether two cells have the same prompts or passes; cycles may differ in number."""
    if first.has_cycles and second.has_cycles:
        has_spread = min(len(first.units), len(second.units)) >= MIN_CYCLES
        return first.prompts == second.prompts and (has_spread or first.units == second.units)
    return first.units == second.units


def _pooled_cell(cells: Sequence[CellFigures]) -> CellFigures:
    fewest = min(len(cell.units) for cell in cells)
    cells = [_of_first_units(cell, fewest) for cell in cells]
    names = [name for name in cells[0].figures if all(name in c.figures for c in cells)]
    texts = cells[0].texts
    agree = all(cell.texts == texts for cell in cells)
    return replace(
        cells[0],
        num_tokens=tuple(
            fmean(tokens) for tokens in zip(*(c.num_tokens for c in cells), strict=True)
        ),
        figures={name: _pooled_figure([c.figures[name] for c in cells]) for name in names},
        texts=texts if agree else {},  # text that does not repeat cannot be compared
    )


def _of_first_units(cell: CellFigures, count: int) -> CellFigures:
    """The cell with the spread of its first units alone, as if it had no others."""
    if count == len(cell.units):
        return cell
    # A unit of fewer changes a figure by more when it is left out.
    times = (len(cell.units) - 1) / max(count - 1, 1)
    figures = {
        name: replace(
            of, without=of.without and tuple(_moved(of.value, v, times) for v in of.without[:count])
        )
        for name, of in cell.figures.items()
    }
    units, num_tokens = cell.units[:count], cell.num_tokens[:count]
    return replace(cell, units=units, num_tokens=num_tokens, figures=figures)


def _moved(value: float, left_out: float, times: float) -> float:
    """The leave-one-out value, moved away from the value of all units."""
    if min(value, left_out) > 0:
        return rounded(value * (left_out / value) ** times)
    return rounded(value + times * (left_out - value))


def _pooled_figure(figures: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in figures]
    return Figure(
        value=_mean(values), without=_pooled_without(figures), deviation=_deviation(values)
    )


def _pooled_without(figures: Sequence[Figure]) -> tuple[float, ...] | None:
    withouts = [figure.without for figure in figures if figure.without is not None]
    if len(withouts) < len(figures):
        return None
    num_units = max(map(len, withouts))
    filled = [f.without or (f.value,) * num_units for f in figures]
    return tuple(map(_mean, zip(*filled, strict=True)))


def _mean(values: Sequence[float]) -> float:
    """The geometric mean if all are positive, since changes are judged as ratios."""
    return rounded(geometric_mean(values) if min(values) > 0 else fmean(values))


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of the logarithms; else relative to the mean."""
    if min(values) > 0:
        return rounded(float(np.std(np.log(values), ddof=1)))
    mean = fmean(values)
    return rounded(float(np.std(values, ddof=1)) / abs(mean)) if mean else 0.0


SCHEMA_VERSION = 2  # of the file
KIND = "specbench baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class _BaselineFile:
    kind: str
    schema_version: int
    baseline: Snapshot


# pydantic passes a config to a standard dataclass only through an enclosing type.
_FILE: TypeAdapter[_BaselineFile | None] = TypeAdapter(
    _BaselineFile | None, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
)
_FLAT_LIST = re.compile(r"\[[^\[\]{}]*\]")


def write_baseline(baseline: Snapshot, path: Path) -> None:
    """Replace the file in one step; StoreError if it cannot be written."""
    document = _BaselineFile(kind=KIND, schema_version=SCHEMA_VERSION, baseline=baseline)
    text = json.dumps(_FILE.dump_python(document, mode="json", exclude_none=True), indent=1)
    # A list of numbers is one line of a diff, not one line per prompt.
    text = _FLAT_LIST.sub(lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
    with write_errors_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text + "\n")


def read_baseline(path: Path) -> Snapshot:
    """The baseline of a file; StoreError if it is absent, damaged, or of a newer schema."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        advice = f"; make one: `specbench baseline RUN --output {path}`, or name a run"
        raise StoreError(
            f"{path}: {getattr(error, 'strerror', None) or 'is not a text file'}"
            + (advice if is_missing else "")
        ) from error
    try:
        values: Any = parse_json(text)
    except ValueError as error:
        raise StoreError(f"{path}: damaged: {error}") from error
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise StoreError(f"{path}: not a baseline; `specbench baseline RUN...` writes one")
    version = values.get("schema_version")
    if isinstance(version, int) and version != SCHEMA_VERSION:
        advice = "update specbench to read it" if version > SCHEMA_VERSION else "make it again"
        raise StoreError(f"{path}: schema version {version}, not {SCHEMA_VERSION}; {advice}")
    try:
        document = _FILE.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{path}: damaged: {key}: {first['msg']}") from error
    assert document is not None, "expected an object, not null"
    return document.baseline
