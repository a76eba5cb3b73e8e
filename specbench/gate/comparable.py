"""Matches the cells of two runs that do the same work, and finds what forbids a comparison."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from specbench.errors import UsageError
from specbench.gate.baseline import Snapshot
from specbench.gate.figures import CellFigures
from specbench.gate.fingerprint import (
    HARDWARE,
    SETTINGS,
    SOFTWARE,
    TOKENIZER,
    differences,
)
from specbench.metrics.server_facts import RunDifference
from specbench.records import CellKey
from specbench.records.keys import AXES

PROMPTS = "prompts"
CELLS = "cells"

# Words of --allow-different -> the axes that may then differ; the word names the first of them.
_AXES_OF_WORD: Mapping[str, tuple[str, ...]] = {
    word: tuple(name for name, axis in AXES.items() if word in axis.allowed_by)
    for word in ("K", *dict.fromkeys(word for axis in AXES.values() for word in axis.allowed_by))
}
WORDS = (
    *_AXES_OF_WORD,
    CELLS,
    PROMPTS,
    *SETTINGS,
    HARDWARE,
    SOFTWARE,
)
_AXES = tuple(name for name in AXES if name != "pairing")  # it follows from target and drafter


class CellPair(NamedTuple):
    """A cell of the baseline and the same work in the candidate; None if not measured."""

    baseline: CellFigures
    candidate: CellFigures | None


class Comparable(NamedTuple):
    """The cells of two runs that can be compared, and the differences between the runs."""

    pairs: tuple[CellPair, ...]
    allowed: tuple[RunDifference, ...]  # differences that --allow-different permits
    only_candidate: tuple[CellKey, ...]  # measured there, and not in the baseline


def pair_up(
    baseline: Snapshot,
    candidate: Snapshot,
    allowed: Collection[str] = (),
    *,
    absolute_times: bool = False,
) -> Comparable:
    """The cells of both runs that do the same work.

    With `absolute_times` the hardware must be the same. UsageError names differences that are not
    allowed, and ambiguous matches.
    """
    differing = differences(baseline.fingerprint, candidate.fingerprint)
    if not absolute_times:
        differing = tuple(d for d in differing if d.name != HARDWARE)
    measured = {cell.key: cell for cell in candidate.cells}
    keys = (*measured, *candidate.unmeasured)
    ignored = {name for word in allowed for name in _AXES_OF_WORD.get(word, ())}
    before = _by_common_axes((cell.key for cell in baseline.cells), ignored)
    after = _by_common_axes(keys, ignored)
    cells = {cell.key: cell for cell in baseline.cells}
    matched = [(key, after[common]) for common, key in before.items() if common in after]
    pairs = tuple(CellPair(cells[key], measured.get(match)) for key, match in matched)
    added = tuple(key for common, key in after.items() if common not in before)
    unmatched = () if CELLS in allowed else added
    differing += tuple(
        dict.fromkeys(
            _why_unmatched(key, unmatched, keys)
            for common, key in before.items()
            if common not in after
        )
    )
    differing += tuple(dict.fromkeys(_allowed_in_keys(matched, allowed)))
    differing += tuple(_other_prompts(pairs, is_complete=candidate.is_complete))
    if not any(d.name == TOKENIZER for d in differing):  # another tokenizer explains other ids
        differing += tuple(_other_ids(pairs))
    _refuse([difference for difference in differing if difference.name not in allowed])
    if not pairs:
        raise UsageError(
            "baseline and candidate have no cell in common; run both with the same pairings and K"
        )
    return Comparable(pairs, differing, tuple(key for key in added if key in measured))


def _refuse(refused: Sequence[RunDifference]) -> None:
    if not refused:
        return
    words = ",".join(dict.fromkeys(d.name for d in refused))
    hint = "; or name no absolute times in --fail-on" if words == HARDWARE else ""
    raise UsageError(
        "these runs did different work:\n  "
        + "\n  ".join(difference.text for difference in refused)
        + f"\nto compare them anyway: --allow-different {words}{hint}"
    )


def _by_common_axes(
    keys: Iterable[CellKey], ignored: set[str]
) -> dict[tuple[object, ...], CellKey]:
    by_axes: dict[tuple[object, ...], CellKey] = {}
    for key in keys:
        common = tuple(AXES[name].of(key) for name in _AXES if name not in ignored)
        twin = by_axes.setdefault(common, key)
        if twin is not key:
            raise UsageError(
                f"--allow-different: {_name(twin, key)} and {_name(key, twin)} of one run look "
                "alike: the match is ambiguous; allow less, or compare runs with fewer cells"
            )
    return by_axes


def _allowed_in_keys(
    matched: Iterable[tuple[CellKey, CellKey]], allowed: Collection[str]
) -> Iterator[RunDifference]:
    """Axes in which matched cells differ, each under one word of --allow-different."""
    for before, after in matched:
        differing = _differing(before, after)
        words = [word for word in _AXES_OF_WORD if word in allowed]
        # A method may differ under the word of the drafter or of the engine, whichever differs.
        for word in sorted(words, key=lambda word: _AXES_OF_WORD[word][0] not in differing):
            names = [name for name in _AXES_OF_WORD[word] if name in differing]
            if names:
                differing -= set(names)
                yield RunDifference(word, _shown(before, names[0]), _shown(after, names[0]))


def _why_unmatched(
    key: CellKey, unmatched: Sequence[CellKey], planned: Sequence[CellKey]
) -> RunDifference:
    """The difference between a cell without a match and the most similar one of the other side.

    `unmatched` are the cells of the other side without a match, `planned` are all of its cells.
    """
    nearest = min(unmatched, key=lambda other: len(_differing(key, other)), default=None)
    differing = _differing(key, nearest) if nearest else set()
    words = [word for word, names in _AXES_OF_WORD.items() if names[0] in differing]
    if nearest is None or len(words) != 1 or "workload" in differing:
        return RunDifference(CELLS, _name(key, *planned), "not planned")
    name = _AXES_OF_WORD[words[0]][0]
    return RunDifference(words[0], _shown(key, name), _shown(nearest, name))


def _name(key: CellKey, *among: CellKey) -> str:
    """The cell's label, and the axes in which it differs from other cells of the same label."""
    name = key.label
    alike = [other for other in among if other != key and other.label == name]
    differing = {name for other in alike for name in _differing(key, other)}
    words = (word for word, names in _AXES_OF_WORD.items() if names[0] in differing)
    extra = (f"{word} {_shown(key, _AXES_OF_WORD[word][0])}" for word in words)
    return ", ".join((name, *extra))


