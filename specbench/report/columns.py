"""The columns of the result tables: what a cell shows, and what the header means."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specbench.decide.reasons import speedup_text
from specbench.records import NO_DRAFTER, CellSummary
from specbench.report.cell_texts import (
    detectable,
    joined,
    k_of,
    metric,
    milliseconds,
    per_second,
    roofline,
    split,
)
from specbench.report.numbers import ABSENT, measured, significant
from specbench.report.sections import Section, drafter_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`text` gives None where a cell has no such value: it is absent, never zero."""

    header: str
    meaning: str
    text: Callable[[CellSummary], str | None]


def shown(columns: Sequence[Column], cells: Iterable[CellSummary]) -> tuple[Column, ...]:
    """The columns that at least one of the cells can fill."""
    known = tuple(cells)
    return tuple(c for c in columns if any(c.text(cell) is not None for cell in known))


def row(columns: Sequence[Column], cell: CellSummary) -> tuple[str, ...]:
    """The cell's texts, with a mark where it has no value."""
    return tuple(ABSENT if text is None else text for text in (c.text(cell) for c in columns))


def name_of(cell: CellSummary) -> str:
    """The drafter, and in an engine with several methods for it the method, too."""
    key = cell.key
    if key.draft.drafter == NO_DRAFTER:
        return key.draft.method
    return drafter_of(key.source)


def note(section: Section, cell: CellSummary) -> str:
    """`chosen`, `invalid` or nothing: in words what colour and weight only underline."""
    if not cell.valid:
        return "invalid"
    return "chosen" if section.is_chosen(cell.key) else ""


def legend(columns: Sequence[Column]) -> str:
    """What the headers mean, in one paragraph."""
    return "; ".join(f"{c.header}: {c.meaning}" for c in columns if c.meaning) + "."


_K = Column(header="K", meaning="most tokens drafted per round; for auto the mean", text=k_of)
_TOKENS_PER_S = Column(
    header="tok/s",
    meaning="output tokens after the first / decode seconds",
    text=metric("decode_tokens_per_s", per_second),
)
_SPEEDUP = Column(
    header="speed-up [95%]",
    meaning=(
        "decode seconds at K=0 / at K over the same prompts, with its "
        "interval; with concurrent requests tokens per second over those at K=0; with arrivals "
        "at a given rate decode seconds per token"
    ),
    text=lambda cell: speedup_text(cell.speedup) if cell.speedup else None,
)
_DETECTABLE = Column(
    header="MDE", meaning="minimum detectable effect of this comparison", text=detectable
)
_LENGTH = Column(
    header="length",
    meaning="mean acceptance length, tokens per round",
    text=metric("mean_acceptance_length", "{:.2f}".format),
)
_RATE = Column(
    header="rate",
    meaning="acceptance rate, accepted / drafted tokens",
    text=metric("acceptance_rate", "{:.0%}".format),
)

_END_TO_END = metric("end_to_end_speedup", "{:.2f}x".format)
_AT_ONCE = Column(
    header="at once",
    meaning="tokens per request from checking a predicted output before the first round",
    text=metric("num_checked_at_once", "{:.1f}".format),
)

_BUSY = Column(
    header="tok/s, busy",
    meaning="tokens per second while the batch is full",
    text=metric("busy_tokens_per_s", per_second),
)
_ALL = Column(
    header="tok/s, all",
    meaning="tokens per second over whole passes, ramp and drain included",
    text=metric("aggregate_tokens_per_s", per_second),
)
# Figures that another tool gave have no busy time and no interval.
_IMPORTED = (
    Column(
        header=_ALL.header,
        meaning=_ALL.meaning,
        text=lambda cell: None if "busy_tokens_per_s" in cell.metrics else _ALL.text(cell),
    ),
    Column(
        header="over K=0",
        meaning="tokens per second over those at K=0, without an interval",
        text=lambda cell: None if cell.speedup_end_to_end else _END_TO_END(cell),
    ),
)
_USER = Column(
    header="per user",
    meaning="median tokens per second that one request sees",
    text=metric("user_tokens_per_s", per_second),
)
_TTFT = Column(
    header="TTFT ms",
    meaning="median time from arrival to the first token",
    text=metric("ttft_s", milliseconds),
)
_WHOLE = Column(
    header="end to end",
    meaning=(
        "speed-up including prefill of target and drafter; with concurrent "
        "requests over whole passes"
    ),
    text=lambda cell: speedup_text(cell.speedup_end_to_end) if cell.speedup_end_to_end else None,
)
_BREAK_EVEN = Column(
    header="break-even",
    meaning="acceptance length above which speculation pays off",
    text=metric("break_even_length", "{:.2f}".format),
)
_ROUND = Column(
    header="round ms", meaning="mean time per round", text=metric("round_s", milliseconds)
)
_JOULES = Column(
    header="J/token", meaning="energy per token", text=metric("joules_per_token", significant)
)

