"""Plans of schema 4 and earlier, made before it was known how far drafters draft ahead.

Such a run.json has K that nobody asked for and that were never measured. Reading it makes the
plan final, as later runs store it; nothing else rewrites a plan.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from specbench.records import Auto, CellPlan, EngineRecord, Fixed, RunRecord, too_deep

LAST_SCHEMA = 4  # whose plans were not final

Depths = Mapping[tuple[str, str], int]  # target and drafter -> the deepest K of those with one


@dataclass(frozen=True, kw_only=True, slots=True)
class OldCellPlan(CellPlan):
    """A line of such a plan."""

    is_default_k: bool = False  # nobody asked for this K; unknown in the earliest runs


@dataclass(frozen=True, kw_only=True, slots=True)
class OldRunRecord(RunRecord):
    """Its run.json."""

    cells: tuple[OldCellPlan, ...]

    def final(self, depths: Depths) -> RunRecord:
        """With the plan that was measured: a default K is lowered to what its drafter can draft,
        deeper ones of a default range are left out, and a warning says so."""
        run = RunRecord(**{field.name: getattr(self, field.name) for field in fields(RunRecord)})
        deeper: dict[str, list[int]] = {}
        cells = []
        for plan in self.cells:
            key, k = plan.key, plan.key.draft.k
            most = min(k, depths.get((key.condition.target, key.draft.drafter), k))
            if most < k and self.settings.draft.is_default_range and key.draft.is_fixed:
                deeper.setdefault(key.pairing, []).append(k)
                continue
            if plan.is_default_k:
                key = key.at(Fixed(most) if key.draft.is_fixed else Auto(most))
            cells.append(
                CellPlan(key=key, num_prompts=plan.num_prompts, num_repeats=plan.num_repeats)
            )
        warnings = tuple(too_deep(pairing, min(ks)) for pairing, ks in deeper.items())
        return replace(run, cells=tuple(cells), warnings=(*self.warnings, *warnings))


def depths_found(records: Iterable[object]) -> Depths:
    """By the engines of a run, whose records came with their drafters."""
    engines = (record for record in records if isinstance(record, EngineRecord))
    return {(e.target, name): k for e in engines for name, k in e.max_k.items()}
