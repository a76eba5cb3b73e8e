"""Tables of text, which every report format prints, and the columns of the result tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from specbench.metrics.registry import all_metrics, number_of
from specbench.records import NO_DRAFTER, CellSummary, Condition
from specbench.report.sections import Section, drafter_of, setting_name
from specbench.words.numbers import (
    ABSENT,
    effect_text,
    k_text,
    list_of,
    measured,
    number,
    scale_of,
    significant,
    speedup_text,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A table of words and numbers with a title."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_names: int = 1  # leading columns of words
    num_remarks: int = 0  # trailing columns of text
    brief: Sequence[int] | None = None  # columns that fit a terminal; None: all
    marks: tuple[str, ...] = ()  # per row: chosen, invalid, worse, open or ""; empty: no marks

    @property
    def brief_columns(self) -> Sequence[int]:
        """The columns that a terminal shows, in order."""
        return range(len(self.headers)) if self.brief is None else self.brief

    def is_words(self, column: int) -> bool:
        """Whether a column contains words: names, remarks, and columns without a header."""
        return column < self.num_names or column in self._remarks or not self.headers[column]

    @property
    def _remarks(self) -> range:
        return range(len(self.headers) - self.num_remarks, len(self.headers))

    @property
    def wrapped(self) -> Sequence[int]:
        """The columns that a terminal may wrap: remarks of several words, or else names."""
        phrases = [i for i in self._remarks if any(" " in row[i] for row in self.rows)]
        return phrases or [i for i in range(self.num_names) if self.headers[i]]


def grid_of(
    title: str,
    *columns: tuple[str, Sequence[str]],
    num_names: int = 1,
    num_remarks: int = 0,
    brief: Sequence[int] | None = None,
    marks: Sequence[str] = (),
) -> Grid:
    """A table of columns, each a header with its texts."""
    headers, texts = zip(*columns, strict=True)
    return Grid(
        title=title,
        headers=headers,
        rows=tuple(zip(*texts, strict=True)),
        num_names=num_names,
        num_remarks=num_remarks,
        brief=brief,
        marks=tuple(marks),
    )


def setting_column(conditions: Sequence[Condition]) -> tuple[str, Sequence[str]]:
    """The names of settings, as the first column of a table."""
    return "", [setting_name(condition, conditions) for condition in conditions]


class Legend(NamedTuple):
    """Headers and their meanings; a terminal shows those of `brief`."""

    entries: Sequence[tuple[str, str]]
    brief: frozenset[str]

    def shown(self, *, is_brief: bool) -> Sequence[tuple[str, str]]:
        """All entries, or only those that a terminal shows."""
        return [entry for entry in self.entries if not is_brief or entry[0] in self.brief]


def _shares(cell: CellSummary, *names: str) -> str | None:
    """Shares of a round's time, such as `12/83%`; None if a part is unknown."""
    whole = number_of(cell.metrics, "round_s")
    parts = [number_of(cell.metrics, name) for name in names]
    known = [part for part in parts if part is not None]
    if not whole or len(known) < len(parts):
        return None
    return "/".join(f"{round(100 * part / whole)}" for part in known) + "%"


def _roofline(cell: CellSummary) -> str | None:
    least_s = number_of(cell.metrics, "roofline_round_s")
    ratio = number_of(cell.metrics, "roofline_ratio")
    if least_s is None or ratio is None:
        return None
    return f"{_milliseconds(least_s)} ({ratio:.2f}x)"


def _numbers(cell: CellSummary, *names: str) -> str | None:
    """Metrics with commas between them; None if all are unknown."""
    values = [number_of(cell.metrics, name) for name in names]
    if all(value is None for value in values):
        return None
    return ", ".join(ABSENT if value is None else significant(value) for value in values)


def _detectable_effect(cell: CellSummary) -> str | None:
    effect = cell.minimum_detectable_effect
    return None if effect is None else effect_text(effect)


