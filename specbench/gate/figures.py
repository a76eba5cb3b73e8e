"""Figures that the gate compares: a cell's metrics with their leave-one-out values, and its texts.

The leave-one-out values give a jackknife interval of any metric, and of the ratio of two runs, so
no metric needs code here. Greedy texts are compared as short digests.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from specbench.gate.tolerances import entry_name
from specbench.metrics.cell import CellData, finished, identity_of
from specbench.metrics.registry import Value, all_metrics
from specbench.metrics.validity import judge_cell
from specbench.records import CellKey, CellSummary, Reason, RequestRecord

_PER_DIGEST = 16  # tokens, or words: locates the first difference without the text
_DIGEST_LENGTH = 6
_WORDS = "words "  # begins the digests of a text whose tokens are unknown


def texts_of(cell: CellData) -> Mapping[str, str]:
    """Digests of the output of every prompt, turn by turn; equal repeats count once.

    Empty if the text of a cell need not repeat. A server's prompts are left out if their repeats
    differ.
    """
    if not _repeats_exactly(cell):
        return {}
    by_prompt: dict[str, list[RequestRecord]] = {}
    for request in sorted(cell.finished, key=identity_of):
        by_prompt.setdefault(request.prompt_id, []).append(request)
    return {
        prompt: _digests(requests)
        for prompt, requests in by_prompt.items()
        if not cell.servers or _agree(requests)
    }


def are_comparable(before: str, after: str) -> bool:
    """Whether two digests are both of token ids, or both of words."""
    return before.startswith(_WORDS) == after.startswith(_WORDS)


def first_difference(before: str, after: str) -> str:
    """The first difference of two comparable digests, from 1: `tokens 17 to 32`, or words."""
    unit = "words" if before.startswith(_WORDS) else "tokens"
    ours, theirs = (text.removeprefix(_WORDS).split() for text in (before, after))
    pairs = enumerate(zip(ours, theirs, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    return f"{unit} {start * _PER_DIGEST + 1} to {(start + 1) * _PER_DIGEST}"


def _repeats_exactly(cell: CellData) -> bool:
    """Whether the output is the same for any drafts: greedy, and independent of timing, such as
    the requests that a server batches together."""
    key = cell.key
    is_free = (
        key.draft.is_adaptive
        or key.condition.request_rate is not None
        or key.draft.lossy is not None
        or (bool(cell.servers) and key.condition.is_stream)
    )
    return key.condition.temperature == 0 and not is_free


def _pieces(request: RequestRecord) -> tuple[object, ...]:
    """Token ids, or words if there are none."""
    if request.output_ids or request.text is None:
        return request.output_ids
    return tuple(request.text.split())


def _agree(requests: Iterable[RequestRecord]) -> bool:
    texts = {(request.turn, _pieces(request)) for request in requests}
    return len(texts) == len({turn for turn, _ in texts})


def _digests(requests: Sequence[RequestRecord]) -> str:
    turns = dict.fromkeys((request.turn, _pieces(request)) for request in requests)
    text = [piece for _, pieces in turns for piece in pieces]
    parts = (text[start : start + _PER_DIGEST] for start in range(0, len(text), _PER_DIGEST))
    digests = " ".join(
        hashlib.sha256(repr(part).encode()).hexdigest()[:_DIGEST_LENGTH] for part in parts
    )
    has_words = any(not request.output_ids and request.text for request in requests)
    return f"{_WORDS if has_words else ''}{digests}"


_DIGITS = 7  # significant; far below noise, and the same on both sides of a comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A metric of a cell, with its leave-one-out values."""

    value: float
    # Without each unit, in their order; (): no unit changes it; None: undefined without some unit.
    without: tuple[float, ...] | None = None
    deviation: float | None = None  # relative, between runs; None: of a single run


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFigures:
    """The figures of a cell and its units.

    Units are prompts, passes if requests overlap, or cycles of a server; imported cells have none.
    """

    key: CellKey
    units: tuple[str, ...]
    num_tokens: tuple[float, ...]  # output tokens of each unit: its weight
    figures: Mapping[str, Figure]
    texts: Mapping[str, str] = field(default_factory=dict)  # prompt -> digests of its output
    problems: tuple[Reason, ...] = ()  # why the cell is not valid
    prompts: tuple[str, ...] = ()  # of a server, sent in every cycle
    prompt_sha256: Mapping[str, str] = field(default_factory=dict)  # of token ids, if known
    has_server_clock: bool = False  # prompts may contain a date that the server chose

    def __post_init__(self) -> None:
        """Raises ValueError if a column is not as long as the units, as in an edited file."""
        columns = [self.num_tokens, *(figure.without for figure in self.figures.values())]
        if any(len(column) != len(self.units) for column in columns if column):
            raise ValueError(f"columns of {self.key.label} differ in length from its units")

    @property
    def has_cycles(self) -> bool:
        """Whether units are cycles of a server, which are not paired with those of another run."""
        return bool(self.prompts)

    def changed_prompts(self, other: "CellFigures") -> tuple[str, ...]:
        """Prompts whose token ids are known in both cells and differ."""
        common = self.prompt_sha256.keys() & other.prompt_sha256.keys()
        return tuple(p for p in sorted(common) if self.prompt_sha256[p] != other.prompt_sha256[p])

    def shows_clock(self, other: "CellFigures") -> bool:
        """Whether different token ids may come from a date that a server printed into prompts."""
        return self.has_server_clock or other.has_server_clock

    def value(self, name: str) -> float | None:
        figure = self.figures.get(name)
        return None if figure is None else figure.value

    def series(self, name: str) -> tuple[float, ...]:
        """The values of a metric that is a list."""
        values: list[float] = []
        while (value := self.value(entry_name(name, len(values) + 1))) is not None:
            values.append(value)
        return tuple(values)


