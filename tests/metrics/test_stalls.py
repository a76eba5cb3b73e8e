"""Requests that the machine held up: which are left out of a speedup, and which only told."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from specbench.decide.recommend import choose, decide, judge, verdict_of
from specbench.metrics.cell import CellData, against
from specbench.metrics.stalls import Stalls, stalls
from specbench.metrics.summary import summarize
from specbench.records import CellSummary, Kind, SpeedupVerdict
from specbench.stats.intervals import interval, speedup_ratio
from tests.decide.cells import BASE, cell, draft

N = 20
STALLED_S = 30.0  # where a request at K = 0 takes 1 second
CPU_S = 0.5


def measured(
    at_base: Collection[int] = (),
    at_k: Collection[int] = (),
    waited: Collection[int] = (),
    num: int = N,
    usual_s: float = 0.5,
    stalled_s: float = STALLED_S,
) -> CellData:
    """K = 4 against K = 0. Prompts `at_base` and `at_k` stall there; `waited`: of `at_k`, those in
    which the process hardly ran. Of the others, the process ran all the time."""
    wobble = 1 + 0.02 * np.random.default_rng(0).normal(size=(2, num))
    base_s, spec_s = np.array([[1.0], [usual_s]]) * wobble
    base_s[list(at_base)] = spec_s[list(at_k)] = stalled_s
    of_k = cell(draft(4), spec_s.tolist())
    requests = tuple(
        replace(r, cpu_s=CPU_S if i in waited else r.total_s) for i, r in enumerate(of_k.requests)
    )
    return against(replace(of_k, requests=requests), cell(BASE, base_s.tolist()))


def summary_of(measured: CellData) -> CellSummary:
    (summary,) = summarize([measured])
    return summary


def test_without_a_stall_nothing_is_screened():
    steady = measured()
    assert stalls(steady) == Stalls(base=(), proven=(), unproven=())
    assert summary_of(steady).screening is None


def test_a_stalled_k_0_is_left_out_because_that_lowers_the_speedup():
    summary = summary_of(measured(at_base=[3]))
    assert stalls(measured(at_base=[3])) == Stalls(base=(3,), proven=(), unproven=())
    rest = replace(measured(), requests=measured().requests[:3] + measured().requests[4:])
    assert summary.speedup.estimate == pytest.approx(summary_of(rest).speedup.estimate)
    assert summary.metrics["decode_speedup"] == pytest.approx(summary.speedup.estimate)
    assert (summary.screening.num_baseline, summary.screening.num_kept) == (1, 0)
    # With it 20 prompts take 49 s at K = 0 and 10 s at K = 4.
    assert summary.screening.with_all.estimate == pytest.approx(4.9, rel=0.02)
    assert summary.speedup_end_to_end.estimate < 2
    decision = decide(choose([summary]))
    assert decision.verdict is SpeedupVerdict.FASTER
    count = {r.figures["count"] for r in decision.reasons if r.kind is Kind.STALLED}
    assert count == {(1, "request")}


def test_a_stalled_k_is_left_out_if_the_process_did_not_run_meanwhile():
    stalled = measured(at_k=[3], waited=[3])
    assert stalls(stalled) == Stalls(base=(), proven=(3,), unproven=())
    summary = summary_of(stalled)
    assert (summary.screening.num_draft, summary.screening.num_kept) == (1, 0)
    assert summary.speedup.estimate == pytest.approx(2.0, rel=0.02)
    assert summary.screening.with_all.estimate == pytest.approx(20 / (9.5 + STALLED_S), rel=0.02)


def test_a_stalled_k_is_kept_without_evidence_from_outside_of_the_ratio():
    stalled = measured(at_k=[3])
    unknown = tuple(replace(r, cpu_s=None) for r in stalled.requests)  # as of a server
    for each in (stalled, replace(stalled, requests=unknown)):
        assert stalls(each) == Stalls(base=(), proven=(), unproven=(3,))
        summary = summary_of(each)
        assert (summary.screening.num_draft, summary.screening.num_kept) == (0, 1)
        assert summary.speedup.estimate == pytest.approx(20 / (9.5 + STALLED_S), rel=0.02)
        assert summary.screening.without_any.estimate == pytest.approx(2.0, rel=0.02)


def with_pauses(measured: CellData, at_base: Collection[int], at_k: Collection[int]) -> CellData:
    """The client stood still for a tenth of each of these requests to a server."""

    def paused(requests, at):
        return tuple(
            replace(r, cpu_s=None, paused_s=(0.1 if i in at else 0.04) * r.total_s)
            for i, r in enumerate(requests)
        )

    return replace(
        measured,
        requests=paused(measured.requests, at_k),
        baseline=paused(measured.baseline, at_base),
        shared={},
    )


def test_requests_that_a_pause_of_the_client_hits_are_left_out_on_both_sides():
    hit = with_pauses(measured(), at_base=[2, 5], at_k=[3, 4, 5, 6])  # more than one in twenty
    assert stalls(hit) == Stalls(base=(2, 5), proven=(3, 4, 6), unproven=())
    summary = summary_of(hit)
    assert (summary.screening.num_baseline, summary.screening.num_draft) == (2, 3)
    rest = tuple(r for i, r in enumerate(measured().requests) if i not in (2, 3, 4, 5, 6))
    expected = summary_of(replace(measured(), requests=rest)).speedup.estimate
    assert summary.speedup.estimate == pytest.approx(expected)


def test_a_request_that_a_pause_hits_does_not_prove_another_stall():
    hit = with_pauses(measured(at_k=[7]), at_base=[], at_k=[3])
    assert stalls(hit) == Stalls(base=(), proven=(3,), unproven=(7,))


def test_a_prompt_that_is_slow_on_both_sides_needs_evidence():
    assert stalls(measured(at_base=[3], at_k=[3])) == Stalls(base=(), proven=(), unproven=(3,))
    with_pause = with_pauses(measured(at_base=[3], at_k=[3]), at_base=[3], at_k=[])
    assert stalls(with_pause) == Stalls(base=(3,), proven=(), unproven=())


@pytest.mark.parametrize(("num", "slow"), [(10, 1), (10, 2), (20, 1), (20, 2), (40, 2), (40, 3)])
def test_at_most_one_in_twenty_stalls_may_raise_a_speedup(num, slow):
    places = tuple(range(slow))
    found = stalls(measured(at_k=places, waited=places, num=num))
    may_raise = slow <= max(1, num / 20)  # one is always possible
    assert found.proven == (places if may_raise else ())
    assert found.unproven == (() if may_raise else places)


def test_stalls_without_evidence_count_among_the_one_in_twenty():
    found = stalls(measured(at_k=[3, 7], waited=[3]))
    assert (found.proven, found.unproven) == ((), (3, 7))


@pytest.mark.parametrize(("cpu_s", "is_proven"), [(0.94, True), (0.96, False)])
def test_most_of_the_excess_over_the_usual_seconds_must_pass_without_cpu_time(cpu_s, is_proven):
    """1.3 s with a prefill of 0.1 s, where a request decodes for 0.5 s: an excess of 0.7 s."""
    stalled = measured(at_k=[3], stalled_s=1.2)
    requests = list(stalled.requests)
    requests[3] = replace(requests[3], cpu_s=cpu_s)
    found = stalls(replace(stalled, requests=tuple(requests)))
    assert found.proven == ((3,) if is_proven else ())


def test_stalls_without_evidence_that_decide_leave_the_verdict_undecided():
    # Five of twenty take 2.5 times as long: with them no speedup, without them undecided.
    summary = summary_of(measured(at_k=range(0, N, 4), usual_s=1 / 0.95, stalled_s=2.5 / 0.95))
    assert judge(summary.speedup) is SpeedupVerdict.NO_SPEEDUP
    assert judge(summary.screening.without_any) is SpeedupVerdict.UNDECIDED
    assert verdict_of(summary) is SpeedupVerdict.UNDECIDED
    answer, *_ = decide(choose([summary])).answer
    assert answer == Kind.STALLS_DECIDE(
        k=4,
        mean_k=None,
        speedup=summary.speedup,
        kept=(5, "request"),
        without=summary.screening.without_any,
    )


def test_stalls_that_do_not_decide_leave_the_verdict():
    # No speedup with them, and none without them.
    summary = summary_of(measured(at_k=range(0, N, 4), usual_s=1 / 0.7, stalled_s=2.5 / 0.7))
    assert summary.screening.num_kept == 5
    assert verdict_of(summary) is SpeedupVerdict.NO_SPEEDUP


@pytest.mark.parametrize("factor", [1.9, 2.2])
def test_a_request_stalls_from_twice_the_median_on(factor):
    found = stalls(measured(at_base=[3], stalled_s=factor))
    assert found.base == ((3,) if factor > 2 else ())


def test_the_unscreened_figure_is_over_every_request():
    stalled = measured(at_base=[3], at_k=[7])
    base_s = [b.decode_s for b, _ in stalled.pairs]
    spec_s = [s.decode_s for _, s in stalled.pairs]
    plain = interval(speedup_ratio(base_s, spec_s))
    screening = summary_of(stalled).screening
    assert screening.with_all.estimate == pytest.approx(plain.estimate)
