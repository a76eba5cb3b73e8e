"""Costs measured before K is picked, on a clock that only advances by the work done."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from specbench.decode.adaptive_k import Calibration, measure_round_costs
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.forward.runner import Output
from specbench.records import Sampling
from tests.decoding.fakes import CountingClock, CountingRunner, ScriptedDrafter

PROMPT = (3, 4, 5)  # positions 0, 1, 2; the token of position p is p + 3
RIGHT = {position: (position + 3) % 100 for position in range(200)}
WRONG: dict[int, int] = {}
KS = (0, 1, 4)


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Seconds of each kind of work; a round also takes a second per row."""

    prefill: float = 100.0
    draft: float = 5.0  # each
    per_round_before: float = 0.0  # how much slower every round of a pass is than the last
    catch_up: float = 0.0
    per_caught_up_token: float = 0.0
    first_catch_up: float = 0.0  # additional, once per pass


class RoundClock(CountingClock):
    """A clock that stands still between pieces of work."""

    def __init__(self) -> None:
        self.total_s = 0.0
        super().__init__()

    def start(self) -> None:
        self.now_s = 0.0
        self.num_rounds = 0
        self.num_catch_ups = 0

    def spend(self, seconds: float) -> None:
        self.now_s += seconds
        self.total_s += seconds

    def mark(self) -> float:
        return self.now_s

    def now(self) -> float:
        return self.now_s


class TimedRunner(CountingRunner):
    def __init__(self, clock: RoundClock, cost: Seconds) -> None:
        super().__init__()
        self._clock = clock
        self._cost = cost

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, span: int, **named: Any) -> Output:
        if named.get("last_B") is not None:
            self._clock.spend(self._cost.prefill)
        else:
            slower = self._cost.per_round_before * self._clock.num_rounds
            self._clock.spend(len(tokens_BT) + slower)
            self._clock.num_rounds += 1
        return super().forward(tokens_BT, positions_BT, span, **named)


class TimedDrafter(ScriptedDrafter):
    def __init__(self, script: dict[int, int], clock: RoundClock, cost: Seconds) -> None:
        super().__init__(script)
        self._clock = clock
        self._cost = cost

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        self._clock.spend(k * self._cost.draft)
        return super().propose(state, k, span, sampler)

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:  # noqa: ARG002
        self._clock.spend(self._cost.catch_up + self._cost.per_caught_up_token * num_tokens)
        if not self._clock.num_catch_ups:
            self._clock.spend(self._cost.first_catch_up)
        self._clock.num_catch_ups += 1


def calibrate(
    cost: Seconds,
    *,
    script: dict[int, int] = WRONG,
    num_rows: int = 1,
    ks: Sequence[int] = KS,
    clock: RoundClock | None = None,
) -> Calibration:
    clock = clock or RoundClock()
    target, drafter = TimedRunner(clock, cost), TimedDrafter(script, clock, cost)
    decoder = Decoder(target, drafter, eos_ids=(), clock=clock)
    return measure_round_costs(decoder, PROMPT, ks, num_rows, Sampler(Sampling(temperature=0.0)))


@pytest.mark.parametrize("script", [RIGHT, WRONG], ids=["right drafts", "wrong drafts"])
def test_every_k_is_measured_at_rows_1_2_4_and_the_number_itself(script: dict[int, int]) -> None:
    costs = calibrate(Seconds(), script=script, num_rows=6).costs
    for k in KS:
        measured = [costs.round_s(rows, k) for rows in (1, 2, 3, 4, 5, 6)]
        assert measured == [rows + 5 * k for rows in (1, 2, 3, 4, 5, 6)]  # 3 and 5 on a line


def test_a_batch_size_that_is_a_power_of_two_is_calibrated_once() -> None:
    clock = RoundClock()
    calibrate(Seconds(prefill=100.0, draft=0.0), num_rows=2, ks=(0,), clock=clock)
    # K = 0 over 1 and 2 rows, K = 1 to compare with, and two drafters that were away.
    num_prefills = 1 + 1 + 1 + 2
    assert clock.total_s // 100 == num_prefills


@pytest.mark.parametrize("script", [RIGHT, WRONG], ids=["right drafts", "wrong drafts"])
def test_the_round_cost_is_the_median_of_six_rounds_after_the_first(script: dict[int, int]) -> None:
    costs = calibrate(Seconds(per_round_before=1.0), script=script).costs
    # The rounds of a pass take 0, 1, 2 .. seconds more: numbers 1 to 6 take 3.5 at the median,
    # also if wrong drafts cause more than seven rounds.
    assert [costs.round_s(1, k) for k in KS] == [1 + 5 * k + 3.5 for k in KS]


@pytest.mark.parametrize("script", [RIGHT, WRONG], ids=["right drafts", "wrong drafts"])
def test_the_catch_up_cost_is_the_extra_time_of_a_k_1_round(script: dict[int, int]) -> None:
    costs = calibrate(Seconds(catch_up=7.0, per_caught_up_token=2.0), script=script).costs
    # After n rounds at K = 0 the drafter is shown n + 1 tokens.
    for num_tokens in (2, 9, 16):
        seconds = 7 + 2 * (num_tokens + 1)
        assert costs.catch_up_s(num_tokens) == pytest.approx(seconds)
    assert costs.catch_up_s(0) == 0


@pytest.mark.parametrize("script", [RIGHT, WRONG], ids=["right drafts", "wrong drafts"])
def test_the_first_catch_up_is_excluded_from_its_cost(script: dict[int, int]) -> None:
    costs = calibrate(Seconds(catch_up=7.0, first_catch_up=500.0), script=script).costs
    assert costs.catch_up_s(2) == pytest.approx(7)
    assert costs.catch_up_s(16) == pytest.approx(7)


def test_the_catch_up_cost_is_relative_to_a_warm_k_1_round() -> None:
    """Right drafts: seven rounds, of which six have a median 3.5 s slower than the first."""
    cost = Seconds(catch_up=60.0, per_round_before=1.0)
    costs = calibrate(cost, script=RIGHT).costs
    # The second round of K = 1 is the sixth of its pass after 2 rounds away, else the 34th.
    assert costs.catch_up_s(2) == pytest.approx(60 + 5 - 3.5)
    assert costs.catch_up_s(16) == pytest.approx(60 + 33 - 3.5)


def test_a_stateless_drafter_has_no_catch_up_cost() -> None:
    assert calibrate(Seconds()).costs.catch_up_s(9) == 0


def test_the_catch_up_cost_is_never_negative() -> None:
    costs = calibrate(Seconds(per_round_before=-1 / 64), script=RIGHT).costs
    assert costs.catch_up_s(2) == costs.catch_up_s(16) == 0


@pytest.mark.parametrize("num_rows", [1, 6])
def test_calibration_seconds_include_prefill_and_catch_up(num_rows: int) -> None:
    """Prefills, first rounds and catching up also count."""
    clock = RoundClock()
    cost = Seconds(catch_up=7.0, per_caught_up_token=2.0, first_catch_up=500.0)
    calibration = calibrate(cost, num_rows=num_rows, clock=clock)
    assert calibration.seconds == pytest.approx(clock.total_s)
    assert calibration.seconds > 2 * 500
