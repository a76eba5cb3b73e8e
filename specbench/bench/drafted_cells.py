"""The cells of a forecast, and the groups of forecasts that share round costs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specbench.bench.blocks import Cell
from specbench.bench.plan import TargetPlan
from specbench.bench.round_costs import TimedCell
from specbench.forecast.forecast import Effort, middle_context, replayed
from specbench.inputs.pairing import Pairing
from specbench.records import CellKey, Condition, TraceRecord
from specbench.stats.rounds import RoundCounts

_ALIKE = 256  # tokens of context: up to it, and within each doubling beyond, costs are shared


class DraftedCells(NamedTuple):
    """The cells of one forecast: a drafter under a condition."""

    pairing: Pairing
    condition: Condition
    cells: tuple[Cell, ...]  # one per fixed K > 0
    traces: list[TraceRecord]

    @property
    def key(self) -> CellKey:
        """The key of the deepest K, which identifies the forecast."""
        return max((c.key for c in self.cells), key=lambda key: key.draft.k)

    @property
    def ks(self) -> list[int]:
        return [cell.key.draft.k for cell in self.cells]


def sharing_costs(forecasts: Iterable[DraftedCells]) -> list[list[DraftedCells]]:
    """Groups with similar contexts that differ only in workload and drafter."""
    groups: dict[tuple[object, ...], list[DraftedCells]] = {}
    for drafted in forecasts:
        same = drafted.cells[0].key.condition.without("workload")
        size = max(middle_context(drafted.traces), _ALIKE)
        groups.setdefault((same, (size - 1).bit_length()), []).append(drafted)
    return list(groups.values())


def timed_cells(plan: TargetPlan, group: Sequence[DraftedCells]) -> list[TimedCell]:
    """A cell for each drafter and K, from the first workload that has it, and one at K = 0."""
    cells: dict[tuple[str, int], Cell] = {}
    ids: dict[tuple[str, int], list[str]] = {}
    rounds: dict[tuple[str, int], list[RoundCounts]] = {}
    swept: defaultdict[tuple[str, int], float] = defaultdict(float)  # rounds of the whole sweep
    for drafted in group:
        baseline = next(c for c in plan.cells(drafted.condition) if c.key.is_baseline)
        repeats = effort(plan, drafted).sweep
        for cell in (baseline, *drafted.cells):
            at = (cell.drafter, cell.key.draft.k)
            replay = replayed(drafted.traces, cell.key.draft.k)
            if replay is None or cell.key.id in ids.get(at, ()):
                continue
            cells.setdefault(at, cell)
            ids.setdefault(at, []).append(cell.key.id)
            rounds.setdefault(at, []).append(replay.pooled)
            swept[at] += repeats * replay.pooled.num_rounds
    return [
        TimedCell(
            cell=cell,
            cell_ids=tuple(ids[at]),
            tokens_per_round=max(r.num_emitted / r.num_rounds for r in rounds[at]),
            num_rounds=swept[at],
        )
        for at, cell in cells.items()
    ]


def effort(
    plan: TargetPlan, drafted: DraftedCells, *, trace_s: float = 0.0, costs_s: float = 0.0
) -> Effort:
    """The decoding that each traced prompt represents, in the sweep and after the forecast."""
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
