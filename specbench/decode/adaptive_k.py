"""Chooses K for the next round: the one with the most tokens per second, which may be K = 0.

Seconds per round are measured for several numbers of rows and every K before decoding starts, and
updated while it runs. Acceptance is counted round by round.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import fmean, median
from typing import NamedTuple

from specbench.decode.decoder import Decoder
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK, ObservedRound
from specbench.records import Request
from specbench.stats.rounds import amortized_goodput, expected_tokens_by_k, goodput

_PACE_GAIN = 0.05  # the machine's pace is a mean over about 20 rounds
_LARGEST_SURPRISE = 0.2  # in log seconds: a round that takes 3x as long counts as about 1.2x
_FRESH_ROUNDS = 8  # rounds after a change of K that show how the two K differ
_STEADY_ROUNDS = 8  # with the same number of rows before that, so that the pace is for these rows
_LONGEST_RECORD = 50  # rounds: the maximum weight of a cell's past


class RoundCostModel:
    """Seconds of a round, by (rows, K), on a machine whose speed drifts.

    A time is the product of the machine's pace, which all cells share, and the cell's own seconds.
    A round soon after a change of K corrects the cell of that K; every round updates the pace. So a
    K that does not run is still compared fairly with the one that does. A change in the number of
    rows corrects no cell: K is chosen among cells with equal rows, and as rows come and go, they
    would correct the same K again and again.
    """

    def __init__(
        self,
        round_s: Mapping[tuple[int, int], Sequence[float]],
        *,
        catch_up_s: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Costs from a calibration: `round_s[num_rows, k]` has the seconds of a few rounds.

        `catch_up_s` has pairs: the tokens that each row is behind, and the seconds that the drafter
        takes to process them. A line is fitted to them; without pairs, catching up is free.
        """
        # From the calibration, then corrected relative to the other cells.
        self._cell_s = {cell: median(samples) for cell, samples in round_s.items()}
        self._num_seen = {cell: len(samples) for cell, samples in round_s.items()}
        self._rows = sorted({rows for rows, _ in round_s})
        self._catch_up_s, self._catch_up_token_s = _line(catch_up_s)
        self._pace = 1.0
        self._last: tuple[int, int] | None = None
        self._rounds_at_k = 0
        self._rounds_at_rows = _STEADY_ROUNDS

    def round_s(self, num_rows: int, k: int) -> float:
        """Seconds of a round now, interpolated linearly between measured numbers of rows."""
        return self._seconds(num_rows, k) * self._pace

    def catch_up_s(self, num_tokens: int) -> float:
        """Seconds for the drafter to process `num_tokens` tokens per row; 0 if there are none."""
        if not num_tokens:
            return 0.0
        return (self._catch_up_s + self._catch_up_token_s * num_tokens) * self._pace

    def observe(self, num_rows: int, k: int, seconds: float) -> None:
        """Update the costs from one round's seconds; an outlier changes them only a little."""
        surprise = log(seconds / self.round_s(num_rows, k))
        surprise = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        last_rows, last_k = self._last or (num_rows, k)
        if num_rows != last_rows:
            self._rounds_at_rows, self._rounds_at_k = 0, _FRESH_ROUNDS
        elif k == last_k:
            self._rounds_at_k += 1
        else:
            self._rounds_at_k = 0 if self._rounds_at_rows >= _STEADY_ROUNDS else _FRESH_ROUNDS
        self._rounds_at_rows += 1
        cell = (num_rows, k)
        if cell in self._cell_s and self._last is not None and self._rounds_at_k < _FRESH_ROUNDS:
            self._num_seen[cell] = min(self._num_seen[cell] + 1, _LONGEST_RECORD)
            self._cell_s[cell] *= exp(surprise / self._num_seen[cell])
        self._pace *= exp(_PACE_GAIN * surprise)
        self._last = cell

    def _seconds(self, num_rows: int, k: int) -> float:
        at = bisect_left(self._rows, num_rows)
        if at == len(self._rows) or self._rows[at] == num_rows or at == 0:
            return self._cell_s[self._rows[min(at, len(self._rows) - 1)], k]
        below, above = self._rows[at - 1], self._rows[at]
        less, more = self._cell_s[below, k], self._cell_s[above, k]
        return less + (more - less) * (num_rows - below) / (above - below)


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds at 0 tokens and seconds per token, by least squares; neither is negative."""
    if not points:
        return 0.0, 0.0
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = min(max(slope, 0.0), mean_y / mean_x)
    return mean_y - slope * mean_x, slope


# Shares are of throughput or of time; test_adaptive_regret.py simulates them.
_SWITCH_GAIN = 0.005  # the expected gain that another K needs before it is chosen
_DOUBT = 0.75  # standard errors by which K = 0 must win before drafting stops
_STAY_ROUNDS = 50  # rounds at K > 0 that the cost of one catch-up is spread over
_LEAST_EVIDENCE = 2  # rounds of one row that must be observed before drafting may stop
_OLD_EVIDENCE = 4.0  # the weight of the past, in rounds of one row, when a probe begins
_EAGER_SHARE = 0.03  # of the time at K = 0 that the first probe may take; each failure halves it
_MEMORY_ROUNDS = 40.0  # that the acceptance is averaged over
_CLEAR_SUCCESS = 1.1  # a probe this many times as fast as K = 0 resets the share to the first one

# The prior: position 1 is accepted nine times of ten, with the weight of 1 observed draft. So the
# first rounds draft deep, which also tells what smaller K accept; a small K tells nothing of larger
# ones. A later position is assumed to be like the one before it, with the weight of 12 drafts, so
# positions that no recent K reached get the rate of the last position that was reached.
_FIRST_RATE = 0.9
_FIRST_WEIGHT = 1.0
_LIKE_THE_ONE_BEFORE = 12.0


def default_ks(k_max: int) -> tuple[int, ...]:
    """The K that get a separate program: 0 1 2 3 4 6 8 12 16 24 .. below `k_max`, and `k_max`."""
    ks = [0, 1, 2, 3]
    while ks[-1] < k_max:
        ks.append(2 * ks[-2])
    return (*(k for k in ks if k < k_max), k_max)


class AcceptanceTracker:
    """P(draft i accepted | all drafts before it accepted), pooled over rows, from fading counts.

    Old rounds weigh less, because the text may change. A missing draft counts as rejected.
    """

    def __init__(self, max_k: int, *, memory_rounds: float) -> None:
        self._num_tried = [0.0] * max_k
        self._num_accepted = [0.0] * max_k
        self._fading = 1 - 1 / memory_rounds

    def observe(self, k: int, num_accepted: Sequence[int]) -> None:
        """Count one round at `k` > 0, with one entry per live row."""
        self._scale(self._fading)
        for accepted in num_accepted:
            for i in range(accepted):
                self._num_accepted[i] += 1
            for i in range(min(accepted + 1, k)):
                self._num_tried[i] += 1

    def weaken(self, num_rounds: float) -> None:
        """Limit the total weight of past observations to `num_rounds` rounds of one row."""
        if self._num_tried[0] > num_rounds:
            self._scale(num_rounds / self._num_tried[0])

    def expected_tokens(self) -> list[float]:
        """Expected tokens per row and round at K = 0, 1, .. `max_k`."""
        rates = []
        rate, weight = _FIRST_RATE, _FIRST_WEIGHT
        for tried, accepted in zip(self._num_tried, self._num_accepted, strict=True):
            rate = (accepted + weight * rate) / (tried + weight)
            weight = _LIKE_THE_ONE_BEFORE
            rates.append(rate)
        return expected_tokens_by_k(rates)

    def relative_error(self, tokens: float) -> float:
        """Relative standard error of an estimate of `tokens` per round.

        Accepted drafts are assumed to be geometric: with mean m, their variance is m (m + 1).
        """
        accepted = tokens - 1
        return sqrt(accepted * tokens / (self._num_tried[0] + _FIRST_WEIGHT)) / tokens

    def _scale(self, share: float) -> None:
        self._num_tried = [n * share for n in self._num_tried]
        self._num_accepted = [n * share for n in self._num_accepted]


class Controller:
    """Tracks the cost and the acceptance of rounds, and chooses one K for all rows.

    Acceptance cannot be observed at K = 0, so a few rounds at K > 0 are tried from time to time.
    These probes take at most `_EAGER_SHARE` of the time, and as they keep failing, soon only
    `probe_share`. A `probe_share` of 0 turns probes off.

    Source: Liu et al. 2024 (arXiv:2406.14066) for the goodput that is maximized.
    """

    def __init__(
        self,
        ks: Sequence[int],
        costs: RoundCostModel,
        *,
        probe_share: float = 0.005,
    ) -> None:
        """`costs` covers each of `ks`; ValueError unless `ks` ascends from 0 to some K > 0."""
        if len(ks) < 2 or ks[0] != 0 or sorted(set(ks)) != list(ks):
            raise ValueError(f"ks must ascend from 0 to at least one K > 0, not {tuple(ks)}")
        self.max_k = ks[-1]
        self._ks = tuple(ks)
        self._costs = costs
        self._acceptance = AcceptanceTracker(self.max_k, memory_rounds=_MEMORY_ROUNDS)
        self._least_share = probe_share
        self._first_share = max(_EAGER_SHARE, probe_share) if probe_share else 0.0
        self._share = self._first_share
        self._k: int | None = None
        self._num_unseen = _LEAST_EVIDENCE
        self._is_probing = False
        self._behind = 0  # tokens per row that the drafter has not seen, from observed rounds
        self._at_zero_s = 0.0

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:
        """K of the next round over `num_rows` computed rows, `num_live` of them in use.

        In each row, the drafter has not seen up to `num_behind` of the last tokens.
        """
        # Observations arrive late, and rows that began since have nothing to catch up on.
        self._behind = min(self._behind, num_behind)
        tokens = self._acceptance.expected_tokens()
        rate = {
            k: goodput(tokens[k], num_live=num_live, round_s=self._costs.round_s(num_rows, k))
            for k in self._ks
        }
        best = max(self._ks[1:], key=rate.__getitem__)
        if self._k is None:
            self._k = best
        elif self._k == 0:
            if self._repays_catching_up(rate, best, num_rows):
                self._k = best
            elif self._may_probe(rate, best, num_rows, num_live):
                self._begin_probe()
                self._k = best
        elif self._num_unseen <= 0 and rate[0] > rate[best] * (1 + self._doubt(tokens[best])):
            self._stop_drafting()
            self._k = 0
        else:
            if rate[best] > rate[self._k] * (1 + _SWITCH_GAIN):
                self._k = best
            if self._num_unseen <= 0 and rate[best] > rate[0] * _CLEAR_SUCCESS:
                self._end_probe()
        return self._k

    def observe(self, ended: ObservedRound) -> None:
        """Learn from a finished round.

        The seconds of a round with a catch-up are ignored, since they also cover the catch-up.
        """
        if not ended.num_caught_up:
            self._costs.observe(ended.num_rows, ended.k, ended.seconds)
        if ended.k == 0:
            self._behind += max(ended.num_emitted)
            self._at_zero_s += ended.seconds
        else:
            self._behind = 0
            self._num_unseen -= len(ended.num_accepted)
            self._acceptance.observe(ended.k, ended.num_accepted)

    def _doubt(self, tokens: float) -> float:
        return 0.0 if self._is_probing else _DOUBT * self._acceptance.relative_error(tokens)

    def _repays_catching_up(self, rate: dict[int, float], k: int, num_rows: int) -> bool:
        drafting = amortized_goodput(
            rate[k],
            stay_s=_STAY_ROUNDS * self._costs.round_s(num_rows, k),
            once_s=self._costs.catch_up_s(self._behind),
        )
        return drafting > rate[0] * (1 + _SWITCH_GAIN)

    def _may_probe(self, rate: dict[int, float], k: int, num_rows: int, num_live: int) -> bool:
        """Whether the share of the time at K = 0 covers the likely loss of a probe at `k`."""
        num_rounds = -(-_LEAST_EVIDENCE // num_live)
        lost = max(1 - rate[k] / rate[0], 0.0)
        lost_s = num_rounds * self._costs.round_s(num_rows, k) * lost
        lost_s += self._costs.catch_up_s(self._behind)
        return lost_s < self._share * self._at_zero_s

    def _begin_probe(self) -> None:
        self._is_probing = True
        self._num_unseen = _LEAST_EVIDENCE
        self._acceptance.weaken(_OLD_EVIDENCE)

    def _end_probe(self) -> None:
        if self._is_probing:
            self._is_probing = False
            self._share = self._first_share

    def _stop_drafting(self) -> None:
        self._is_probing = False
        self._at_zero_s = 0.0
        self._share = max(self._share / 2, self._least_share)


NUM_ROUNDS = 7  # of each kind; the first one is a warm-up
PAUSE_ROUNDS = (2, 16)  # rounds at K = 0 before the drafter has to catch up


class Calibration(NamedTuple):
    """Measured costs, and the seconds that it took to measure them."""

    costs: RoundCostModel
    seconds: float


class _Script(FixedK):
    """Repeats `num_away` rounds at K = 0 and one round at K = 1."""

    def __init__(self, num_away: int) -> None:
        super().__init__(1)
        self._num_away = num_away
        self._num_rounds = 0

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:  # noqa: ARG002
        self._num_rounds += 1
        return int(self._num_rounds % (self._num_away + 1) == 0)


def measure_round_costs(
    decoder: Decoder,
    prompt_ids: tuple[int, ...],
    ks: Sequence[int],
    num_rows: int,
    sampler: Sampler,
) -> Calibration:
    """Time a few rounds at 1, 2, 4 .. `num_rows` rows and every K, on one real prompt."""
    limit = decoder.target.max_position
    if limit is not None:  # shorten the prompt if it and these rounds do not fit
        needed = max(NUM_ROUNDS * (max(ks) + 1), 2 * (max(PAUSE_ROUNDS) + 2)) + 1
        prompt_ids = prompt_ids[-max(limit - needed, 1) :]
    round_s: dict[tuple[int, int], tuple[float, ...]] = {}
    spent_s = 0.0

    def rounds(policy: FixedK, rows: int, num_tokens: int) -> tuple[float, ...]:
        nonlocal spent_s
        request = Request(prompt_ids=prompt_ids, max_new_tokens=num_tokens)
        served = decoder.serve([request] * rows, sampler, policy, num_rows=rows)
        spent_s += served.seconds
        return served.timeline.seconds

    for rows in _buckets(num_rows):
        for k in ks:
            seconds = rounds(FixedK(k), rows, NUM_ROUNDS * (k + 1) + 1)
            round_s[rows, k] = seconds[1:NUM_ROUNDS]
    one_draft_s = median(rounds(FixedK(1), 1, 2 * NUM_ROUNDS + 1)[1:])
    catch_up_s = []
    for away in PAUSE_ROUNDS:
        seconds = rounds(_Script(away), 1, 2 * (away + 2) + 1)
        # Every round at K = 1 here catches up; the first one is a warm-up.
        caught_up = seconds[2 * away + 1 :: away + 1]
        catch_up_s.append((away, max(median(caught_up) - one_draft_s, 0.0)))
    return Calibration(RoundCostModel(round_s, catch_up_s=catch_up_s), spent_s)


def _buckets(num_rows: int) -> list[int]:
    """1, 2, 4 .. below `num_rows`, and `num_rows`."""
    return [*(1 << i for i in range(num_rows.bit_length()) if 1 << i < num_rows), num_rows]