def _k(cell: CellSummary) -> str:
    mean_k = number_of(cell.metrics, "mean_num_speculative_tokens")
    label = cell.key.draft.length.label
    return label if mean_k is None else f"{label} {mean_k:.1f}"


def _milliseconds(seconds: float) -> str:
    return significant(seconds * 1e3)


def _per_second(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1}f}"


class CellColumn(NamedTuple):
    """A column of a result table; `text` returns None if a cell has no such value."""

    header: str
    meaning: str
    text: Callable[[CellSummary], str | None]


def _with_values(
    columns: Sequence[CellColumn], cells: Sequence[CellSummary]
) -> tuple[CellColumn, ...]:
    """The columns for which at least one of the cells has a value."""
    return tuple(c for c in columns if any(c.text(cell) is not None for cell in cells))


def _texts(columns: Sequence[CellColumn], cell: CellSummary) -> tuple[str, ...]:
    """The cell's texts, with ABSENT for each missing value."""
    return tuple(ABSENT if text is None else text for text in (c.text(cell) for c in columns))


def _drafter_name(cell: CellSummary) -> str:
    """The drafter with its method if the engine has several for it; the method if none is named."""
    key = cell.key
    if key.draft.drafter == NO_DRAFTER:
        return key.draft.method
    return drafter_of(key.source)


def _mark(section: Section, cell: CellSummary) -> str:
    """`chosen`, `invalid` or nothing, so that color and weight are not the only signs."""
    if not cell.valid:
        return "invalid"
    return "chosen" if section.is_chosen(cell.key) else ""


def _is_tree(cell: CellSummary) -> bool:
    nodes = number_of(cell.metrics, "num_draft_nodes")
    return nodes is not None and nodes > cell.key.draft.k


_FORMS: Mapping[str, Callable[[float], str]] = {
    "tokens/s": _per_second,
    "requests/s": _per_second,
    "tokens/round": "{:.2f}".format,
    "tokens/request": "{:.1f}".format,
    "s": _milliseconds,
    "fraction": "{:.0%}".format,
    "x": "{:.2f}x".format,
    "J/token": significant,
    "bytes": lambda value: measured(value, "bytes"),
}


@cache
def _metric(name: str) -> CellColumn:
    """The column of a metric, with its declared label and meaning and the format of its unit."""
    known = all_metrics()[name]
    form = _FORMS.get(known.unit, "{:g}".format)
    return CellColumn(known.label, known.meaning, lambda cell: _formed(cell, name, form))


def _formed(cell: CellSummary, name: str, form: Callable[[float], str]) -> str | None:
    value = number_of(cell.metrics, name)
    return None if value is None else form(value)


_K = CellColumn("K", "maximum draft tokens per round, 0 without speculation; for auto the mean", _k)
_PROMPTS = CellColumn(
    "prompts",
    "prompts in the row; a time budget gives fewer to K that cannot win or that it has no time for",
    lambda cell: str(cell.num_prompts),
)
_SPEEDUP = CellColumn(
    "speedup [95%]",
    "decode seconds at K=0 / at K, same prompts, with 95% interval; for concurrent requests the "
    "ratio of tokens per second, for arrivals at a rate the ratio of seconds per token",
    lambda cell: speedup_text(cell.speedup) if cell.speedup else None,
)
_DETECTABLE = CellColumn(
    "min. detect. effect", "smallest effect that this comparison would detect", _detectable_effect
)
_RATE = CellColumn(
    "accept. rate",
    "accepted / drafted tokens",
    lambda cell: None if _is_tree(cell) else _formed(cell, "acceptance_rate", "{:.0%}".format),
)
# A round accepts one path, so the accepted share of a large tree is always small.
_OF_NODES = CellColumn(
    "of nodes",
    "accepted / drafted nodes of a tree; a round accepts one path of at most K nodes, so compare "
    "trees with other drafters by accept. length",
    lambda cell: _formed(cell, "acceptance_rate", "{:.1%}".format) if _is_tree(cell) else None,
)
_ALL = _metric("aggregate_tokens_per_s")
_ALL_IMPORTED = _ALL._replace(  # imported results have no busy time
    text=lambda cell: None if "busy_tokens_per_s" in cell.metrics else _ALL.text(cell),
)
_WHOLE = CellColumn(
    "end to end",
    "speedup including prefill of target and drafter; with concurrent requests over whole passes",
    lambda cell: speedup_text(cell.speedup_end_to_end) if cell.speedup_end_to_end else None,
)
_TOKENS_PER_S, _BUSY = _metric("decode_tokens_per_s"), _metric("busy_tokens_per_s")
_GOODPUT, _USER = _metric("goodput_requests_per_s"), _metric("user_tokens_per_s")
_TTFT, _LATENCY = _metric("ttft_s"), _metric("request_latency_s")
_ACCEPTED = (
    _metric("mean_acceptance_length"),
    _metric("mean_acceptance_length_of_engine"),
    _metric("num_checked_at_once"),
)
_COSTS = (_metric("break_even_length"), _RATE, _OF_NODES, _metric("round_s"))

