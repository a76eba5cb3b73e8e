"""What a choice of K for every round could gain over the best fixed K, from traces and round costs.

In hindsight the text is known, and the cheapest K of every round follows by dynamic programming:

    V(s) = min over k of c(k) + sum over a of P(a | s, k) V(s + a + 1),  V(end) = 0

The text is walked, because another K moves the start of the next round. No choice of K costs less,
if costs do not fall in K (`CostCurve.rising`): at temperature 0 for certain, above it on average
over the draft tokens, given this text. Concurrent requests each get their own K, which is at least
as good as one for all. After rounds at K = 0 a drafter first processes the tokens that it has not
seen. The bound leaves this cost out, so it still holds: on chat and creative of the bundled pair, a
decode at these K gains 2 percentage points less.

No policy knows the text. How much the past tells is shown by a policy that is fitted on other
prompts. It is the best of those tried, so another one may gain more, up to the bound.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.forecast.cost_curve import CostCurve
from specbench.forecast.forecast import Floats, Steps, serves, steps
from specbench.records import AdaptiveBound, ForecastRecord, TraceRecord
from specbench.stats.intervals import LogRatio, interval, log_ratio, product
from specbench.stats.summaries import Interval

Counts = NDArray[np.int64]


def with_bound(
    record: ForecastRecord,
    traces: Sequence[TraceRecord],
    curve: CostCurve,
    *,
    fits_policy: bool = True,
) -> ForecastRecord:
    """The forecast with the bound of adaptive K over its best K; without one if replays are
    approximate, because then a round depends on the K of earlier rounds."""
    ks = [point.num_speculative_tokens for point in record.points]
    texts = _texts(traces, ks)
    if not record.is_exact or not texts:
        return record
    cost_K, best = curve.rising(ks), ks.index(record.best)
    fixed_NK = np.zeros((len({text.prompt_id for text in texts}), len(ks)))
    fixed_NK[:, [best]] = _by_prompt(texts, [best], cost_K)
    past_NK = _held_out(texts, cost_K) if fits_policy else None

    def gain(rounds_NK: Floats) -> Interval:
        return interval(_gain(fixed_NK, rounds_NK, cost_K, ks, curve))

    hindsight = gain(_by_prompt(texts, [*range(len(ks))], cost_K))
    if hindsight.low is not None:  # the best choice of K includes the fixed one
        hindsight = replace(hindsight, low=max(hindsight.low, 1.0))
    return replace(
        record,
        adaptive=AdaptiveBound(
            hindsight=hindsight,
            past=None if past_NK is None else gain(past_NK),
        ),
    )


def _gain(
    fixed_NK: Floats, rounds_NK: Floats, cost_K: Floats, ks: Sequence[int], curve: CostCurve
) -> LogRatio:
    """Cost of the rounds at a fixed K / of the others, over prompts and the error of the costs.

    The derivative of the least cost is that of the rounds which reach it (envelope theorem).
    """
    prompts = log_ratio([fixed_NK @ cost_K], [rounds_NK @ cost_K])
    mixes = (
        dict(zip(ks, each.sum(axis=0).tolist(), strict=True)) for each in (fixed_NK, rounds_NK)
    )
    return product(prompts, replace(curve.ratio_of(*mixes), log=0.0))


class _Text(NamedTuple):
    """One text of the target, as rounds at every K walk it."""

    prompt_id: str
    steps: tuple[Steps, ...]  # by K


def _texts(traces: Sequence[TraceRecord], ks: Sequence[int]) -> list[_Text]:
    """The texts in the order of their traces; a tree has a trace per depth."""
    by_text: dict[tuple[str, int, int], dict[int, Steps]] = {}
    for trace in traces:
        if len(trace.output_ids) > 1:
            known = by_text.setdefault((trace.prompt_id, trace.turn, trace.repeat), {})
            known |= {k: steps(trace, k) for k in ks if k not in known and serves(trace, k)}
    return [
        _Text(prompt, tuple(known[k] for k in ks))
        for (prompt, *_), known in by_text.items()
        if len(known) == len(ks)  # a killed run may lack some depths
    ]


def _by_prompt(texts: Sequence[_Text], choices: Sequence[int], cost_K: Floats) -> Floats:
    """The cheapest rounds of each prompt among some K [N, K], its texts summed."""
    sums: dict[str, Floats] = {}
    for text in texts:
        schedule = cheapest([text.steps[i] for i in choices], cost_K[choices])
        sums[text.prompt_id] = sums.get(text.prompt_id, 0.0) + schedule.rounds_K
    return np.array([*sums.values()])


class Schedule(NamedTuple):
    """The cheapest K of a round at every start, as an index of the K, and what it comes to."""

    choice_S: tuple[int, ...]
    rounds_K: Floats  # expected rounds at each K
    cost: float


def cheapest(steps_K: Sequence[Steps], cost_K: Floats) -> Schedule:
    """The rounds of one text with the least expected cost in hindsight; of equals the smaller K."""
    num_starts = len(steps_K[0].drafted_S)
    cost_S1 = np.zeros(num_starts + 1)
    choice_S = [0] * num_starts
    for start in reversed(range(num_starts)):
        costs = [
            cost + float(at_k.accepted_SA[start] @ cost_S1[at_k.next_SA[start]])
            for cost, at_k in zip(cost_K, steps_K, strict=True)
        ]
        cost_S1[start] = least = min(costs)
        choice_S[start] = costs.index(least)
    starting_S1 = np.zeros(num_starts + 1)
    starting_S1[0] = 1.0
    for start, choice in enumerate(choice_S):
        at_k = steps_K[choice]
        chances_A = starting_S1[start] * at_k.accepted_SA[start]
        np.add.at(starting_S1, at_k.next_SA[start], chances_A)
    rounds_K = np.zeros(len(cost_K))
    np.add.at(rounds_K, choice_S, starting_S1[:-1])
    return Schedule(tuple(choice_S), rounds_K, float(cost_S1[0]))


_MEMORIES = (8, 32)  # tested draft tokens; each is tried as the memory of a policy
_LEVELS = 5  # of the acceptance in that memory
_LAST = 3  # tested draft tokens that are known one by one
_NUM_STATES = _LEVELS << (_LAST + 1)
_WEIGHT = 40.0  # rounds that the mean of similar states counts as, in the mean of one state
_SAMPLES = 4  # walks of each text above temperature 0
_FITS = 3  # improvements of a policy
_FOLDS = 5
_CLEAR = 0.01  # by which a policy must beat the best fixed K on the prompts that it is fitted on


class _Walk(NamedTuple):
    """A text with what every round would accept, drawn if it is not certain."""

    accepted_SK: Counts
    tested_SK: Counts
    next_SK: Counts
    emitted_SK: Floats  # expected

    @classmethod
    def of(cls, text: _Text, chance_S: Floats) -> "_Walk":
        """The rounds that these uniform draws of each start give, the same for every K."""
        columns = []
        starts_S = np.arange(len(chance_S))
        for at_k in text.steps:
            reached_SA = at_k.accepted_SA[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
            accepted_S = (reached_SA > chance_S[:, None]).sum(axis=1)
            emitted_SA = at_k.next_SA - starts_S[:, None]
            drafted_S = np.minimum(at_k.drafted_S, reached_SA.shape[1])  # not the nodes of a tree
            tested_S = np.minimum(accepted_S + 1, np.maximum(drafted_S, accepted_S))
            emitted_S = (at_k.accepted_SA * emitted_SA).sum(axis=1)
            columns.append((accepted_S, tested_S, at_k.next_SA[starts_S, accepted_S], emitted_S))
        return cls(*(np.stack(each, axis=1) for each in zip(*columns, strict=True)))

    def num_rounds(self, k: int) -> int:
        """Rounds if all are at the k-th K."""
        num_rounds, start = 0, 0
        while start < len(self.next_SK):
            num_rounds, start = num_rounds + 1, self.next_SK[start, k]
        return num_rounds


class _Past:
    """What a policy remembers of the draft tokens that were tested: nothing about the text."""

    def __init__(self, memory: int) -> None:
        self._kept = 1 - 1 / memory
        self._rate, self._last = 0.5, 1  # the highest bit of `_last` stands before the oldest

    @property
    def state(self) -> int:
        level = min(int(self._rate * _LEVELS), _LEVELS - 1)
        return (level << (_LAST + 1)) + self._last

    def observe(self, accepted: int, tested: int) -> None:
        """Add a round; without a test the old ones fade, so that drafting may begin again."""
        if not tested:
            self._rate = 0.5 + (self._rate - 0.5) * self._kept
            self._last = 1
            return
        for is_accepted in (1,) * accepted + (0,) * (tested - accepted):
            self._rate = self._rate * self._kept + is_accepted * (1 - self._kept)
            self._last = self._last << 1 | is_accepted
            if self._last >> (_LAST + 1):
                self._last = self._last & ((1 << _LAST) - 1) | 1 << _LAST


class _StatePolicy(NamedTuple):
    memory: int
    choice_H: Counts  # an index of the K, by state


class _Walked(NamedTuple):
    """Rounds by K and by state, and in each state the tokens that rounds at every K would emit."""

    rounds_K: Floats
    visits_H: Floats
    tokens_HK: Floats


def _walked(walks: Sequence[_Walk], policy: _StatePolicy, num_ks: int) -> _Walked:
    """All rounds of these texts under a policy."""
    rounds_K, visits_H = np.zeros(num_ks), np.zeros(_NUM_STATES)
    tokens_HK = np.zeros((_NUM_STATES, num_ks))
    for walk in walks:
        past, start, end = _Past(policy.memory), 0, len(walk.next_SK)
        while start < end:
            state = past.state
            k = policy.choice_H[state]
            rounds_K[k] += 1
            visits_H[state] += 1
            tokens_HK[state] += walk.emitted_SK[start]
            past.observe(int(walk.accepted_SK[start, k]), int(walk.tested_SK[start, k]))
            start = walk.next_SK[start, k]
    return _Walked(rounds_K, visits_H, tokens_HK)


class _PromptWalks(NamedTuple):
    """The texts of one prompt, with what fits on other prompts learn from it."""

    walks: list[_Walk]
    fixed_K: Floats  # rounds if all are at this K
    explored: dict[int, _Walked]  # by memory: rounds at small, middle and large K

    @classmethod
    def of(cls, walks: list[_Walk], num_ks: int) -> "_PromptWalks":
        explored = {}
        for memory in _MEMORIES:
            policies = [
                _StatePolicy(memory, np.full(_NUM_STATES, k)) for k in {1, num_ks // 2, num_ks - 1}
            ]
            parts = [_walked(walks, policy, num_ks) for policy in policies]
            explored[memory] = _Walked(*(sum(part) for part in zip(*parts, strict=True)))
        fixed = [sum(walk.num_rounds(k) for walk in walks) for k in range(num_ks)]
        return cls(walks, np.array(fixed, dtype=np.float64), explored)


def _held_out(texts: Sequence[_Text], cost_K: Floats) -> Floats | None:
    """Rounds of each prompt at each K [N, K], under a policy that was fitted on the other prompts
    (cross-fitting in at most 5 folds); None with one prompt."""
    rng = np.random.default_rng(0)
    is_certain = all(((at.accepted_SA % 1) == 0).all() for text in texts for at in text.steps)
    repeats = 1 if is_certain else _SAMPLES
    by_prompt: dict[str, list[_Walk]] = {}
    for text in texts:
        for _ in range(repeats):
            walk = _Walk.of(text, rng.random(len(text.steps[0].drafted_S)))
            by_prompt.setdefault(text.prompt_id, []).append(walk)
    if len(by_prompt) < 2:
        return None
    prompts = [_PromptWalks.of(walks, len(cost_K)) for walks in by_prompt.values()]
    rounds_NK = np.zeros((len(prompts), len(cost_K)))
    for fold in range(min(_FOLDS, len(prompts))):
        policy = _fitted([p for n, p in enumerate(prompts) if n % _FOLDS != fold], cost_K)
        for n in range(fold, len(prompts), _FOLDS):
            rounds_NK[n] = _walked(prompts[n].walks, policy, len(cost_K)).rounds_K / repeats
    return rounds_NK


def _fitted(prompts: Sequence[_PromptWalks], cost_K: Floats) -> _StatePolicy:
    """The policy with the least cost on these prompts; a fixed K unless another one costs clearly
    less.

    A round is worth the tokens that it emits, at the price of a token under the last policy
    (Dinkelbach 1967, On nonlinear fractional programming).
    """
    walks = [walk for prompt in prompts for walk in prompt.walks]
    num_tokens = sum(len(walk.next_SK) for walk in walks)
    fixed_K = np.sum([prompt.fixed_K for prompt in prompts], axis=0) * cost_K
    best = _StatePolicy(_MEMORIES[0], np.full(_NUM_STATES, np.argmin(fixed_K)))
    least = float(fixed_K.min()) * (1 - _CLEAR)
    for memory in _MEMORIES:
        visits_H = np.sum([prompt.explored[memory].visits_H for prompt in prompts], axis=0)
        tokens_HK = np.sum([prompt.explored[memory].tokens_HK for prompt in prompts], axis=0)
        price = float(fixed_K.min()) / num_tokens
        for _ in range(_FITS):
            worth_HK = price * _means(tokens_HK, visits_H) - cost_K
            policy = _StatePolicy(memory, np.argmax(worth_HK, axis=1))
            walked = _walked(walks, policy, len(cost_K))
            cost = float(walked.rounds_K @ cost_K)
            price = cost / num_tokens
            visits_H, tokens_HK = visits_H + walked.visits_H, tokens_HK + walked.tokens_HK
            if cost < least:
                best, least = policy, cost
    return best


def _means(tokens_HK: Floats, visits_H: Floats) -> Floats:
    """Tokens per round in each state; little-visited states are like their level, and little-
    visited levels like all."""
    mean_K = tokens_HK.sum(axis=0) / visits_H.sum()
    tokens_LRK = tokens_HK.reshape(_LEVELS, -1, tokens_HK.shape[1])
    visits_LR1 = visits_H.reshape(_LEVELS, -1, 1)
    level_L1K = (tokens_LRK.sum(axis=1, keepdims=True) + _WEIGHT * mean_K) / (
        visits_LR1.sum(axis=1, keepdims=True) + _WEIGHT
    )
    means_LRK = (tokens_LRK + _WEIGHT * level_L1K) / (visits_LR1 + _WEIGHT)
    means: Floats = means_LRK.reshape(tokens_HK.shape)
    return means
