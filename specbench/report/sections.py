"""A document in sections, one per condition with all its drafters."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from specbench.decide.rank import RankedDrafter, answer_of
from specbench.decide.recommend import lower_bound
from specbench.forecast.forecast_check import CheckedForecast
from specbench.records import CellKey, CellSummary, Condition, Decision, Reason, SpeedupVerdict
from specbench.report.document import Document

_PER_POSITION = "acceptance_rate_per_position"


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One condition with its measured cells."""

    condition: Condition
    title: str  # the workload and what else distinguishes it from the other sections
    undrafted: tuple[CellSummary, ...]  # every K = 0 that was measured
    cells: tuple[CellSummary, ...]  # every K > 0, by pairing in the order of the plan, then by K
    decisions: tuple[Decision, ...]  # one per measured pairing
    forecasts: tuple[CheckedForecast, ...]
    has_drafts: bool  # whether a K > 0 was planned
    lacks_drafters: bool  # whether a planned drafter has no measurement, so that it may be faster
    names_pairings: bool  # whether an answer must say which pairing it is about
    mark: str = ""  # the suffix of every answer of a synthetic run

    @property
    def baseline(self) -> CellSummary | None:
        """The cell that the others are compared with; None if it was not measured."""
        return next((cell for cell in self.undrafted if cell.key.is_baseline), None)

    @property
    def is_stream(self) -> bool:
        """Whether requests overlap."""
        return any(cell.key.condition.is_stream for cell in self.measured)

    @property
    def best(self) -> Decision | None:
        """The helping drafter with the highest lower bound; None if none helps.

        A lossy drafter counts only if no lossless one helps.
        """
        helping = [d for d in self.decisions if d.verdict is SpeedupVerdict.FASTER]
        lossless = [d for d in helping if d.leader.draft.lossy is None]
        return max(lossless or helping, key=lower_bound, default=None)

    @property
    def measured(self) -> tuple[CellSummary, ...]:
        """All measured cells, K = 0 first."""
        return (*self.undrafted, *self.cells)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the cells measured here, in the order of the plan."""
        return tuple(dict.fromkeys(cell.key.source for cell in self.cells))

    def of(self, label: str) -> tuple[CellSummary, ...]:
        """The K > 0 cells of one label, an adaptive one included."""
        return tuple(cell for cell in self.cells if cell.key.source == label)

    def fixed(self, label: str) -> tuple[CellSummary, ...]:
        """The cells of one label with a fixed K > 0."""
        return tuple(cell for cell in self.of(label) if cell.key.draft.is_fixed)

    @property
    def deepest(self) -> tuple[CellSummary, ...]:
        """Each label's valid cell of the largest fixed K whose rounds are known."""
        known = (
            c
            for c in self.cells
            if c.valid and c.key.draft.is_fixed and c.metrics.get(_PER_POSITION)
        )
        return tuple({cell.key.source: cell for cell in known}.values())

    def is_chosen(self, key: CellKey) -> bool:
        """Whether a decision recommends this cell."""
        return any(d.draft.k and d.leader == key for d in self.decisions)


def sections(document: Document) -> tuple[Section, ...]:
    """One section per planned condition, in the order of the plan."""
    planned = document.run.keys
    conditions = tuple(dict.fromkeys(key.condition for key in planned))
    labels = {(k.condition.target, k.source) for k in planned if k.draft.k > 0}
    return tuple(
        _section(document, at, conditions, sum(target == at.target for target, _ in labels))
        for at in conditions
    )


def _section(
    document: Document, condition: Condition, conditions: Collection[Condition], num_labels: int
) -> Section:
    cells = [cell for cell in document.cells if cell.key.condition == condition]
    planned = [key for key in document.run.keys if key.condition == condition]
    return Section(
        condition=condition,
        title=setting_name(condition, conditions),
        undrafted=tuple(c for c in cells if c.key.draft.k == 0),
        cells=tuple(c for c in cells if c.key.draft.k > 0),
        decisions=tuple(d for d in document.decisions if d.condition == condition),
        forecasts=tuple(f for f in document.forecasts if f.forecast.key.condition == condition),
        has_drafts=any(key.draft.k > 0 for key in planned),
        lacks_drafters=bool(unmeasured_drafters(document, condition)),
        names_pairings=num_labels > 1,
        mark=document.mark,
    )


def unmeasured_drafters(document: Document, at: Condition | None = None) -> tuple[str, ...]:
    """The planned drafters without a measurement at a setting, or at any, which may be faster."""
    measured = {(cell.key.condition, cell.key.source) for cell in document.cells}
    missing = (key for key in document.missing if key.draft.k and at in (None, key.condition))
    names = (k.source for k in missing if (k.condition, k.source) not in measured)
    return tuple(dict.fromkeys(names))


def answer_about(
    ranked: Sequence[RankedDrafter], document: Document
) -> tuple[SpeedupVerdict, tuple[Reason, ...]]:
    """The answer of a run that ranks drafters, which is open while one was not measured."""
    settings = document.run.settings
    raced = settings.effort.budget_s is not None and settings.load.served
    return answer_of(
        ranked,
        lacks_drafters=bool(unmeasured_drafters(document)),
        more="--time-budget" if raced else "--num-prompts",
    )


def by_setting(all_sections: tuple[Section, ...]) -> tuple[tuple[Section, ...], ...]:
    """The sections in groups that differ only in the workload, which share a chart."""
    groups: dict[Condition, list[Section]] = {}
    for section in all_sections:
        groups.setdefault(section.condition.without("workload"), []).append(section)
    return tuple(map(tuple, groups.values()))


def main_rows(section: Section) -> Section:
    """The section with only each drafter's decided K."""
    leaders = {decision.leader for decision in section.decisions}
    kept = (cell for cell in section.cells if cell.key in leaders or not leaders)
    return replace(section, cells=tuple(kept))


def setting_name(condition: Condition, among: Collection[Condition]) -> str:
    """The workload, and what else distinguishes a condition from the others."""
    return ", ".join(condition.distinct_parts(among, also="workload"))


def drafter_of(label: str) -> str:
    """A label without its target."""
    return label.rsplit("/", 1)[-1]
