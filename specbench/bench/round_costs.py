"""Seconds of real rounds at every K, timed alternately on real texts."""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from specbench.bench.blocks import Cell, request_seed, work_of
from specbench.engines.engine import Engine, Load, ServedPass
from specbench.records import Request, RoundCost
from specbench.records.forecasts import later_s
from specbench.stats.intervals import paired_log_ratio
from specbench.tracing.trace import TargetText

# A timing repetition decodes the same number of tokens at every K. After a prompt a machine needs
# some rounds to reach its steady speed: the first half of a repetition shows their cost, the second
# half the cost of the rounds that follow.
REPETITION_TOKENS = 24
FEWEST_ROUNDS = 4  # of a repetition
FEWEST_REPETITIONS, MOST_REPETITIONS = 6, 200  # an interval needs five
ENOUGH_ERROR = 0.01  # standard error of a cost, relative to K = 0
TIME_SHARE = 0.06  # of the time that decoding at every K would take; repetitions then end


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedCell:
    """A cell whose rounds are timed, also for cells that differ only in the workload."""

    cell: Cell
    cell_ids: tuple[str, ...]
    tokens_per_round: float  # expected, to give a repetition enough rounds
    num_rounds: float  # of the whole sweep of these cells


class RoundCosts:
    """The costs of cells with equal concurrency and sampling, with K = 0, by timing repetitions.

    A repetition decodes the beginning of an answer, with the earlier turns in the cache as in a
    sweep. Each row has a different text.
    """

    def __init__(
        self,
        engine: Engine,
        cells: Sequence[TimedCell],
        texts: Sequence[TargetText],
        *,
        seed: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cells = cells
        (self._baseline,) = (timed for timed in cells if timed.cell.key.is_baseline)
        self._engine = engine
        self._texts = texts
        self._by_turn = {_turn(text): text for text in texts}
        self._seed = seed
        self._clock = clock
        self._rows = cells[0].cell.key.condition.concurrency
        self._repetitions: dict[str, list[tuple[float, ...]]] = {c.cell.key.id: [] for c in cells}
        self._contexts: list[float] = []
        self.spent_s = 0.0

    def finish(self, should_continue: Callable[[], bool] = lambda: True) -> list[RoundCost]:
        """Repeat at least once, until costs are precise, have used their share of the time, or
        `should_continue` is false."""
        while not self.num_repetitions or not (
            self.is_precise or self._has_used_its_share() or not should_continue()
        ):
            self.repeat()
        return [
            RoundCost(
                cell_ids=timed.cell_ids,
                num_speculative_tokens=timed.cell.key.draft.k,
                num_rows=self._rows,
                context=round(median(self._contexts)),
                visits_s=tuple(self._repetitions[timed.cell.key.id]),
            )
            for timed in self.cells
        ]

    @property
    def num_repetitions(self) -> int:
        return len(self._contexts)

    def repeat(self) -> None:
        """Time some rounds of every cell, one cell after another, all over the same texts."""
        began_s, number = self._clock(), self.num_repetitions
        chosen = [
            self._texts[(number * self._rows + row) % len(self._texts)] for row in range(self._rows)
        ]
        seconds: dict[str, list[list[float]]] = defaultdict(list)
        for timed in self._order(number):
            served = self._engine.serve(
                self._requests(chosen, timed), work_of(timed.cell), Load(concurrency=self._rows)
            )
            seconds[timed.cell.key.id].append(round_seconds(served, self._rows))
        for cell_id, times in seconds.items():
            self._repetitions[cell_id].append(tuple(map(fmean, zip(*times, strict=False))))
        self._contexts.append(fmean(len(t.prompt_ids) + REPETITION_TOKENS / 2 for t in chosen))
        self.spent_s += self._clock() - began_s

    def _requests(self, texts: Sequence[TargetText], timed: TimedCell) -> list[Request]:
        """Requests for the first tokens of each text, after requests for the earlier turns.

        Those put the earlier turns into the cache, because a long prefill slows the rounds that
        follow it; each emits one token, which is not timed.
        """
        num_tokens = math.ceil(max(FEWEST_ROUNDS * timed.tokens_per_round, REPETITION_TOKENS)) + 1
        beginnings = [
            Request(
                prompt_ids=text.prompt_ids,
                max_new_tokens=num_tokens,
                sampling=timed.cell.sampling,
                seed=request_seed(self._seed, text.prompt_id, 0, text.turn),
                stop_at_eos=False,  # a text that ends immediately would have no round
                conversation=str(row),
                prediction_ids=text.prediction_ids,
            )
            for row, text in enumerate(texts)
        ]
        before = [self._by_turn.get(_turn(text, back=1)) for text in texts]
        openings = [
            replace(
                beginning,
                prompt_ids=(*earlier.prompt_ids, *earlier.output_ids[:-1]),
                max_new_tokens=1,
                prediction_ids=(),
            )
            for beginning, earlier in zip(beginnings, before, strict=True)
            if earlier is not None
        ]
        return [*openings, *beginnings]

    def _order(self, number: int) -> list[TimedCell]:
        """The cells shuffled, so that drift affects every K alike, with K = 0 several times.

        The error of K = 0 is in every ratio. With n other cells, sqrt(n) repeats of K = 0 give the
        same errors at the least cost (Dunnett 1955, on comparisons with one control).
        """
        order = [timed for timed in self.cells if timed is not self._baseline]
        random.Random(f"{self._seed}|{number}").shuffle(order)
        times = round(math.sqrt(len(order))) or 1
        for i in reversed(range(times)):
            order.insert(round(len(order) * (i + 0.5) / times), self._baseline)
        return order

    @property
    def is_precise(self) -> bool:
        """Whether every cost has a small standard error, or the repetitions reached their limit."""
        if self.num_repetitions < FEWEST_REPETITIONS:
            return False
        if self.num_repetitions >= MOST_REPETITIONS:
            return True
        later = self._later_times()
        step = later[self._baseline.cell.key.id]
        ratios = (paired_log_ratio(cost, step) for cost in later.values() if cost is not step)
        return all((ratio.standard_error or 0.0) <= ENOUGH_ERROR for ratio in ratios)

    def _has_used_its_share(self) -> bool:
        later = self._later_times()
        sweep_s = sum(median(later[timed.cell.key.id]) * timed.num_rounds for timed in self.cells)
        is_enough = self.num_repetitions >= FEWEST_REPETITIONS
        return is_enough and self.spent_s > TIME_SHARE * sweep_s

    def _later_times(self) -> dict[str, list[float]]:
        return {cell_id: [*map(later_s, times)] for cell_id, times in self._repetitions.items()}


def round_seconds(served: ServedPass, num_rows: int) -> list[float]:
    """Seconds of rounds with all rows in use, from the start of each to the start of the next."""
    rounds = served.rounds
    ends = [*rounds.at_s[1:], None]
    full = [
        own_s if end_s is None else end_s - at_s
        for at_s, own_s, end_s, live in zip(
            rounds.at_s, rounds.seconds, ends, rounds.num_live, strict=True
        )
        if live >= num_rows
    ]
    return full or list(rounds.seconds)


def _turn(text: TargetText, back: int = 0) -> tuple[str, str, int, int]:
    return text.workload, text.prompt_id, text.repeat, text.turn - back