TERMINAL_COLUMNS = (
    *(_K, _PROMPTS, _TOKENS_PER_S, _ALL_IMPORTED, _SPEEDUP, _GOODPUT, _DETECTABLE, _TTFT),
    *(*_ACCEPTED, _RATE, _OF_NODES),
)
TERMINAL_STREAM_COLUMNS = (
    *(_K, _BUSY, _ALL_IMPORTED, _SPEEDUP, _GOODPUT, _USER, _TTFT),
    *(_ACCEPTED[0], _ACCEPTED[2]),
)
PAGE_COLUMNS = (
    *(_K, _PROMPTS, _metric("num_cycles"), _TOKENS_PER_S, _ALL_IMPORTED, _SPEEDUP, _GOODPUT),
    *(_DETECTABLE, _WHOLE, _TTFT, _LATENCY, *_ACCEPTED, *_COSTS),
    CellColumn(
        "draft, verify, other",
        "shares of the round time",
        lambda cell: _shares(cell, "draft_s", "verify_s", "other_s"),
    ),
    _metric("overhead_ratio"),
    CellColumn(
        "roofline ms",
        "lower bound: time to read a round's weights and KV cache at the "
        "measured copy bandwidth; and the median round as a multiple of it",
        _roofline,
    ),
    _metric("bandwidth_utilization"),
    CellColumn(
        "launches, syncs",
        "kernel or graph launches and host syncs per round",
        lambda cell: _numbers(cell, "launches_per_round", "syncs_per_round"),
    ),
    *(_metric("device_idle_s"), _metric("joules_per_token")),
)
PAGE_STREAM_COLUMNS = (
    *(_K, _metric("num_passes"), _metric("num_cycles"), _BUSY, _SPEEDUP, _GOODPUT, _DETECTABLE),
    *(
        _ALL,
        _WHOLE,
        _USER,
        _TTFT,
        _metric("ttft_s_p95")._replace(header="p95"),
        _LATENCY,
        _metric("requests_per_s"),
    ),
    *(_metric("queue_s"), _metric("busy_share"), _metric("padding_efficiency")),
    *(*_ACCEPTED, *_COSTS, _metric("kv_bytes"), _metric("joules_per_token")),
)


def _terminal_columns(section: Section) -> tuple[CellColumn, ...]:
    """A section's columns on a terminal; prompts if they differ, else the detectable effect."""
    columns: Sequence[CellColumn] = TERMINAL_STREAM_COLUMNS
    if not section.is_stream:
        is_alike = len({cell.num_prompts for cell in section.measured}) == 1
        left_out = _PROMPTS if is_alike else _DETECTABLE
        columns = tuple(column for column in TERMINAL_COLUMNS if column is not left_out)
    return _with_values(columns, section.measured)


def _page_columns(section: Section) -> tuple[CellColumn, ...]:
    columns = PAGE_STREAM_COLUMNS if section.is_stream else PAGE_COLUMNS
    return _with_values(columns, section.measured)


