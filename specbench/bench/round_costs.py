"""Seconds of real rounds at every K, measured in turns at places of real texts."""

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
from specbench.tracing.text import TargetText

# A visit is one timing repetition: as many tokens at every K. After a prompt a machine takes some
# rounds to get to its pace: the first half of a repetition shows what that costs, the second half
# what rounds cost then.
VISIT_TOKENS = 24
FEWEST_ROUNDS = 4  # of a repetition
FEWEST_VISITS, MOST_VISITS = 6, 200  # an interval needs five
ENOUGH_ERROR = 0.01  # standard error of a cost, relative to K = 0: on an idle machine soon there
TIME_SHARE = 0.06  # of what decoding at every K would take: no more repetitions then


@dataclass(frozen=True, kw_only=True, slots=True)
class Costed:
    """A cell whose rounds are timed, for others that differ in the workload alone, too."""

    cell: Cell
    cell_ids: tuple[str, ...]
    tokens_per_round: float  # expected, so that a repetition has rounds enough
    num_rounds: float  # that measuring all of them for real would take


class RoundCosts:
    """The costs of cells of equal rows and sampling, K = 0 among them, repetition by repetition.

    Each begins a text's answer, the turns before it in the cache as in a sweep; with several rows
    each has a text of its own.
    """

    def __init__(
        self,
        engine: Engine,
        costed: Sequence[Costed],
        texts: Sequence[TargetText],
        *,
        seed: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.costed = costed
        (self._baseline,) = (one for one in costed if one.cell.key.is_baseline)
        self._engine = engine
        self._texts = texts
        self._by_turn = {_turn(text): text for text in texts}
        self._seed = seed
        self._clock = clock
        self._rows = costed[0].cell.key.condition.concurrency
        self._visits: dict[str, list[tuple[float, ...]]] = {c.cell.key.id: [] for c in costed}
        self._contexts: list[float] = []
        self.spent_s = 0.0

    def finish(self, may_go_on: Callable[[], bool] = lambda: True) -> list[RoundCost]:
        """Repeat until costs are known well enough or have taken their share of time; after the
        first repetition only while they `may_go_on`."""
        while not self.num_visits or not (
            self.is_known or self._has_taken_its_share() or not may_go_on()
        ):
            self.visit()
        return [
            RoundCost(
                cell_ids=one.cell_ids,
                num_speculative_tokens=one.cell.key.draft.k,
                num_rows=self._rows,
                context=round(median(self._contexts)),
                visits_s=tuple(self._visits[one.cell.key.id]),
            )
            for one in self.costed
        ]

    @property
    def num_visits(self) -> int:
        return len(self._contexts)

    def visit(self) -> None:
        """Some rounds of every cell, one cell after another, all over the same texts."""
        began_s, number = self._clock(), self.num_visits
        chosen = [
            self._texts[(number * self._rows + row) % len(self._texts)] for row in range(self._rows)
        ]
        seconds: dict[str, list[list[float]]] = defaultdict(list)
        for one in self._order(number):
            served = self._engine.serve(
                self._requests(chosen, one), work_of(one.cell), Load(concurrency=self._rows)
            )
            seconds[one.cell.key.id].append(round_seconds(served, self._rows))
        for cell_id, times in seconds.items():
            self._visits[cell_id].append(tuple(map(fmean, zip(*times, strict=False))))
        self._contexts.append(fmean(len(t.prompt_ids) + VISIT_TOKENS / 2 for t in chosen))
        self.spent_s += self._clock() - began_s

    def _requests(self, texts: Sequence[TargetText], one: Costed) -> list[Request]:
        """For each text its first tokens; before that, of later turns, the ones before.

        Those emit a token of their own, which is no round, and leave what they read in the cache:
        the more is read at once, the slower are the rounds that follow.
        """
        num_tokens = math.ceil(max(FEWEST_ROUNDS * one.tokens_per_round, VISIT_TOKENS)) + 1
        visits = [
            Request(
                prompt_ids=text.prompt_ids,
                max_new_tokens=num_tokens,
                sampling=one.cell.sampling,
                seed=request_seed(self._seed, text.prompt_id, 0, text.turn),
                stop_at_eos=False,  # a text that ends at once would show no round
                conversation=str(row),
                prediction_ids=text.prediction_ids,
            )
            for row, text in enumerate(texts)
        ]
        before = [self._by_turn.get(_turn(text, back=1)) for text in texts]
        openings = [
            replace(
                visit,
                prompt_ids=(*earlier.prompt_ids, *earlier.output_ids[:-1]),
                max_new_tokens=1,
                prediction_ids=(),
            )
            for visit, earlier in zip(visits, before, strict=True)
            if earlier is not None
        ]
        return [*openings, *visits]

    def _order(self, number: int) -> list[Costed]:
        """Shuffled, so that drift hits every K alike; K = 0 comes several times.

        Every ratio shares its error. With n others, sqrt(n) of them cost least for the same
        errors of all ratios (Dunnett 1955, on comparisons with one control).
        """
        order = [one for one in self.costed if one is not self._baseline]
        random.Random(f"{self._seed}|{number}").shuffle(order)
        times = round(math.sqrt(len(order))) or 1
        for i in reversed(range(times)):
            order.insert(round(len(order) * (i + 0.5) / times), self._baseline)
        return order

    @property
    def is_known(self) -> bool:
        """Whether more repetitions would tell little; FEWEST_VISITS would not say it."""
        if self.num_visits < FEWEST_VISITS:
            return False
        if self.num_visits >= MOST_VISITS:
            return True
        later = self._later()
        step = later[self._baseline.cell.key.id]
        ratios = (paired_log_ratio(own, step) for own in later.values() if own is not step)
        return all((ratio.standard_error or 0.0) <= ENOUGH_ERROR for ratio in ratios)

    def _has_taken_its_share(self) -> bool:
        later = self._later()
        sweep_s = sum(median(later[one.cell.key.id]) * one.num_rounds for one in self.costed)
        return self.num_visits >= FEWEST_VISITS and self.spent_s > TIME_SHARE * sweep_s

    def _later(self) -> dict[str, list[float]]:
        return {cell_id: [*map(later_s, visits)] for cell_id, visits in self._visits.items()}


def round_seconds(served: ServedPass, num_rows: int) -> list[float]:
    """Seconds of rounds with all rows in use: from each one's start to the next one's."""
    rounds = served.rounds
    until = [*rounds.at_s[1:], None]
    found = [
        own_s if end_s is None else end_s - at_s
        for at_s, own_s, end_s, live in zip(
            rounds.at_s, rounds.seconds, until, rounds.num_live, strict=True
        )
        if live >= num_rows
    ]
    return found or list(rounds.seconds)


def _turn(text: TargetText, back: int = 0) -> tuple[str, str, int, int]:
    return text.workload, text.prompt_id, text.repeat, text.turn - back
