"""What rounds cost at every number of rows and every K, measured before K is picked."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from specbench.decode.decoder import Decoder
from specbench.decode.policy import FixedK
from specbench.decode.round_costs import RoundCosts
from specbench.decode.sampling import Sampler
from specbench.records import Request

NUM_ROUNDS = 7  # of each kind; the first of them warms up
AWAY = (2, 16)  # rounds at K = 0 before the drafter has to catch up


class Calibration(NamedTuple):
    """The costs, and the seconds it took to measure them."""

    costs: RoundCosts
    seconds: float


class _Script(FixedK):
    """K = 0 for some rounds, then K = 1 once, and so on."""

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
    """Seconds of a few rounds for rows 1, 2, 4 .. num_rows and every K, on one real prompt."""
    limit = decoder.target.max_position
    if limit is not None:  # a shorter prompt where it and these rounds would not fit
        needed = max(NUM_ROUNDS * (max(ks) + 1), 2 * (max(AWAY) + 2)) + 1
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
    for away in AWAY:
        seconds = rounds(_Script(away), 1, 2 * (away + 2) + 1)
        # Every round at K = 1 here catches up; the second one is warm.
        caught_up = seconds[2 * away + 1 :: away + 1]
        catch_up_s.append((away, max(median(caught_up) - one_draft_s, 0.0)))
    return Calibration(RoundCosts.from_samples(round_s, catch_up_s=catch_up_s), spent_s)


def _buckets(num_rows: int) -> list[int]:
    """1, 2, 4 ... and the number itself."""
    return [*(1 << i for i in range(num_rows.bit_length()) if 1 << i < num_rows), num_rows]
