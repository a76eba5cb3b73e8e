"""A document cut by question: one target and workload under one setting, all its drafters."""

from collections.abc import Collection
from dataclasses import dataclass

from specbench.decide.recommend import Recommendation, Verdict, judge
from specbench.forecast.forecast_check import CheckedForecast
from specbench.metrics.cell_names import label_of, requests_at_once
from specbench.metrics.setting import Setting, is_baseline, is_stream, setting_of
from specbench.records import NO_DRAFTER, CellKey, CellSummary, Decision
from specbench.report.document import Document

_PER_POSITION = "acceptance_rate_per_position"


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One question and what was measured to answer it."""

    question: Setting
    title: str  # the workload and whatever else tells it from the other sections
    undrafted: tuple[CellSummary, ...]  # every K = 0 that was measured
    cells: tuple[CellSummary, ...]  # every K > 0, by pairing in the order of the plan, then by K
    decisions: tuple[Recommendation, ...]  # one for each pairing that was measured
    forecasts: tuple[CheckedForecast, ...]
    names_pairings: bool  # whether an answer must say which pairing it is about
    mark: str = ""  # what an answer ends with where nothing real was decoded

    @property
    def baseline(self) -> CellSummary | None:
        """The cell that the others are compared with; None where it was not measured."""
        return next((cell for cell in self.undrafted if is_baseline(cell.key)), None)

    @property
    def is_stream(self) -> bool:
        """Whether requests overlap."""
        return any(is_stream(cell.key) for cell in self.measured)

    @property
    def best(self) -> Recommendation | None:
        """Of the drafters that help the one with the highest lower bound; None if none does.

        A lossy one is only taken where no lossless one helps.
        """
        helping = [d for d in self.decisions if verdict_of(d) is Verdict.HELPS]
        lossless = [d for d in helping if d.leader.lossy is None]
        return max(lossless or helping, key=_lower_bound, default=None)

    @property
    def measured(self) -> tuple[CellSummary, ...]:
        """K = 0, where it was measured, and every other cell."""
        return (*self.undrafted, *self.cells)

    @property
    def series(self) -> tuple[str, ...]:
        """The labels of the cells measured here, in the order of the plan."""
        return tuple(dict.fromkeys(label_of(cell.key) for cell in self.cells))

    def of(self, label: str) -> tuple[CellSummary, ...]:
        """The K > 0 cells of one label, an adaptive one included."""
        return tuple(cell for cell in self.cells if label_of(cell.key) == label)

    def fixed(self, label: str) -> tuple[CellSummary, ...]:
        """The cells of one label with a fixed K > 0."""
        return tuple(cell for cell in self.of(label) if not cell.key.adaptive)

    @property
    def deepest(self) -> tuple[CellSummary, ...]:
        """Each label's valid cell of the largest fixed K whose rounds are known."""
        known = (
            c for c in self.cells if c.valid and not c.key.adaptive and c.metrics.get(_PER_POSITION)
        )
        return tuple({label_of(cell.key): cell for cell in known}.values())

    def is_chosen(self, key: CellKey) -> bool:
        """Whether a decision recommends this cell."""
        return any(d.method != NO_DRAFTER and d.leader == key for d in self.decisions)


def sections(document: Document) -> tuple[Section, ...]:
    """Every question the run set out to answer, in the order of the plan."""
    planned = [plan.key for plan in document.run.cells]
    questions = tuple(dict.fromkeys(map(setting_of, planned)))
    labels = {(k.target, label_of(k)) for k in planned if k.num_speculative_tokens > 0}
    return tuple(
        _section(
            document, question, questions, sum(target == question.target for target, _ in labels)
        )
        for question in questions
    )


def _section(
    document: Document, question: Setting, questions: Collection[Setting], num_labels: int
) -> Section:
    cells = [cell for cell in document.cells if setting_of(cell.key) == question]
    return Section(
        question=question,
        title=", ".join(parts_told_apart(question, questions, also="workload")),
        undrafted=tuple(c for c in cells if c.key.num_speculative_tokens == 0),
        cells=tuple(c for c in cells if c.key.num_speculative_tokens > 0),
        decisions=tuple(d for d in document.decisions if setting_of(d.leader) == question),
        forecasts=tuple(f for f in document.forecasts if setting_of(f.forecast.key) == question),
        names_pairings=num_labels > 1,
        mark=document.mark,
    )


def by_setting(all_sections: tuple[Section, ...]) -> tuple[tuple[Section, ...], ...]:
    """Sections that differ in the workload alone, which share a figure."""
    groups: dict[Setting, list[Section]] = {}
    for section in all_sections:
        groups.setdefault(section.question._replace(workload=""), []).append(section)
    return tuple(map(tuple, groups.values()))


def setting_title(question: Setting, *, with_rows: bool = True) -> str:
    """Such as `demo, temperature 0, one request at a time, float32, builtin engine`."""
    parts = (
        question.target,
        f"temperature {question.temperature:g}",
        requests_at_once(question) if with_rows else "",
        _context(question) if question.context is not None else "",
        question.dtype,
        f"{question.engine} engine" if question.engine else "",
    )
    return ", ".join(filter(None, parts))


def parts_told_apart(
    setting: Setting, among: Collection[Setting], *, also: str = ""
) -> tuple[str, ...]:
    """What tells a setting from the others, in words, and what `also` names."""
    parts = {
        "target": setting.target,
        "workload": setting.workload,
        "temperature": f"temperature {setting.temperature:g}",
        "concurrency": requests_at_once(setting),
        "request_rate": _rate(setting),
        "num_samples": _samples(setting),
        "context": _context(setting),
        "dtype": setting.dtype,
        "engine": setting.engine,
    }
    varying = {name for name in parts if len({getattr(s, name) for s in among}) > 1}
    if "concurrency" in varying and setting.concurrency:
        varying.discard("request_rate")  # which the words for the rows have, too
    return tuple(text for name, text in parts.items() if name in varying | {also})


def drafter_of(label: str) -> str:
    """A label without the target, which is enough where the target is known."""
    return label.rsplit("/", 1)[-1]


def verdict_of(decision: Decision) -> Verdict:
    """Which of the three answers a decision gives."""
    return judge(decision.speedup)


def _rate(setting: Setting) -> str:
    rate = setting.request_rate
    return "closed loop" if rate is None else f"{rate:g} requests per second"


def _context(setting: Setting) -> str:
    return "prompts unchanged" if setting.context is None else f"context {setting.context:,}"


def _samples(setting: Setting) -> str:
    n = setting.num_samples
    return "one sample" if n == 1 else f"best of {n}"


def _lower_bound(decision: Decision) -> float:
    return decision.speedup.low or 0.0 if decision.speedup else 0.0
