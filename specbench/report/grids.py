"""The columns of the result tables, and those tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from specbench.doc import Key, keys_of
from specbench.metrics.registry import all_metrics, number_of
from specbench.records import NO_DRAFTER, CellSummary, Condition
from specbench.report.sections import Section, drafter_of, setting_name
from specbench.words.numbers import (
    figure,
    k_text,
    list_of,
    number,
    scale_of,
    significant,
)
from specbench.words.table import ABSENT, Table, column, text_table, with_values


def setting_column(rows: Iterable[Any], get: Callable[[Any], Condition], label: str = "") -> Key:
    """The names of the settings of rows, as the first column of a table."""
    conditions = [*map(get, rows)]
    return column(label, lambda row: setting_name(get(row), conditions))


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
    return f"{figure(least_s, 's')} ({ratio:.2f}x)"


def _numbers(cell: CellSummary, *names: str) -> str | None:
    """Metrics with commas between them; None if all are unknown."""
    values = [number_of(cell.metrics, name) for name in names]
    if all(value is None for value in values):
        return None
    return ", ".join(ABSENT if value is None else significant(value) for value in values)


def _k(cell: CellSummary) -> str:
    mean_k = number_of(cell.metrics, "mean_num_speculative_tokens")
    label = cell.key.draft.length.label
    return label if mean_k is None else f"{label} {mean_k:.1f}"


def _drafter_name(cell: CellSummary) -> str:
    """The drafter with its method if the engine has several for it; the method if none is named."""
    key = cell.key
    if key.draft.drafter == NO_DRAFTER:
        return key.draft.method
    return drafter_of(key.source)


def _rate(cell: CellSummary, *, is_tree: bool) -> float | None:
    nodes = number_of(cell.metrics, "num_draft_nodes")
    has_tree = nodes is not None and nodes > cell.key.draft.k
    return number_of(cell.metrics, "acceptance_rate") if has_tree is is_tree else None


def _metric(name: str, label: str) -> Key:
    metric = all_metrics()[name]
    key = metric.key(lambda cell: cell)
    return key._replace(doc=replace(key.full_doc, meaning=metric.meaning, label=label))


_DECLARED: Mapping[str, Key] = {
    **{name: key for name, key in keys_of(CellSummary).items() if key.full_doc.label},
    **{m.name: _metric(m.name, m.label) for m in all_metrics().values() if m.label},
}
# All columns, by name. Most are declared with a figure; the others combine several.
COLUMNS: Mapping[str, Key] = {
    **_DECLARED,
    "k": column(
        "K", _k, meaning="maximum draft tokens per round, 0 without speculation; for auto the mean"
    ),
    "all_imported": _DECLARED["aggregate_tokens_per_s"]._replace(  # which have no busy time
        value=lambda cell: (
            None
            if "busy_tokens_per_s" in cell.metrics
            else number_of(cell.metrics, "aggregate_tokens_per_s")
        )
    ),
    "ttft_s_p95": _metric("ttft_s_p95", "p95"),
    "acceptance_rate": column(
        "accept. rate",
        lambda cell: _rate(cell, is_tree=False),
        "{:.0%}",
        meaning="accepted / drafted tokens",
    ),
    # A round accepts one path, so the accepted share of a large tree is always small.
    "of_nodes": column(
        "of nodes",
        lambda cell: _rate(cell, is_tree=True),
        "{:.1%}",
        meaning="accepted / drafted nodes of a tree; a round accepts one path of at most K nodes, "
        "so compare trees with other drafters by accept. length",
    ),
    "shares": column(
        "draft, verify, other",
        lambda cell: _shares(cell, "draft_s", "verify_s", "other_s"),
        meaning="shares of the round time",
    ),
    "roofline": column(
        "roofline ms",
        _roofline,
        meaning="lower bound: time to read a round's weights and KV cache at the "
        "measured copy bandwidth; and the median round as a multiple of it",
    ),
    "launches": column(
        "launches, syncs",
        lambda cell: _numbers(cell, "launches_per_round", "syncs_per_round"),
        meaning="kernel or graph launches and host syncs per round",
    ),
}
_LENGTHS = ("mean_acceptance_length", "mean_acceptance_length_of_engine", "num_checked_at_once")
_COSTS = ("break_even_length", "acceptance_rate", "of_nodes", "round_s")
_TERMINAL = (
    *("k", "num_prompts", "decode_tokens_per_s", "all_imported", "speedup"),
    *("speedup_end_to_end", "goodput_requests_per_s", *_LENGTHS),
)
_TERMINAL_STREAM = (
    *("k", "busy_tokens_per_s", "all_imported", "speedup", "goodput_requests_per_s"),
    *("user_tokens_per_s", "ttft_s", "mean_acceptance_length", "num_checked_at_once"),
)
_PAGE = (
    *("k", "num_prompts", "num_cycles", "decode_tokens_per_s", "all_imported", "speedup"),
    *("goodput_requests_per_s", "minimum_detectable_effect", "speedup_end_to_end", "ttft_s"),
    *("request_latency_s", *_LENGTHS, *_COSTS, "shares", "overhead_ratio", "roofline"),
    *("bandwidth_utilization", "launches", "device_idle_s", "joules_per_token"),
)
_PAGE_STREAM = (
    *("k", "num_passes", "num_cycles", "busy_tokens_per_s", "speedup", "goodput_requests_per_s"),
    *("minimum_detectable_effect", "aggregate_tokens_per_s", "speedup_end_to_end"),
    *("user_tokens_per_s", "ttft_s", "ttft_s_p95", "request_latency_s", "requests_per_s"),
    *("queue_s", "busy_share", "padding_efficiency", *_LENGTHS, *_COSTS, "kv_bytes"),
    "joules_per_token",
)
# A new figure with a label comes last.
_MORE = [name for name in _DECLARED if name not in {*_PAGE, *_PAGE_STREAM}]


def _columns(names: Sequence[str], section: Section) -> list[Key]:
    return with_values((COLUMNS[name] for name in names), section.measured)


def _terminal_columns(section: Section) -> list[Key]:
    """A section's columns on a terminal; the number of prompts only if it differs."""
    if section.is_stream:
        return _columns(_TERMINAL_STREAM, section)
    is_alike = len({cell.num_prompts for cell in section.measured}) == 1
    return _columns([name for name in _TERMINAL if name != "num_prompts" or not is_alike], section)