def cell_figures(cell: CellData, names: Collection[str] | None = None) -> CellFigures:
    """The figures of a cell: those of `names`, or else of all metrics with a better direction."""
    units = _units(cell)
    chosen = [m for m in all_metrics().values() if m.better and (names is None or m.name in names)]
    rest = [_without_unit(cell, unit) for unit in units]
    figures = {}
    for metric in chosen:
        whole = _named(metric.name, metric.function(cell))
        parts = [_named(metric.name, metric.function(other)) for other in rest] if whole else []
        for name, value in whole.items():
            left = tuple(part[name] for part in parts if name in part)
            varies = any(other != value for other in left)
            is_complete = len(left) == len(units)
            without = (left if varies else ()) if is_complete else None
            figures[name] = Figure(value=value, without=without)
    return CellFigures(
        key=cell.key,
        units=units,
        num_tokens=tuple(
            float(sum(r.num_output_tokens for r in finished(_of_unit(cell, unit).requests)))
            for unit in units
        ),
        figures=figures,
        texts=texts_of(cell),
        problems=judge_cell(cell),
        prompts=tuple(sorted({r.prompt_id for r in cell.finished})) if cell.servers else (),
        prompt_sha256=dict(_prompt_sha256(cell.finished)),
        has_server_clock=any(s.template_clock in (None, "server") for s in cell.servers),
    )


def _prompt_sha256(requests: Sequence[RequestRecord]) -> Iterator[tuple[str, str]]:
    """Hashes of first turns, whose ids do not depend on earlier outputs."""
    hashes: dict[str, set[str]] = {}
    for request in requests:
        if request.turn == 0 and request.prompt_sha256 is not None:
            hashes.setdefault(request.prompt_id, set()).add(request.prompt_sha256)
    return ((prompt, " ".join(sorted(values))) for prompt, values in sorted(hashes.items()))


def imported_figures(summary: CellSummary) -> CellFigures:
    """The figures of a cell that another tool measured."""
    named = {
        n: v for name, value in summary.metrics.items() for n, v in _named(name, value).items()
    }
    return CellFigures(
        key=summary.key,
        units=(),
        num_tokens=(),
        figures={name: Figure(value=value) for name, value in named.items()},
        problems=summary.invalid_reasons,
    )


def _units(cell: CellData) -> tuple[str, ...]:
    if cell.servers:
        return tuple(_cycle_name(cycle) for cycle in sorted(set(cell.cycles.values())))
    if cell.key.condition.is_stream:
        served = (i for i, each in enumerate(cell.passes) if finished(each.requests))
        return tuple(f"pass {i}" for i in served)
    return tuple(sorted({request.prompt_id for request in cell.finished}))


class _UnitRequests(NamedTuple):
    """Requests of a unit, of the cell and of its K = 0."""

    requests: tuple[RequestRecord, ...]
    baseline: tuple[RequestRecord, ...]


def _cycle_name(cycle: int) -> str:
    return f"cycle {cycle}"


def _of_unit(cell: CellData, unit: str) -> _UnitRequests:
    if cell.servers:
        repeats = {repeat for repeat, cycle in cell.cycles.items() if _cycle_name(cycle) == unit}
        both = (tuple(r for r in s if r.repeat in repeats) for s in (cell.requests, cell.baseline))
        return _UnitRequests(*both)
    if not cell.key.condition.is_stream:
        both = (tuple(r for r in s if r.prompt_id == unit) for s in (cell.requests, cell.baseline))
        return _UnitRequests(*both)
    # A pass may serve one prompt several times; each time is a separate repeat.
    served = cell.passes[int(unit.removeprefix("pass "))]
    base = (p.requests for p in cell.baseline_passes if p.name == served.name)
    return _UnitRequests(served.requests, tuple(r for each in base for r in each))


def _without_unit(cell: CellData, unit: str) -> CellData:
    of = _of_unit(cell, unit)
    gone, base_gone = (set(map(identity_of, side)) for side in (of.requests, of.baseline))

    def kept(
        requests: tuple[RequestRecord, ...], leave: set[tuple[str, int, int, int]]
    ) -> tuple[RequestRecord, ...]:
        return tuple(r for r in requests if identity_of(r) not in leave)

    return replace(
        cell,
        requests=kept(cell.requests, gone),
        baseline=kept(cell.baseline, base_gone),
        passes=tuple(p for p in cell.passes if kept(p.requests, gone)),
        baseline_passes=tuple(p for p in cell.baseline_passes if kept(p.requests, base_gone)),
        servers=tuple(s for s in cell.servers if _cycle_name(s.cycle) != unit),
        baseline_servers=tuple(s for s in cell.baseline_servers if _cycle_name(s.cycle) != unit),
        cycles={r: cycle for r, cycle in cell.cycles.items() if _cycle_name(cycle) != unit},
    )


def _named(name: str, value: Value | None) -> dict[str, float]:
    if value is None:
        return {}
    if isinstance(value, tuple):
        return {entry_name(name, i): rounded(entry) for i, entry in enumerate(value, start=1)}
    return {name: rounded(value)}


def rounded(value: float) -> float:
    """The value to _DIGITS significant digits, as both sides of a comparison have it."""
    return float(f"{value:.{_DIGITS}g}")
