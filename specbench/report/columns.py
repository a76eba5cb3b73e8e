"""The columns of the result tables: what a cell shows, and what the header means."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from specbench.decide.explanation import speedup_text
from specbench.records import NO_DRAFTER, CellSummary
from specbench.report.numbers import ABSENT, effect_text, measured, scalar, significant
from specbench.report.sections import Section, drafter_of


def metric(name: str, form: Callable[[float], str]) -> Callable[[CellSummary], str | None]:
    def text(cell: CellSummary) -> str | None:
        value = scalar(cell.metrics.get(name))
        return None if value is None else form(value)

    return text


def share_of_round(cell: CellSummary, name: str) -> float | None:
    part, whole = scalar(cell.metrics.get(name)), scalar(cell.metrics.get("round_s"))
    return None if part is None or not whole else 100 * part / whole


def split(cell: CellSummary, *names: str) -> str | None:
    """Shares of a round's time, such as 12/83%."""
    shares = [share_of_round(cell, name) for name in names]
    known = [share for share in shares if share is not None]
    return "/".join(f"{round(share)}" for share in known) + "%" if known == shares else None


def roofline(cell: CellSummary) -> str | None:
    least_s = scalar(cell.metrics.get("roofline_round_s"))
    ratio = scalar(cell.metrics.get("roofline_ratio"))
    if least_s is None or ratio is None:
        return None
    return f"{milliseconds(least_s)} ({ratio:.2f}x)"


def joined(cell: CellSummary, *names: str) -> str | None:
    values = [scalar(cell.metrics.get(name)) for name in names]
    if all(value is None for value in values):
        return None
    return ", ".join(ABSENT if value is None else significant(value) for value in values)


def detectable(cell: CellSummary) -> str | None:
    effect = cell.minimum_detectable_effect
    return None if effect is None else effect_text(effect)


def k_of(cell: CellSummary) -> str:
    mean_k = scalar(cell.metrics.get("mean_num_speculative_tokens"))
    label = cell.key.draft.length.label
    return label if mean_k is None else f"{label} {mean_k:.1f}"


def milliseconds(seconds: float) -> str:
    return significant(seconds * 1e3)


def per_second(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1}f}"


class Column(NamedTuple):
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


def _is_tree(cell: CellSummary) -> bool:
    nodes = scalar(cell.metrics.get("num_draft_nodes"))
    return nodes is not None and nodes > cell.key.draft.k


def _rate(cell: CellSummary, form: Callable[[float], str]) -> str | None:
    return metric("acceptance_rate", form)(cell)


_K = Column("K", "most tokens drafted per round; for auto the mean", k_of)
_PROMPTS = Column(
    "prompts",
    "that the row is over; under a budget K that cannot win, or are not paid for, get fewer",
    lambda cell: str(cell.num_prompts),
)
_TOKENS_PER_S = Column(
    "tok/s",
    "output tokens after the first / decode seconds",
    metric("decode_tokens_per_s", per_second),
)
_SPEEDUP = Column(
    "speed-up [95%]",
    "decode seconds at K=0 / at K over the same prompts, with its "
    "interval; with concurrent requests tokens per second over those at K=0; with arrivals "
    "at a given rate decode seconds per token",
    lambda cell: speedup_text(cell.speedup) if cell.speedup else None,
)
_GOODPUT = Column(
    "goodput",
    "requests per second within the limits of --slo",
    metric("goodput_requests_per_s", per_second),
)
_DETECTABLE = Column("MDE", "minimum detectable effect of this comparison", detectable)
_LENGTH = Column(
    "length",
    "mean acceptance length, tokens per round",
    metric("mean_acceptance_length", "{:.2f}".format),
)
_LENGTH_THERE = Column(
    "engine's",
    "the same as the engine counts it: over the rounds that drafted, past the ends of answers",
    metric("mean_acceptance_length_of_engine", "{:.2f}".format),
)
_CYCLES = Column(
    "cycles", "of sessions: in each every K was started twice", metric("num_cycles", "{:g}".format)
)
_RATE = Column(
    "rate",
    "acceptance rate, accepted / drafted tokens",
    lambda cell: None if _is_tree(cell) else _rate(cell, "{:.0%}".format),
)
# A round accepts one path: the share of a large tree is small however well it drafts.
_OF_NODES = Column(
    "of nodes",
    "accepted / drafted nodes of a tree, of which a round accepts one path of at most K; compare "
    "trees with other drafters by length",
    lambda cell: _rate(cell, "{:.1%}".format) if _is_tree(cell) else None,
)

_AT_ONCE = Column(
    "at once",
    "tokens per request from checking a predicted output before the first round",
    metric("num_checked_at_once", "{:.1f}".format),
)