_POSITION_KINDS = {
    "all rounds": "acceptance_rate_per_position",
    "rounds that got this far": "conditional_acceptance_rate",
}


def result_grid(section: Section) -> Grid:
    """A row per cell; the remarks after K mark the chosen and the invalid ones."""
    columns = _page_columns(section)
    k, *more = columns
    marks = tuple(_mark(section, cell) for cell in section.measured)
    index = {column.header: i + (1 if column is k else 2) for i, column in enumerate(columns)}
    brief = [index[c.header] for c in _terminal_columns(section)]
    return Grid(
        title=section.title,
        headers=("drafter", k.header, "", *(column.header for column in more)),
        rows=tuple(
            (_drafter_name(cell), *_texts([k], cell), mark, *_texts(more, cell))
            for cell, mark in zip(section.measured, marks, strict=True)
        ),
        brief=(0, *brief, 2),
        marks=marks,
    )


def result_legend(every: Sequence[Section]) -> Legend:
    """Headers and meanings of the columns of the result tables."""
    columns = dict.fromkeys(column for section in every for column in _page_columns(section))
    grids = [result_grid(section) for section in every if section.measured]
    brief = frozenset(grid.headers[i] for grid in grids for i in grid.brief_columns)
    return Legend([(c.header, c.meaning) for c in columns if c.meaning], brief)


def position_grid(section: Section) -> Grid | None:
    """Joint and conditional acceptance at each position; None if no rounds are known."""
    rows = [
        (cell, kind, list_of(cell.metrics, name))
        for cell in section.deepest
        for kind, name in _POSITION_KINDS.items()
    ]
    if not rows:
        return None
    depth = max(len(rates) for _, _, rates in rows)
    return Grid(
        title=section.title,
        headers=("drafter", "share of", "K", *map(str, range(1, depth + 1))),
        rows=tuple(
            (
                _drafter_name(cell),
                kind,
                str(cell.key.draft.k),
                *(f"{rate:.0%}" for rate in rates),
                *(ABSENT,) * (depth - len(rates)),
            )
            for cell, kind, rates in rows
        ),
        num_names=2,
    )


def metric_grids(section: Section) -> Iterator[Grid]:
    """One table per pairing of all scalar metrics by K, and one table of metrics that are lists."""
    for label in section.labels:
        cells = (*section.undrafted, *section.of(label))
        yield Grid(
            title=f"{section.title}: {label}",
            headers=("metric", "unit", *map(_column_title, cells)),
            rows=tuple(_scalar_rows(cells)),
            num_names=2,
        )
    lists = tuple(row for cell in section.deepest for row in _list_rows(cell))
    if lists:
        yield Grid(
            title=f"{section.title}: lists",
            headers=("metric", "unit", "drafter", "K", "values"),
            rows=lists,
            num_names=3,
        )


def _scalar_rows(cells: tuple[CellSummary, ...]) -> Iterator[tuple[str, ...]]:
    for metric in all_metrics().values():
        values = [number_of(cell.metrics, metric.name) for cell in cells]
        present = [abs(value) for value in values if value is not None]
        if present:
            scale = scale_of(metric.unit, max(present))
            yield (
                metric.name,
                scale.unit,
                *(ABSENT if v is None else number(v, metric.unit, scale) for v in values),
            )


def _list_rows(cell: CellSummary) -> Iterator[tuple[str, ...]]:
    for metric in all_metrics().values():
        values = list_of(cell.metrics, metric.name)
        if values and metric.name not in _POSITION_KINDS.values():
            scale = scale_of(metric.unit, max(map(abs, values)))
            yield (
                metric.name,
                scale.unit,
                _drafter_name(cell),
                str(cell.key.draft.k),
                "  ".join(number(value, metric.unit, scale) for value in values),
            )


def _column_title(cell: CellSummary) -> str:
    """K; the method for cells of K = 0 that have one."""
    is_named = cell.key.draft.k == 0 and cell.key.draft.method != NO_DRAFTER
    return cell.key.draft.method if is_named else k_text(cell)
