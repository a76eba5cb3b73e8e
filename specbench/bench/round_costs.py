"""Seconds of real rounds at every K, measured in turns at places of real texts."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from specbench.bench.blocks import Cell, request_seed
from specbench.bench.work import work_of
from specbench.engines.engine import Engine, EngineRequest, Load, ServedPass
from specbench.metrics.setting import is_baseline
from specbench.records import RoundCost
from specbench.stats.intervals import mean_log_ratio
from specbench.tracing.text import Text

# A visit is as many tokens at every K. After a prompt a machine takes some rounds to get to its
# pace: the first half of a visit shows what that costs, the second half what rounds cost then.
VISIT_TOKENS = 24
FEWEST_ROUNDS = 4  # of a visit
FEWEST_VISITS, MOST_VISITS = 6, 24  # an interval needs five
ENOUGH_ERROR = 0.01  # standard error of a cost, relative to K = 0: on an idle machine soon there
TIME_SHARE = 0.08  # of what decoding at every K would take: no more visits then


@dataclass(frozen=True, kw_only=True, slots=True)
class Costed:
    """A cell whose rounds are timed, for others that differ in the workload alone, too."""

    cell: Cell
    cell_ids: tuple[str, ...]
    tokens_per_round: float  # expected, so that a visit has rounds enough
    num_rounds: float  # that measuring all of them for real would take


def measure_round_costs(
    engine: Engine,
    costed: Sequence[Costed],
    texts: Sequence[Text],
    *,
    seed: int,
    may_go_on: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[RoundCost]:
    """The costs of cells of equal rows and sampling, K = 0 among them.

    A visit goes on from the middle of a text's answer; with several rows each has a text of its
    own. Visits are made until costs are known well enough, or have taken their share of time, and
    after the first one only while they `may_go_on`.
    """
    visits: dict[str, list[float]] = {one.cell.key.id: [] for one in costed}
    first: dict[str, list[float]] = {cell_id: [] for cell_id in visits}
    num_rounds, num_first = dict.fromkeys(visits, 0), dict.fromkeys(visits, 0)
    contexts: list[int] = []
    rows = costed[0].cell.key.concurrency
    began_s = clock()
    for visit in range(MOST_VISITS):
        if visit >= FEWEST_VISITS and _is_enough(costed, visits, clock() - began_s):
            break
        if visit and not may_go_on():
            break
        chosen = [texts[(visit * rows + row) % len(texts)] for row in range(rows)]
        contexts += [len(text.prompt_ids) + _middle(text) for text in chosen]
        order = list(costed)
        random.Random(f"{seed}|{visit}").shuffle(order)  # drift hits every K alike
        for one in order:
            fewest = FEWEST_ROUNDS * one.tokens_per_round
            num_tokens = math.ceil(max(fewest, VISIT_TOKENS)) + 1
            requests = [_request(text, one.cell, num_tokens, seed) for text in chosen]
            served = engine.serve(requests, work_of(one.cell), Load(concurrency=rows))
            seconds = round_seconds(served, rows)
            half = max(len(seconds) // 2, 1)
            first[one.cell.key.id].append(fmean(seconds[:half]))
            visits[one.cell.key.id].append(fmean(seconds[half:] or seconds))
            num_first[one.cell.key.id] += half
            num_rounds[one.cell.key.id] += len(seconds)
    for one in costed:
        yield RoundCost(
            cell_ids=one.cell_ids,
            num_speculative_tokens=one.cell.key.num_speculative_tokens,
            num_rows=rows,
            context=round(median(contexts)),
            visits_s=tuple(visits[one.cell.key.id]),
            first_s=tuple(first[one.cell.key.id]),
            num_first=num_first[one.cell.key.id] / len(first[one.cell.key.id]),
            num_rounds=num_rounds[one.cell.key.id],
        )


def round_seconds(served: ServedPass, num_rows: int) -> list[float]:
    """Of rounds with all rows in use: from each one's start to the next one's."""
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


def _is_enough(
    costed: Sequence[Costed], visits: Mapping[str, Sequence[float]], spent_s: float
) -> bool:
    sweep_s = sum(median(visits[one.cell.key.id]) * one.num_rounds for one in costed)
    if spent_s > TIME_SHARE * sweep_s:
        return True
    (baseline,) = (one.cell.key.id for one in costed if is_baseline(one.cell.key))
    ratios = (mean_log_ratio(own, visits[baseline]) for i, own in visits.items() if i != baseline)
    return all((ratio.standard_error or 0.0) <= ENOUGH_ERROR for ratio in ratios)


def _request(text: Text, cell: Cell, num_tokens: int, seed: int) -> EngineRequest:
    begun = text.output_ids[: _middle(text)]
    return EngineRequest(
        prompt_ids=(*text.prompt_ids, *begun),
        max_new_tokens=num_tokens,
        sampling=cell.sampling,
        seed=request_seed(seed, text.prompt_id, 0, text.turn),
        stop_at_eos=False,  # a text that ends at once would show no round
        prediction_ids=text.prediction_ids,
    )


def _middle(text: Text) -> int:
    """Tokens of the answer that a visit takes for read; at least one is left to decode."""
    return len(text.output_ids) // 2
