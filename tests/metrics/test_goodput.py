"""Requests within limits, by hand and in a served run."""

from dataclasses import replace

import pytest

from specbench.decide.recommend import by_question, choose, decide
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.cell import num_within
from specbench.metrics.registry import measure
from specbench.metrics.summary import summarize
from specbench.records import Kind, RequestRecord, SpeedupVerdict
from specbench.report.document import build_document
from tests.made_records import made_request
from tests.served_sessions import Sweep, served_sweep
from tests.settings.flat_settings import changed

SLO = {"ttft_s": 0.2, "tpot_s": 0.02}


def request_of(ttft_s, decode_s, num_tokens=11, **fields):
    ids = tuple(range(num_tokens))
    return made_request("c", "p", None, ttft_s=ttft_s, decode_s=decode_s, output_ids=ids, **fields)


@pytest.mark.parametrize(
    ("request_", "is_within"),
    [
        (request_of(0.2, 0.2), True),  # at the limits, as `vllm bench serve` counts
        (request_of(0.21, 0.1), False),
        (request_of(0.1, 0.21), False),
        (request_of(0.1, 0.0, num_tokens=1), True),  # no TPOT
        (request_of(0.1, None), False),
        (request_of(0.1, 0.16, num_first=4), False),  # 7 tokens in 0.16 s
        (
            RequestRecord.failed(
                "gone", cell_id="c", prompt_id="p", turn=0, repeat=0, seed=0, num_prompt_tokens=0
            ),
            False,
        ),
    ],
)
def test_a_request_counts_if_it_keeps_every_limit(request_, is_within):
    assert num_within([request_], SLO) == is_within


def with_slo(slo, **fields):
    stored = served_sweep(Sweep(**fields))
    return replace(stored, run=replace(stored.run, settings=changed(stored.run.settings, slo=slo)))


def test_goodput_is_the_requests_within_the_limits_per_second():
    """24 tokens after the first take 0.48 s at K = 0, 0.24 s at K = 4: 20 and 10 ms each."""
    stored = with_slo({"tpot_s": 0.015})
    cells = {(c.key.draft.k, c.key.condition.concurrency): c for c in aggregate_run(stored)}
    base, fast = measure(cells[0, 1]), measure(cells[4, 1])
    assert (base["slo_attainment"], base["goodput_requests_per_s"]) == (0, 0)
    assert fast["slo_attainment"] == 1
    assert fast["slo_attainment_of_baseline"] == 0
    assert fast["goodput_requests_per_s"] == fast["requests_per_s"]
    assert fast["goodput_ratio"] > 10


def test_without_limits_there_is_no_goodput():
    for cell in aggregate_run(served_sweep()):
        assert not {n for n in measure(cell) if "goodput" in n or "slo" in n}


def test_the_decision_under_an_slo_is_by_goodput():
    """Whole requests take 0.53 s at K = 0, 0.41 s at K = 2 and 0.29 s at K = 4."""
    stored = with_slo({"request_latency_s": 0.45}, rows=(1,), confirmed=None)
    cells = summarize(aggregate_run(stored))
    by_k = {cell.key.draft.k: cell for cell in cells}
    assert by_k[2].speedup.low > 1
    assert by_k[2].goodput.limits == "request_latency=450ms"
    (group,) = by_question(cells)
    chosen = choose(group)
    assert chosen.leader.speedup == chosen.leader.goodput.ratio
    decision = decide(chosen, by_k[chosen.leader.key.draft.k])
    assert decision.speedup == by_k[4].goodput.ratio
    assert decision.draft.k == 4
    (found,) = decision.answer
    assert (found.kind, found.figures["limits"]) == (Kind.MORE_REQUESTS, "request_latency=450ms")
    kept = Kind.ATTAINMENT(limits="request_latency=450ms", k=4, kept=1.0, baseline=0.0)
    assert kept in decision.reasons


def test_limits_that_no_k_meets_are_undecided():
    stored = with_slo({"ttft_s": 0.001}, rows=(1,), confirmed=None)
    (decision,) = build_document(stored).decisions
    assert decision.draft.k == 0
    assert decision.verdict is SpeedupVerdict.UNDECIDED
    assert decision.answer == (Kind.NO_REQUESTS(k=4, limits="ttft=1ms"),)
    assert decision.speedup.low < 1 < decision.speedup.high


def test_limits_that_every_request_meets_give_the_end_to_end_speedup():
    stored = with_slo({"ttft_s": 10.0})
    for cell in summarize(aggregate_run(stored)):
        if cell.goodput is not None:
            ratio = cell.speedup_end_to_end.estimate
            assert cell.goodput.ratio.estimate == pytest.approx(ratio, rel=0.01)
