"""Traces, round costs, and the forecasts that are made from them before any K is measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Annotated, Literal

from specbench.doc import Doc
from specbench.records.keys import CellKey, Condition
from specbench.settings import AcceptanceRule
from specbench.stats.summaries import Interval

Drafting = Literal["own", "greedy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRecord:
    """All rounds that could start in one text of the target, and the tokens they would accept.

    Start s = 0 .. n - 2 means after output token s; its draft tokens predict tokens s + 1,
    s + 2 and so on. The text does not depend on the starts of rounds, so rounds are replayed over
    it for every K without running anything (`forecast.replay_one`).
    """

    target: str
    drafter: str
    method: str
    workload: str
    prompt_id: str
    turn: int
    repeat: int
    temperature: float
    num_speculative_tokens: int  # the depth that was traced
    is_chain: bool  # every smaller K drafts a prefix of it, so one trace serves all
    is_exact: bool  # False: drafts depend on the starts of earlier rounds, or on other requests
    num_prompt_tokens: int
    output_ids: tuple[int, ...]  # the target's text, n tokens; the first is from prefill
    # Per start; nodes of a tree; without those beyond the token budget.
    num_drafted: tuple[int, ...]
    # Per start and depth: P(the draft token is accepted | the text, and those before it were
    # accepted); 0 or 1 if the text decides it. It ends with the budget, the text or the drafts.
    chances: tuple[tuple[float, ...], ...]
    drafting: Drafting = "own"  # greedy: the likeliest tokens at any temperature, as in vLLM
    context: int | None = None  # as in CellKey
    seconds: float | None = None  # for tracing, without decoding the text


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCost:
    """Seconds of real rounds at one K, interleaved with those of every other K.

    A timing repetition is the first rounds of an output. Repetition i of every K of a group has
    the same text, so two K are compared repetition by repetition.
    """

    cell_ids: tuple[str, ...]  # whose rounds these are: cells that differ only in the workload
    num_speculative_tokens: int
    num_rows: int
    context: int  # tokens in the cache half-way through a repetition, median of all
    visits_s: tuple[tuple[float, ...], ...]  # by repetition, each round until the next one starts

    @property
    def num_rounds(self) -> int:
        """Number of rounds of all repetitions."""
        return sum(map(len, self.visits_s))

    @property
    def seconds(self) -> float:
        """Seconds per round in steady state: median over the repetitions."""
        return median(map(later_s, self.visits_s))

    def of_answers(self, num_rounds: Sequence[float]) -> tuple[float, ...]:
        """Mean seconds per round of outputs with these numbers of rounds, by repetition.

        The first rounds after a prompt are slower. Rounds beyond the end of a repetition take the
        mean of its second half. An output has at least one round.
        """
        counts = [max(n, 1.0) for n in num_rounds]
        return tuple(
            sum(_answer_s(rounds_s, n) for n in counts) / sum(counts) for rounds_s in self.visits_s
        )


def later_s(rounds_s: Sequence[float]) -> float:
    """The mean of a repetition's second half."""
    return fmean(rounds_s[len(rounds_s) // 2 :])


def _answer_s(rounds_s: Sequence[float], num_rounds: float) -> float:
    whole = min(int(num_rounds), len(rounds_s))
    beyond_s = rounds_s[whole] if whole < len(rounds_s) else later_s(rounds_s)
    return sum(rounds_s[:whole]) + (num_rounds - whole) * beyond_s


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCost:
    """The cost of a round in a serving engine: given by the user, or measured there."""

    source: str  # the name of the file or the address of the server, as shown
    engine: str  # such as "vllm 0.32.0"
    num_speculative_tokens: int
    concurrency: int
    cost: float  # of a round: seconds, or steps of that engine without speculation
    is_relative: bool  # True: in steps
    # As that engine counts it, or as specbench does in a run that measured the engine.
    mean_acceptance_length: float | None = None
    speedup: float | None = None  # over K = 0, as it was measured there
    # The setting that it was measured in; None: any.
    target: str | None = None
    drafter: str | None = None
    workload: str | None = None
    temperature: float | None = None
    context: int | None = None  # 0: prompts unchanged
    num_samples: int | None = None

    def is_of(self, at: Condition, drafter: str) -> bool:
        """Whether it is the cost of a round of this drafter under this condition."""
        return (
            self.target in (None, at.target)
            and self.drafter in (None, drafter)
            and self.workload in (None, at.workload)
            and self.temperature in (None, at.temperature)
            and self.context in (None, at.context or 0)
            and self.num_samples in (None, at.num_samples)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastPoint:
    """One K of a forecast; K = 0 is 1 token for 1 step."""

    num_speculative_tokens: Annotated[int, Doc("K", "tokens/round")]
    mean_acceptance_length: Annotated[
        float, Doc("1 + accepted / rounds, of the replayed rounds", "tokens/round", low=1)
    ]
    acceptance_rate_per_position: Annotated[
        tuple[float, ...],
        Doc(
            "share of the replayed rounds that accept at least 1, 2 .. K draft tokens",
            "fraction",
            low=0,
        ),
    ]
    cost: Annotated[float, Doc("cost of a round, in steps of K = 0", "steps")]
    cost_error: Annotated[
        float | None, Doc("its relative standard error; absent if unknown", "fraction", low=0)
    ]
    round_s: Annotated[float | None, Doc("a round; absent if costs are given in steps", "s")]
    speedup: Annotated[
        Interval | None,
        Doc(
            "forecast, with the interval over prompts and the error of the costs; absent at K = 0",
            "x",
        ),
    ]
    length_there: Annotated[
        float | None,
        Doc(
            "mean acceptance length that the engine of the costs counted, by its own "
            "convention; absent if unknown",
            "tokens/round",
        ),
    ] = None
    speedup_there: Annotated[
        float | None, Doc("speedup that was measured in that engine; absent if unknown", "x")
    ] = None


SMALL_GAIN = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveBound:
    """What choosing K for every round could gain over the K that a forecast chose, which may be 0.

    Ratios of decode seconds, by traces and round costs, over the traced prompts.
    """

    hindsight: Annotated[
        Interval,
        Doc("the fixed K / the best K of every round, which only the finished text shows", "x"),
    ]
    past: Annotated[
        Interval | None,
        Doc(
            "the fixed K / a policy that knows only which draft tokens were accepted before, "
            "fitted on other prompts; absent for a single prompt",
            "x",
        ),
    ]

    @property
    def is_small(self) -> bool:
        """Whether no adaptive K is worth a try: even hindsight gains at most 5%, for certain."""
        return self.hindsight.high is not None and self.hindsight.high <= SMALL_GAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastRecord:
    """A speedup curve over K from traces and costs, stored before its K are measured."""

    key: Annotated[CellKey, Doc("the cell of its largest K")]
    points: Annotated[tuple[ForecastPoint, ...], Doc("by K, from 0")]
    best: Annotated[int, Doc("the K that the forecast chose; 0: do not speculate", "tokens/round")]
    to_measure: Annotated[
        tuple[int, ...],
        Doc(
            "the K > 0 that may be as good and are worth measuring; empty if the costs are "
            "another engine's",
            low=1,
        ),
    ]
    num_prompts: Annotated[
        int, Doc("prompts that were traced; 0: acceptance is from an imported file", "prompts")
    ]
    context: Annotated[
        int,
        Doc("tokens in the cache in the middle of a typical output; 0: unknown", "tokens"),
    ]
    is_exact: Annotated[
        bool,
        Doc(
            "`false`: replaying is an approximation, because what this method drafts depends "
            "on the position at which rounds begin or on other requests"
        ),
    ]
    costs_of: Annotated[str | None, Doc("whose round costs these are; absent: measured here")] = (
        None
    )
    acceptance_rule: Annotated[
        AcceptanceRule,
        Doc(
            "`exact`: drafts are made as this decoder makes them; `greedy_draft`: the "
            "likeliest tokens at any temperature"
        ),
    ] = "exact"
    trace_s: Annotated[float, Doc("spent on its traces", "s")] = 0.0
    costs_s: Annotated[float, Doc("its part of the time spent on round costs", "s")] = 0.0
    sweep_s: Annotated[
        float | None,
        Doc(
            "decoding time that measuring every K would take, confirmation runs included; "
            "absent with the costs of another engine",
            "s",
        ),
    ] = None
    measure_s: Annotated[float | None, Doc("the same for K = 0 and `to_measure`", "s")] = None
    adaptive: Annotated[
        AdaptiveBound | None,
        Doc("what another K for every round could gain over `best`; absent if unknown"),
    ] = None

    @property
    def leader(self) -> ForecastPoint:
        """The point of K > 0 that the forecast is about: of the chosen K, else of the fastest."""
        drafting = [p for p in self.points if p.num_speculative_tokens]
        chosen = [p for p in drafting if p.num_speculative_tokens == self.best]
        return max(chosen or drafting, key=lambda p: p.speedup.estimate if p.speedup else 0.0)

    @property
    def share_saved(self) -> float | None:
        """Share of the sweep's time that the forecast saves after its own cost; None: unknown."""
        if self.sweep_s is None or self.measure_s is None:
            return None
        return 1 - (self.trace_s + self.costs_s + self.measure_s) / self.sweep_s