_BUSY = Column(
    "tok/s, busy",
    "tokens per second while the batch is full",
    metric("busy_tokens_per_s", per_second),
)
_ALL = Column(
    "tok/s, all",
    "tokens per second over whole passes, ramp and drain included",
    metric("aggregate_tokens_per_s", per_second),
)
_ALL_IMPORTED = Column(  # another tool gives no busy time
    _ALL.header,
    _ALL.meaning,
    lambda cell: None if "busy_tokens_per_s" in cell.metrics else _ALL.text(cell),
)
_USER = Column(
    "per user",
    "median tokens per second that one request sees",
    metric("user_tokens_per_s", per_second),
)
_TTFT = Column(
    "TTFT ms", "median time from arrival to the first token", metric("ttft_s", milliseconds)
)
_LATENCY = Column(
    "latency ms",
    "median time from arrival to the last token",
    metric("request_latency_s", milliseconds),
)
_WHOLE = Column(
    "end to end",
    "speed-up including prefill of target and drafter; with concurrent requests over whole passes",
    lambda cell: speedup_text(cell.speedup_end_to_end) if cell.speedup_end_to_end else None,
)
_BREAK_EVEN = Column(
    "break-even",
    "acceptance length above which speculation pays off",
    metric("break_even_length", "{:.2f}".format),
)
_ROUND = Column("round ms", "mean time per round", metric("round_s", milliseconds))
_JOULES = Column("J/token", "energy per token", metric("joules_per_token", significant))

TERMINAL_COLUMNS = (
    _K,
    _PROMPTS,
    _TOKENS_PER_S,
    _ALL_IMPORTED,
    _SPEEDUP,
    _GOODPUT,
    _DETECTABLE,
    _TTFT,
    _LENGTH,
    _LENGTH_THERE,
    _AT_ONCE,
    _RATE,
    _OF_NODES,
)

TERMINAL_STREAM_COLUMNS = (
    _K,
    _BUSY,
    _ALL_IMPORTED,
    _SPEEDUP,
    _GOODPUT,
    _USER,
    _TTFT,
    _LENGTH,
    _AT_ONCE,
)

PAGE_COLUMNS = (
    _K,
    _PROMPTS,
    _CYCLES,
    _TOKENS_PER_S,
    _ALL_IMPORTED,
    _SPEEDUP,
    _GOODPUT,
    _DETECTABLE,
    _WHOLE,
    _TTFT,
    _LATENCY,
    _LENGTH,
    _LENGTH_THERE,
    _AT_ONCE,
    _BREAK_EVEN,
    _RATE,
    _OF_NODES,
    _ROUND,
    Column(
        "draft, verify, other",
        "shares of the round time",
        lambda cell: split(cell, "draft_s", "verify_s", "other_s"),
    ),
    Column(
        "overhead",
        "round time / model-forward time measured alone",
        metric("overhead_ratio", "{:.2f}x".format),
    ),
    Column(
        "roofline ms",
        "lower bound: time to read a round's weights and KV cache at the "
        "measured copy bandwidth; and the median round as a multiple of it",
        roofline,
    ),
    Column(
        "bandwidth",
        "share of the measured copy bandwidth that a round uses",
        metric("bandwidth_utilisation", "{:.0%}".format),
    ),
    Column(
        "launches, syncs",
        "kernel or graph launches and host syncs per round",
        lambda cell: joined(cell, "launches_per_round", "syncs_per_round"),
    ),
    Column(
        "idle ms",
        "time per round in which the GPU waits for the host",
        metric("device_idle_s", milliseconds),
    ),
    _JOULES,
)

PAGE_STREAM_COLUMNS = (
    _K,
    Column("passes", "over the prompt list", metric("num_passes", "{:g}".format)),
    _CYCLES,
    _BUSY,
    _SPEEDUP,
    _GOODPUT,
    _DETECTABLE,
    _ALL,
    _WHOLE,
    _USER,
    _TTFT,
    Column("p95", "its 95th percentile", metric("ttft_s_p95", milliseconds)),
    _LATENCY,
    Column("requests/s", "finished requests per second", metric("requests_per_s", per_second)),
    Column("queue ms", "median time from arrival to prefill", metric("queue_s", milliseconds)),
    Column("busy", "share of a pass with a full batch", metric("busy_share", "{:.0%}".format)),
    Column(
        "batch used",
        "live rows / computed rows of the batch",
        metric("padding_efficiency", "{:.0%}".format),
    ),
    _LENGTH,
    _LENGTH_THERE,
    _AT_ONCE,
    _BREAK_EVEN,
    _RATE,
    _OF_NODES,
    _ROUND,
    Column(
        "KV cache",
        "allocated for the whole batch, target and drafter",
        metric("kv_bytes", lambda value: measured(value, "bytes")),
    ),
    _JOULES,
)


def terminal_columns(section: Section) -> tuple[Column, ...]:
    """What the terminal shows of a section: the prompts if they differ, else the MDE."""
    if section.is_stream:
        return TERMINAL_STREAM_COLUMNS
    is_alike = len({cell.num_prompts for cell in section.measured}) == 1
    left_out = _PROMPTS if is_alike else _DETECTABLE
    return tuple(column for column in TERMINAL_COLUMNS if column is not left_out)


def page_columns(section: Section) -> tuple[Column, ...]:
    """What a page shows of a section."""
    return PAGE_STREAM_COLUMNS if section.is_stream else PAGE_COLUMNS


def union(columns: Iterable[Sequence[Column]]) -> tuple[Column, ...]:
    """Every column once, as it first appears."""
    return tuple(dict.fromkeys(column for some in columns for column in some))
