"""What forecasts are about, and which of them share round costs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specbench.bench.blocks import Cell
from specbench.bench.plan import TargetPlan
from specbench.bench.round_costs import Costed
from specbench.forecast.forecast import Effort, middle_context, replayed
from specbench.inputs.pairing import Pairing
from specbench.records import CellKey, Condition, TraceRecord
from specbench.stats.acceptance import RoundCounts

_ALIKE = 256  # tokens of context: within so many, and within doublings beyond, costs are shared


class DraftedCells(NamedTuple):
    """What one forecast is about: a drafter under a condition."""

    pairing: Pairing
    condition: Condition
    cells: tuple[Cell, ...]  # its K > 0, of one fixed K each
    traces: list[TraceRecord]

    @property
    def key(self) -> CellKey:
        """The deepest K's: forecasts go by it."""
        return max((c.key for c in self.cells), key=lambda key: key.draft.k)

    @property
    def ks(self) -> list[int]:
        return [cell.key.draft.k for cell in self.cells]


def sharing_costs(found: Iterable[DraftedCells]) -> list[list[DraftedCells]]:
    """Groups that differ in workload and drafter alone, and whose contexts are alike."""
    groups: dict[tuple[object, ...], list[DraftedCells]] = {}
    for drafted in found:
        same = drafted.cells[0].key.condition.without("workload")
        size = max(middle_context(drafted.traces), _ALIKE)
        groups.setdefault((same, (size - 1).bit_length()), []).append(drafted)
    return list(groups.values())


def costed(plan: TargetPlan, group: Sequence[DraftedCells]) -> list[Costed]:
    """A cell for each drafter and K, the first of its workloads, and one without drafts."""
    cells: dict[tuple[str, int], Cell] = {}
    ids: dict[tuple[str, int], list[str]] = {}
    rounds: dict[tuple[str, int], list[RoundCounts]] = {}
    swept: defaultdict[tuple[str, int], float] = defaultdict(float)  # rounds of the whole sweep
    for drafted in group:
        baseline = next(c for c in plan.cells(drafted.condition) if c.key.is_baseline)
        repeats = effort(plan, drafted).sweep
        for cell in (baseline, *drafted.cells):
            place = (cell.drafter, cell.key.draft.k)
            replay = replayed(drafted.traces, cell.key.draft.k)
            if replay is None or cell.key.id in ids.get(place, ()):
                continue
            cells.setdefault(place, cell)
            ids.setdefault(place, []).append(cell.key.id)
            rounds.setdefault(place, []).append(replay.pooled)
            swept[place] += repeats * replay.pooled.num_rounds
    return [
        Costed(
            cell=cell,
            cell_ids=tuple(ids[place]),
            tokens_per_round=max(r.num_emitted / r.num_rounds for r in rounds[place]),
            num_rounds=swept[place],
        )
        for place, cell in cells.items()
    ]


def effort(
    plan: TargetPlan, drafted: DraftedCells, *, trace_s: float = 0.0, costs_s: float = 0.0
) -> Effort:
    """How much decoding each traced prompt stands for, in the sweep and after the forecast."""
    condition = drafted.condition
    repeats: float = plan.repeats(condition)
    workload = plan.workload(condition.workload)
    num_traced = len({trace.prompt_id for trace in drafted.traces})
    if condition.is_stream:  # rows decode side by side
        share = len(plan.pass_prompts(workload, condition)) / condition.concurrency
        sweep = after = repeats * share / num_traced
    else:
        sweep = repeats * len(plan.prompts(workload)) / num_traced
        after = repeats * len(plan.after_forecast(workload)) / num_traced
    return Effort(sweep=sweep, after=after, trace_s=trace_s, costs_s=costs_s)