def _differing(first: CellKey, second: CellKey) -> set[str]:
    return {name for name in _AXES if AXES[name].of(first) != AXES[name].of(second)}


def _shown(key: CellKey, name: str) -> str:
    return key.draft.length.label if name in _AXES_OF_WORD["K"] else str(AXES[name].of(key))


def _other_prompts(pairs: Sequence[CellPair], *, is_complete: bool) -> Iterator[RunDifference]:
    """A difference per workload; prompts that an incomplete run lacks do not count."""
    seen = set()
    for before, after in pairs:
        workload = before.key.condition.workload
        if after is None or after.problems or before.problems or workload in seen:
            continue
        ours, theirs = (set(cell.prompts or cell.units) for cell in (before, after))
        if ours != theirs and (is_complete or not theirs < ours):
            seen.add(workload)
            yield RunDifference(
                PROMPTS, _prompts_text(before, ours - theirs), _prompts_text(after, theirs - ours)
            )


def _other_ids(pairs: Sequence[CellPair]) -> Iterator[RunDifference]:
    """A difference per workload whose prompts have other token ids, if no date explains them."""
    seen = set()
    for before, after in pairs:
        workload = before.key.condition.workload
        changed = before.changed_prompts(after) if after else ()
        if after is None or not changed or workload in seen or before.shows_clock(after):
            continue
        seen.add(workload)
        first = changed[0]
        changes = f"{len(changed)} of {len(before.prompt_sha256)} in {workload}, first {first}"
        old, new = (f"token ids {cell.prompt_sha256[first]}" for cell in (before, after))
        yield RunDifference(PROMPTS, f"{changes}: {old}", new)


def _prompts_text(cell: CellFigures, missing: set[str]) -> str:
    """`missing`: prompts that the other side does not have."""
    names = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
    missing_text = f" ({names} only here)" if missing else ""
    return f"{len(cell.prompts or cell.units)} of {cell.key.condition.workload}{missing_text}"
