"""The columns of the result tables: header, meaning, and the text of a cell."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from specbench.decide.explanation import speedup_text
from specbench.metrics.registry import all_metrics, number_of
from specbench.records import NO_DRAFTER, CellSummary
from specbench.report.numbers import ABSENT, effect_text, measured, significant
from specbench.report.sections import Section, drafter_of


def share_of_round(cell: CellSummary, name: str) -> float | None:
    part, whole = number_of(cell.metrics, name), number_of(cell.metrics, "round_s")
    return None if part is None or not whole else 100 * part / whole


def split(cell: CellSummary, *names: str) -> str | None:
    """Shares of a round's time, such as 12/83%."""
    shares = [share_of_round(cell, name) for name in names]
    known = [share for share in shares if share is not None]
    return "/".join(f"{round(share)}" for share in known) + "%" if known == shares else None


def roofline(cell: CellSummary) -> str | None:
    least_s = number_of(cell.metrics, "roofline_round_s")
    ratio = number_of(cell.metrics, "roofline_ratio")
    if least_s is None or ratio is None:
        return None
    return f"{milliseconds(least_s)} ({ratio:.2f}x)"


def joined(cell: CellSummary, *names: str) -> str | None:
    values = [number_of(cell.metrics, name) for name in names]
    if all(value is None for value in values):
        return None
    return ", ".join(ABSENT if value is None else significant(value) for value in values)


def detectable(cell: CellSummary) -> str | None:
    effect = cell.minimum_detectable_effect
    return None if effect is None else effect_text(effect)


def k_of(cell: CellSummary) -> str:
    mean_k = number_of(cell.metrics, "mean_num_speculative_tokens")
    label = cell.key.draft.length.label
    return label if mean_k is None else f"{label} {mean_k:.1f}"


def milliseconds(seconds: float) -> str:
    return significant(seconds * 1e3)


def per_second(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1}f}"


class CellColumn(NamedTuple):
    """A column of a result table; `text` returns None if a cell has no such value."""

    header: str
    meaning: str
    text: Callable[[CellSummary], str | None]


def shown(columns: Sequence[CellColumn], cells: Iterable[CellSummary]) -> tuple[CellColumn, ...]:
    """The columns for which at least one of the cells has a value."""
    known = tuple(cells)
    return tuple(c for c in columns if any(c.text(cell) is not None for cell in known))


def row(columns: Sequence[CellColumn], cell: CellSummary) -> tuple[str, ...]:
    """The cell's texts, with ABSENT for each missing value."""
    return tuple(ABSENT if text is None else text for text in (c.text(cell) for c in columns))


def name_of(cell: CellSummary) -> str:
    """The drafter with its method if the engine has several for it; the method if none is named."""
    key = cell.key
    if key.draft.drafter == NO_DRAFTER:
        return key.draft.method
    return drafter_of(key.source)


def note(section: Section, cell: CellSummary) -> str:
    """`chosen`, `invalid` or nothing, so that color and weight are not the only signs."""
    if not cell.valid:
        return "invalid"
    return "chosen" if section.is_chosen(cell.key) else ""


def _is_tree(cell: CellSummary) -> bool:
    nodes = number_of(cell.metrics, "num_draft_nodes")
    return nodes is not None and nodes > cell.key.draft.k


_FORMS: Mapping[str, Callable[[float], str]] = {
    "tokens/s": per_second,
    "requests/s": per_second,
    "tokens/round": "{:.2f}".format,
    "tokens/request": "{:.1f}".format,
    "s": milliseconds,
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


_K = CellColumn(
    "K", "maximum draft tokens per round, 0 without speculation; for auto the mean", k_of
)
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
    "min. detect. effect", "smallest effect that this comparison would detect", detectable
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
        lambda cell: split(cell, "draft_s", "verify_s", "other_s"),
    ),
    _metric("overhead_ratio"),
    CellColumn(
        "roofline ms",
        "lower bound: time to read a round's weights and KV cache at the "
        "measured copy bandwidth; and the median round as a multiple of it",
        roofline,
    ),
    _metric("bandwidth_utilization"),
    CellColumn(
        "launches, syncs",
        "kernel or graph launches and host syncs per round",
        lambda cell: joined(cell, "launches_per_round", "syncs_per_round"),
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


def terminal_columns(section: Section) -> tuple[CellColumn, ...]:
    """A section's columns on a terminal; prompts if they differ, else the detectable effect."""
    if section.is_stream:
        return TERMINAL_STREAM_COLUMNS
    is_alike = len({cell.num_prompts for cell in section.measured}) == 1
    left_out = _PROMPTS if is_alike else _DETECTABLE
    return tuple(column for column in TERMINAL_COLUMNS if column is not left_out)


def page_columns(section: Section) -> tuple[CellColumn, ...]:
    return PAGE_STREAM_COLUMNS if section.is_stream else PAGE_COLUMNS


def union(columns: Iterable[Sequence[CellColumn]]) -> tuple[CellColumn, ...]:
    """Every column once, in the order of first appearance."""
    return tuple(dict.fromkeys(column for some in columns for column in some))
