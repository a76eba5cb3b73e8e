"""What was forecast before any K was measured for real, and the costs it stands on."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from specbench.records.keys import CellKey, Condition
from specbench.settings import AcceptanceRule
from specbench.stats.interval import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCost:
    """Seconds of real rounds at one K, measured in turns with those of every other K.

    A timing repetition is the first rounds of an answer. Repetition i of every K of a group is of
    the same text, so two K are compared repetition by repetition.
    """

    cell_ids: tuple[str, ...]  # whose rounds these are: cells that differ in the workload alone
    num_speculative_tokens: int
    num_rows: int
    context: int  # tokens in the cache half-way through a repetition, median of all
    visits_s: tuple[tuple[float, ...], ...]  # by repetition, each round until the next one starts

    @property
    def num_rounds(self) -> int:
        """Rounds of all repetitions together."""
        return sum(map(len, self.visits_s))

    @property
    def seconds(self) -> float:
        """A round's, once the machine is at its pace: median over the repetitions."""
        return median(map(later_s, self.visits_s))

    def of_answers(self, num_rounds: Sequence[float]) -> tuple[float, ...]:
        """By repetition, the mean seconds of a round of answers that have so many each, at least 1.

        Rounds after a prompt are slower at first: an answer has as many of them as a repetition
        has, and those beyond its last one take what its later ones do.
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
    """What a round costs in the engine that the user serves with: told to us, or timed there."""

    source: str  # the file's name or the server's address, as it is shown
    engine: str  # what runs there, such as "vllm 0.32.0"
    num_speculative_tokens: int
    concurrency: int
    cost: float  # of a round: seconds, or steps of that engine without speculation
    is_relative: bool  # True: in steps
    # As that engine counted it there; of a run that measured the engine, as we count it.
    mean_acceptance_length: float | None = None
    speedup: float | None = None  # over K = 0, as it was measured there
    # What it was measured of and on; None: holds for any.
    target: str | None = None
    drafter: str | None = None
    workload: str | None = None
    temperature: float | None = None

    def is_of(self, at: Condition, drafter: str) -> bool:
        """Whether it says what a round of this drafter costs under this condition."""
        return (
            self.target in (None, at.target)
            and self.drafter in (None, drafter)
            and self.workload in (None, at.workload)
            and self.temperature in (None, at.temperature)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastPoint:
    """One K of a forecast; K = 0 is 1 token for 1 step."""

    num_speculative_tokens: int
    mean_acceptance_length: float  # replayed: 1 + sum a / N
    acceptance_rate_per_position: tuple[float, ...]
    cost: float  # of a round, in steps of K = 0
    cost_error: float | None  # standard error, relative; None where it is not known
    round_s: float | None  # None where costs are told in steps
    speedup: Interval | None  # over prompts, the costs' own error joined in; None at K = 0
    # What the engine of the costs came to, where it was measured.
    length_there: float | None = None  # mean_acceptance_length, as it counted it
    speedup_there: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastRecord:
    """A speed-up curve over K from traces and costs, stored before its K are measured for real."""

    key: CellKey  # of its deepest K
    points: tuple[ForecastPoint, ...]  # by K, from 0 on
    best: int  # the K that the forecast would choose; 0: do not speculate
    to_measure: tuple[int, ...]  # the K > 0 that may be as good; none where costs are another's
    num_prompts: int
    context: int  # tokens in the cache in the middle of a typical answer
    is_exact: bool  # False: what it drafts hangs on where rounds began, or on other requests
    costs_of: str | None = None  # whose costs these are; None: measured here
    acceptance_rule: AcceptanceRule = "exact"
    trace_s: float = 0.0  # spent on its traces
    costs_s: float = 0.0  # spent on round costs, shared with forecasts of the same setting
    sweep_s: float | None = None  # seconds of decoding that measuring every K would take
    measure_s: float | None = None  # seconds of decoding that `to_measure` and K = 0 would take

    @property
    def share_saved(self) -> float | None:
        """Share of the sweep's time that the forecast saves, tracing and measuring costs counted
        as spent; None: unknown."""
        if self.sweep_s is None or self.measure_s is None:
            return None
        return 1 - (self.trace_s + self.costs_s + self.measure_s) / self.sweep_s
