"""Results of the analysis: summaries of cells, and decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from specbench.doc import Doc
from specbench.records.keys import CellKey, Condition, DraftConfig, lossy_mark
from specbench.records.reasons import Kind, Reason
from specbench.stats.summaries import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Margin:
    """What makes an interval as wide as it is: the margin that each cause has alone."""

    prompts: Annotated[float, Doc("other prompts of the workload", "fraction", low=0)]
    machine: Annotated[float, Doc("other states of the machine", "fraction", low=0)]
    machine_kind: Annotated[
        str, Doc("whose variation was assumed, such as `quiet CPU`, `shared CPU` or `GPU`")
    ]
    largest_prompt: Annotated[
        float | None,
        Doc(
            "share of one prompt in the variance over prompts; absent if unknown",
            "fraction",
            low=0,
            high=1,
        ),
    ]
    num_parts: Annotated[
        int, Doc("parts of the run, or cycles, that measured it too; 1: assumed alone", low=1)
    ]
    num_earlier: Annotated[
        int, Doc("earlier runs of these cells on equal hardware that measured it", "runs", low=0)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Requests per second within the limits of an SLO, over those of K = 0."""

    limits: Annotated[str, Doc("the limits of the SLO, such as `ttft=200ms,tpot=20ms`")]
    ratio: Annotated[Interval, Doc("requests per second within the limits / those at K = 0", "x")]
    minimum_detectable_effect: Annotated[
        float | None,
        Doc(
            "smallest relative effect on `ratio` that is detected in 80% of runs", "fraction", low=0
        ),
    ]
    margin: Annotated[
        Margin | None, Doc("the parts of the interval of `ratio`; absent without one")
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Screening:
    """Requests that the machine held up, and what leaving them out changes."""

    num_baseline: Annotated[int, Doc("left out with a stalled K = 0", "requests", low=0)]
    num_draft: Annotated[int, Doc("left out with a stalled K", "requests", low=0)]
    num_kept: Annotated[
        int, Doc("stalled at K and kept: nothing shows that the machine did it", "requests", low=0)
    ]
    with_all: Annotated[Interval, Doc("`speedup` with all requests", "x")]
    without_any: Annotated[Interval, Doc("`speedup` without any stalled request", "x")]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSummary:
    """A cell after analysis: metrics, validity and speedup."""

    key: Annotated[CellKey, Doc("which cell")]
    valid: Annotated[bool, Doc("whether the cell may support a decision")]
    invalid_reasons: Annotated[tuple[Reason, ...], Doc("why not; empty for a valid cell")]
    num_prompts: Annotated[
        int,
        Doc(
            "prompts with a finished request; a time budget gives fewer to K that cannot win or "
            "that it has no time for",
            "prompts",
            label="prompts",
        ),
    ]
    num_requests: Annotated[
        int, Doc("each turn and repeat counts, failed ones included", "requests")
    ]
    metrics: Annotated[
        Mapping[str, float | tuple[float, ...]],
        Doc(
            "name to number, or to a list of numbers; `specbench list metrics` gives units "
            "and formulas"
        ),
    ]
    speedup: Annotated[
        Interval | None,
        Doc(
            "decode seconds at K=0 / at K, same prompts (concurrent requests: tokens per "
            "second; arrivals at a rate: seconds per token); absent at K = 0",
            "x",
            label="speedup [95%]",
        ),
    ]
    speedup_end_to_end: Annotated[
        Interval | None,
        Doc(
            "speedup including prefill of target and drafter; with concurrent requests over whole "
            "passes; absent at K = 0",
            "x",
            label="end to end",
        ),
    ] = None
    minimum_detectable_effect: Annotated[
        float | None,
        Doc(
            "smallest relative effect on `speedup` that is detected in 80% of runs; absent "
            "below 5 prompts",
            "fraction",
            low=0,
            label="min. detect. effect",
            form="{:effect}",
        ),
    ] = None
    margin: Annotated[
        Margin | None, Doc("the parts of the interval of `speedup`; absent without one")
    ] = None
    screening: Annotated[
        Screening | None, Doc("stalled requests of this K and of K = 0; absent without one")
    ] = None
    goodput: Annotated[
        Goodput | None,
        Doc(
            "with `--slo` the requests per second within its limits; absent at K = 0 and "
            "without `--slo`"
        ),
    ] = None
    warnings: Annotated[tuple[Reason, ...], Doc("what to look at again; the cell stays valid")] = ()
    speed_margin: Annotated[
        float | None,
        Doc(
            "margin of error of its tokens per second, for other prompts and another state of the "
            "machine; absent below 5 prompts or passes",
            "fraction",
            low=0,
        ),
    ] = None

    @property
    def as_decided(self) -> "CellSummary":
        """The summary that decisions compare: with an SLO its speedup is the goodput ratio."""
        if self.goodput is None:
            return self
        return replace(
            self,
            speedup=self.goodput.ratio,
            minimum_detectable_effect=self.goodput.minimum_detectable_effect,
            margin=self.goodput.margin,
            screening=None,
        )


class SpeedupVerdict(StrEnum):
    """The answer for one drafter, or for all drafters of a setting."""

    FASTER = "faster"
    NO_SPEEDUP = "no speedup"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured"  # only of a setting


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The recommendation for one pairing under one condition."""

    leader: Annotated[
        CellKey, Doc("the cell that it is about, also if the answer is not to use it")
    ]
    draft: Annotated[
        DraftConfig, Doc("what to use: that of `leader`; of no method at K = 0 or if undecided")
    ]
    verdict: Annotated[SpeedupVerdict, Doc("`faster`, `no speedup` or `undecided`")]
    speedup: Annotated[
        Interval | None,
        Doc(
            "what the answer quotes, of the winner in its confirmation run (with `--slo` "
            "the goodput ratio); absent if nothing may be quoted",
            "x",
        ),
    ]
    end_to_end: Annotated[
        Interval | None,
        Doc("the same for whole requests; absent if not measured, or with `--slo`", "x"),
    ]
    answer: Annotated[
        tuple[Reason, ...], Doc("what was found, then what would decide it; `text` joins them")
    ]
    reasons: Annotated[tuple[Reason, ...], Doc("the facts behind it, the most important first")]
    warnings: Annotated[
        tuple[Reason, ...], Doc("about the measurement that the answer quotes")
    ] = ()
    is_synthetic: Annotated[bool, Doc("as in the document")] = False

    @property
    def mark(self) -> str:
        """What every sentence about it ends with, such as ` [lossy: typical]`."""
        lossy = lossy_mark(self.leader.draft.lossy)
        return f"{lossy} [synthetic]" if self.is_synthetic else lossy

    @property
    def decided_by(self) -> Interval | None:
        """The speedup that the verdict is about: of whole requests where only decoding is faster,
        and otherwise the quoted one."""
        kinds = {reason.kind for reason in self.answer}
        is_whole = kinds & {Kind.ONLY_DECODING, Kind.OPEN_WHOLE}
        return self.end_to_end if is_whole else self.speedup

    @property
    def condition(self) -> Condition:
        return self.leader.condition

    @property
    def key(self) -> CellKey:
        """The recommended cell; at K = 0 the leader without drafts."""
        return replace(self.leader, draft=self.draft)
