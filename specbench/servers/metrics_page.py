"""The counters of a serving engine's Prometheus page, whatever the engine calls them."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class _Page(NamedTuple):
    prefix: str
    fields: Mapping[str, str]  # of Counters, by what the engine calls them
    # Gauges of the requests that run, and that wait. Empty for engines that set them only while
    # they compute: idle, SGLang's (for 30 s) and TensorRT-LLM's show requests that have ended.
    in_progress: tuple[str, ...] = ()


# vLLM and llama.cpp count drafts, rounds in which something was drafted; SGLang counts all
# rounds, and tells K by a gauge. Sources: vllm/v1/metrics/loggers.py and spec_decode/metrics.py;
# llama.cpp's tools/server/server-task.cpp; sglang/srt/observability/metrics_collector.py;
# tensorrt_llm/metrics/collector.py.
_DRAFTS = {
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted",
}
_PAGES = {
    "vllm": _Page(
        "vllm:",
        {
            **_DRAFTS,
            "spec_decode_num_drafts": "num_rounds",
            "generation_tokens": "num_tokens",
            "prompt_tokens": "num_prompt_tokens",
            "request_success": "num_requests",
            "num_preemptions": "num_preemptions",
            "request_queue_time_seconds_sum": "queue_s",
            "prefix_cache_hits": "num_cached_tokens",
        },
        ("num_requests_running", "num_requests_waiting"),
    ),
    "llama_cpp": _Page(
        "llamacpp:",
        {
            **_DRAFTS,
            "spec_decode_num_drafts": "num_rounds",
            "tokens_predicted": "num_tokens",
            "prompt_tokens": "num_prompt_tokens",
            "prompt_tokens_cached": "num_cached_tokens",
        },
        ("requests_processing", "requests_deferred"),
    ),
    "sglang": _Page(
        "sglang:",
        {
            "spec_verify_calls": "num_rounds",
            "generation_tokens": "num_tokens",
            "prompt_tokens": "num_prompt_tokens",
            "num_requests": "num_requests",
            "num_retracted_requests": "num_preemptions",
            "queue_time_seconds_sum": "queue_s",
            "cached_tokens": "num_cached_tokens",
        },
    ),
    "tensorrt_llm": _Page(
        "trtllm_",
        {
            **_DRAFTS,
            "generation_tokens": "num_tokens",
            "prompt_tokens": "num_prompt_tokens",
            "request_success": "num_requests",
            "request_queue_time_seconds_sum": "queue_s",
            "prompt_cached_tokens": "num_cached_tokens",
        },
    ),
}
_SUMS = tuple(dict.fromkeys(name for page in _PAGES.values() for name in page.fields.values()))
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
MOST_POSITIONS = 1_000  # no server drafts so many tokens in a round
_K_GAUGE = "spec_num_steps"  # set now and then, and 0 before
_STARTED = "process_start_time_seconds"
_CREATED = "_created"  # ends the name of a series that says when a counter began, in Unix seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """What a server has counted since it started, summed over labels; None: it does not say."""

    engine: str | None
    num_rounds: float | None = None  # SGLang: all; others: those that drafted something
    num_draft_tokens: float | None = None
    num_accepted: float | None = None
    num_tokens: float | None = None  # emitted, for whatever client
    num_prompt_tokens: float | None = None  # prefilled, for whatever client
    num_requests: float | None = None  # finished, for whatever client
    num_preemptions: float | None = None  # requests put off for lack of room
    queue_s: float | None = None  # summed over requests
    num_cached_tokens: float | None = None  # of prompts, found in its prefix cache
    num_accepted_at: tuple[float, ...] = ()  # drafts accepted at position 1, 2 .. K
    num_positions: int | None = None  # K, if each position is counted or a gauge reports it
    num_in_progress: float | None = None  # requests that run or wait now
    started_s: float | None = None  # when the process started, in Unix seconds
    is_of_a_restart: bool = False  # of a difference: another process counted before

    @property
    def sums(self) -> dict[str, float]:
        """The counters that the server has, by name."""
        return {name: getattr(self, name) for name in _SUMS if getattr(self, name) is not None}

    def since(self, before: "Counters") -> "Counters":
        """What was counted in between; a counter that began to exist in between began at 0."""
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
            is_of_a_restart=has_fallen or (is_known and self.started_s != before.started_s),
            **counted,
        )

    def __add__(self, other: "Counters") -> "Counters":
        """What two servers counted together; a counter that one of them lacks is not known."""
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


def read_counters(text: str) -> Counters:
    """The counters of a page; of no engine where it has none. ValueError where it is not one."""
    sums: dict[str, Any] = defaultdict(float)
    accepted: dict[int, float] = defaultdict(float)
    k_gauge = 0.0
    engine: str | None = None
    num_in_progress: float | None = None
    started_s: float | None = None
    for sample in _samples(text):
        if sample.name == _STARTED or sample.name.endswith(_CREATED):
            started_s = min(sample.value, started_s or math.inf)
        found = next((e for e, page in _PAGES.items() if sample.name.startswith(page.prefix)), None)
        if found is None:
            continue
        engine, page = found, _PAGES[found]
        name = sample.name.removeprefix(page.prefix).removesuffix("_total")
        if name in page.fields:
            sums[page.fields[name]] += sample.value
        elif name == _PER_POSITION:
            accepted[_position(sample)] += sample.value
        elif name in page.in_progress:
            num_in_progress = (num_in_progress or 0.0) + sample.value
        elif name == _K_GAUGE:
            k_gauge = max(k_gauge, sample.value)  # of every rank the same
    if k_gauge > MOST_POSITIONS:
        raise ValueError(f"{_K_GAUGE} is {k_gauge:g}; allowed are 0 to {MOST_POSITIONS}")
    num_positions = max(accepted, default=-1) + 1
    return Counters(
        engine=engine,
        num_positions=num_positions or round(k_gauge) or None,
        num_accepted_at=tuple(accepted.get(i, 0.0) for i in range(num_positions)),
        num_in_progress=num_in_progress,
        started_s=started_s,
        **sums,
    )


def _position(sample: Sample) -> int:
    position = int(sample.labels.get("position", ""))
    if not 0 <= position < MOST_POSITIONS:
        raise ValueError(
            f"{sample.name} has position {position}; allowed are 0 to {MOST_POSITIONS - 1}"
        )
    return position


def labels_of(text: str, name: str) -> list[dict[str, str]]:
    """The labels of each series of a metric, such as one that only tells a configuration."""
    return [sample.labels for sample in _samples(text) if sample.name == name]


def gauge_of(text: str, name: str) -> float | None:
    """The largest value of a gauge; None where there is none of that name."""
    return max((sample.value for sample in _samples(text) if sample.name == name), default=None)


def count_of(label: str | None) -> int | None:
    """A label that tells a count; None where it tells something else."""
    is_count = label is not None and label.isascii() and label.isdecimal() and len(label) < 16
    return int(label or "") if is_count else None


def _samples(text: str) -> Iterator[Sample]:
    """Those with a value."""
    for family in text_string_to_metric_families(text):
        yield from (sample for sample in family.samples if math.isfinite(sample.value))