TERMINAL_COLUMNS = (
    _K,
    _TOKENS_PER_S,
    *_IMPORTED,
    _SPEEDUP,
    _DETECTABLE,
    _LENGTH,
    _AT_ONCE,
    _RATE,
    Column(
        header="draft/verify",
        meaning="shares of the round time",
        text=lambda cell: split(cell, "draft_s", "verify_s"),
    ),
)

TERMINAL_STREAM_COLUMNS = (_K, _BUSY, *_IMPORTED, _SPEEDUP, _USER, _TTFT, _LENGTH, _AT_ONCE)

PAGE_COLUMNS = (
    _K,
    Column(
        header="prompts",
        meaning="clearly slower K are pruned and get fewer",
        text=lambda cell: str(cell.num_prompts),
    ),
    _TOKENS_PER_S,
    *_IMPORTED,
    _SPEEDUP,
    _DETECTABLE,
    _WHOLE,
    _LENGTH,
    _AT_ONCE,
    _BREAK_EVEN,
    _RATE,
    _ROUND,
    Column(
        header="draft, verify, other",
        meaning="shares of the round time",
        text=lambda cell: split(cell, "draft_s", "verify_s", "other_s"),
    ),
    Column(
        header="overhead",
        meaning="round time / model-forward time measured alone",
        text=metric("overhead_ratio", "{:.2f}x".format),
    ),
    Column(
        header="roofline ms",
        meaning=(
            "lower bound: time to read a round's weights and KV cache at the "
            "measured copy bandwidth; and the median round as a multiple of it"
        ),
        text=roofline,
    ),
    Column(
        header="bandwidth",
        meaning="share of the measured copy bandwidth that a round uses",
        text=metric("bandwidth_utilisation", "{:.0%}".format),
    ),
    Column(
        header="launches, syncs",
        meaning="kernel or graph launches and host syncs per round",
        text=lambda cell: joined(cell, "launches_per_round", "syncs_per_round"),
    ),
    _JOULES,
)

PAGE_STREAM_COLUMNS = (
    _K,
    Column(
        header="passes", meaning="over the prompt list", text=metric("num_passes", "{:g}".format)
    ),
    _BUSY,
    _SPEEDUP,
    _DETECTABLE,
    _ALL,
    _IMPORTED[1],
    _WHOLE,
    _USER,
    _TTFT,
    Column(header="p95", meaning="its 95th percentile", text=metric("ttft_s_p95", milliseconds)),
    Column(
        header="queue ms",
        meaning="median time from arrival to prefill",
        text=metric("queue_s", milliseconds),
    ),
    Column(
        header="busy",
        meaning="share of a pass with a full batch",
        text=metric("busy_share", "{:.0%}".format),
    ),
    Column(
        header="batch used",
        meaning="live rows / computed rows of the batch",
        text=metric("padding_efficiency", "{:.0%}".format),
    ),
    _LENGTH,
    _AT_ONCE,
    _BREAK_EVEN,
    _RATE,
    _ROUND,
    Column(
        header="KV cache",
        meaning="allocated for the whole batch, target and drafter",
        text=metric("kv_bytes", lambda value: measured(value, "bytes")),
    ),
    _JOULES,
)


def terminal_columns(section: Section) -> tuple[Column, ...]:
    """What the terminal shows of a section."""
    return TERMINAL_STREAM_COLUMNS if section.is_stream else TERMINAL_COLUMNS


def page_columns(section: Section) -> tuple[Column, ...]:
    """What a page shows of a section."""
    return PAGE_STREAM_COLUMNS if section.is_stream else PAGE_COLUMNS


def union(columns: Iterable[Sequence[Column]]) -> tuple[Column, ...]:
    """Every column once, as it first appears."""
    return tuple(dict.fromkeys(column for some in columns for column in some))
