"""The counters of a serving engine's Prometheus page, under names that all engines share."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterPage:
    """The metrics page of an engine, and its name for each counter: see engines/served/."""

    engine: str
    path: str
    prefix: str
    counters: Mapping[str, str]  # field of Counters, by the engine's name of it
    # Gauges of running and waiting requests. Empty for engines that set them only while they
    # compute: when idle, they show requests that have ended.
    in_progress: tuple[str, ...] = ()
    counts_all_rounds: bool = False  # else only rounds with draft tokens
    marker: str = ""  # what the pages of no other engine with its prefix have
    is_of_model: bool = False  # whether a server of several models has a page for each

    def path_of(self, model: str) -> str:
        """The path with the counters of a model."""
        return f"{self.path}?model={quote(model)}" if self.is_of_model else self.path


# Names of draft counters that several engines share.
DRAFT_COUNTERS = {
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted",
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
_SUMS = (
    *("num_draft_tokens", "num_accepted", "num_rounds", "num_tokens", "num_prompt_tokens"),
    *("num_requests", "num_preemptions", "queue_s", "num_cached_tokens"),
)
MOST_POSITIONS = 1_000  # more than any server drafts per round
_STARTED = "process_start_time_seconds"
_CREATED = "_created"  # suffix of the series with a counter's start time, in Unix seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """The counts of a server since it started, summed over labels; None: not reported."""

    engine: str | None
    counts_all_rounds: bool = False  # in num_rounds; else only rounds with draft tokens
    num_rounds: float | None = None
    num_draft_tokens: float | None = None
    num_accepted: float | None = None
    num_tokens: float | None = None  # emitted, for all clients
    num_prompt_tokens: float | None = None  # prefilled, for all clients
    num_requests: float | None = None  # finished, for all clients
    num_preemptions: float | None = None  # requests evicted for lack of KV cache
    queue_s: float | None = None  # summed over requests
    num_cached_tokens: float | None = None  # of prompts, found in its prefix cache
    num_accepted_at: tuple[float, ...] = ()  # drafts accepted at position 1, 2 .. K
    num_positions: int | None = None  # K, if each position is counted
    num_in_progress: float | None = None  # requests that run or wait now
    started_s: float | None = None  # when the process started, in Unix seconds
    spans_restart: bool = False  # of a difference: the two pages come from different processes
    servers: frozenset[str] = frozenset()  # behind a router, by its labels

    @property
    def sums(self) -> dict[str, float]:
        """The counters that the server has, by name."""
        return {name: getattr(self, name) for name in _SUMS if getattr(self, name) is not None}

    def since(self, before: "Counters") -> "Counters":
        """The difference to an earlier reading; a counter that did not exist yet was 0. Nothing is
        known if the page itself could not be read."""
        if before.engine is None or self.engine is None:
            return Counters(engine=None)
        counted: dict[str, Any] = {
            name: now - (getattr(before, name) or 0.0) for name, now in self.sums.items()
        }
        at = zip_longest(self.num_accepted_at, before.num_accepted_at, fillvalue=0.0)
        # Only a restart lets a counter fall.
        has_fallen = any(value < 0 for value in counted.values())
        is_known = self.started_s is not None and before.started_s is not None
        return replace(
            self,
            num_accepted_at=tuple(now - earlier for now, earlier in at),
            spans_restart=has_fallen or (is_known and self.started_s != before.started_s),
            **counted,
        )

    def then(self, later: "Counters") -> "Counters":
        """The counts of two intervals of one server, one after the other. A counter that did not
        exist yet was 0; of gauges the later value counts."""
        at = zip_longest(self.num_accepted_at, later.num_accepted_at, fillvalue=0.0)
        names = self.sums.keys() | later.sums.keys()
        summed: dict[str, Any] = {n: self.sums.get(n, 0.0) + later.sums.get(n, 0.0) for n in names}
        return replace(later, num_accepted_at=tuple(map(sum, at)), **summed)

    def __add__(self, other: "Counters") -> "Counters":
        """The counts of two servers, or of two differences; a counter that one lacks is None."""
        both = self.sums.keys() & other.sums.keys()
        summed: dict[str, Any] = dict.fromkeys(_SUMS)
        summed |= {name: self.sums[name] + other.sums[name] for name in both}
        at = zip_longest(self.num_accepted_at, other.num_accepted_at, fillvalue=0.0)
        running = [s.num_in_progress for s in (self, other) if s.num_in_progress is not None]
        return replace(
            self,
            num_accepted_at=tuple(map(sum, at)),
            num_in_progress=sum(running) if running else None,
            started_s=max(filter(None, (self.started_s, other.started_s)), default=None),
            **summed,
        )


def read_counters(text: str, pages: Sequence[CounterPage]) -> Counters:
    """The counters of a page, and which of the engines in `pages` it is from, if any.

    ValueError if the text is not a Prometheus page.
    """
    sums: dict[str, Any] = defaultdict(float)
    accepted: dict[int, float] = defaultdict(float)
    page: CounterPage | None = None
    num_in_progress: float | None = None
    started_s: float | None = None
    servers = set[str]()
    pages = [known for known in pages if known.marker in text]
    for sample in _samples(text):
        if sample.name == _STARTED or sample.name.endswith(_CREATED):
            started_s = min(sample.value, started_s or math.inf)
        match = next((known for known in pages if sample.name.startswith(known.prefix)), None)
        if match is None:
            continue
        page = match
        servers |= {sample.labels["server"]} if "server" in sample.labels else set()
        name = sample.name.removeprefix(page.prefix).removesuffix("_total")
        if name in page.counters:
            sums[page.counters[name]] += sample.value
        elif name == _PER_POSITION:
            accepted[_position(sample)] += sample.value
        elif name in page.in_progress:
            num_in_progress = (num_in_progress or 0.0) + sample.value
    num_positions = max(accepted, default=-1) + 1
    return Counters(
        engine=page.engine if page else None,
        counts_all_rounds=page is not None and page.counts_all_rounds,
        num_positions=num_positions or None,
        num_accepted_at=tuple(accepted.get(i, 0.0) for i in range(num_positions)),
        num_in_progress=num_in_progress,
        started_s=started_s,
        servers=frozenset(servers),
        **sums,
    )


def _position(sample: Sample) -> int:
    position = int(sample.labels.get("position", ""))
    if not 0 <= position < MOST_POSITIONS:
        raise ValueError(
            f"{sample.name} has position {position}; it must be 0 to {MOST_POSITIONS - 1}"
        )
    return position


def labels_of(text: str, name: str) -> list[dict[str, str]]:
    """The labels of each series of a metric, such as one whose labels are a configuration."""
    return [sample.labels for sample in _samples(text) if sample.name == name]


def gauge_of(text: str, name: str) -> float | None:
    """The largest value of a gauge; None if there is none of that name."""
    return max((sample.value for sample in _samples(text) if sample.name == name), default=None)


def count_of(label: str | None) -> int | None:
    """The count in a label; None if the label is not a count."""
    is_count = label is not None and label.isascii() and label.isdecimal() and len(label) < 16
    return int(label or "") if is_count else None


def _samples(text: str) -> Iterator[Sample]:
    """Samples with a value."""
    for family in text_string_to_metric_families(text):
        yield from (sample for sample in family.samples if math.isfinite(sample.value))