def page_columns(section: Section) -> list[Key]:
    """The columns of a section in the report, those for which some cell has a value."""
    return _columns([*(_PAGE_STREAM if section.is_stream else _PAGE), *_MORE], section)


_POSITION_KINDS = {
    "all rounds": "acceptance_rate_per_position",
    "rounds that got this far": "conditional_acceptance_rate",
}


def result_grid(section: Section) -> Table:
    """A row per cell; the remarks after K mark the chosen and the invalid ones."""

    def mark(cell: CellSummary) -> str:
        """`chosen`, `invalid` or nothing, so that color and weight are not the only signs."""
        if not cell.valid:
            return "invalid"
        return "chosen" if section.is_chosen(cell.key) else ""

    k, *more = page_columns(section)
    columns = [column("drafter", _drafter_name), k, column("", mark), *more]
    headers = [key.full_doc.label for key in columns]
    brief = [headers.index(key.full_doc.label) for key in _terminal_columns(section)]
    return Table(
        title=section.title,
        columns=columns,
        records=section.measured,
        brief=(0, *brief, 2),
        mark=mark,
    )


def position_grid(section: Section) -> Table | None:
    """Joint and conditional acceptance at each position; None if no rounds are known."""
    rows = [
        (cell, kind, list_of(cell.metrics, name))
        for cell in section.deepest
        for kind, name in _POSITION_KINDS.items()
    ]
    if not rows:
        return None
    depth = max(len(rates) for _, _, rates in rows)
    return Table(
        title=section.title,
        columns=[
            column("drafter", lambda row: _drafter_name(row[0])),
            column("share of", itemgetter(1)),
            column("K", lambda row: row[0].key.draft.k),
            *(column(str(i + 1), _entry(i), "{:.0%}") for i in range(depth)),
        ],
        records=rows,
        num_names=2,
    )


def _entry(i: int) -> Callable[[Any], float | None]:
    return lambda row: row[-1][i] if i < len(row[-1]) else None


def metric_grids(section: Section) -> Iterator[Table]:
    """One table per pairing of all scalar metrics by K, and one table of metrics that are lists."""
    for label in section.labels:
        cells = (*section.undrafted, *section.of(label))
        yield text_table(
            f"{section.title}: {label}",
            ("metric", "unit", *map(_column_title, cells)),
            [*_scalar_rows(cells)],
            num_names=2,
            is_folded=True,
        )
    lists = [row for cell in section.deepest for row in _list_rows(cell)]
    if lists:
        yield text_table(
            f"{section.title}: lists",
            ("metric", "unit", "drafter", "K", "values"),
            lists,
            num_names=3,
            is_folded=True,
        )


def _scalar_rows(cells: tuple[CellSummary, ...]) -> Iterator[tuple[str | None, ...]]:
    for metric in all_metrics().values():
        values = [number_of(cell.metrics, metric.name) for cell in cells]
        present = [abs(value) for value in values if value is not None]
        if present:
            scale = scale_of(metric.unit, max(present))
            yield (
                metric.name,
                scale.unit,
                *(None if v is None else number(v, metric.unit, scale) for v in values),
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
