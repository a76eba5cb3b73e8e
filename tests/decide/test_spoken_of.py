"""Which K a sentence is about where nothing wins, and what advice it gives."""

import re
from dataclasses import replace

from specbench.decide.recommend import choose, decide

FAST = {"mean_acceptance_length": 3.12, "break_even_length": 1.64}


def test_without_a_winner_the_best_estimate_and_its_reasons_are_quoted(summarized):
    # K = 2 has the higher lower bound only because it was measured more precisely.
    cells = [
        summarized(1, 0.37, 0.97, 2.63, metrics=FAST),
        summarized(2, 0.70, 0.77, 1.05, metrics={**FAST, "mean_acceptance_length": 2.0}),
    ]
    decision = decide(choose(cells))
    assert re.match(r"code: undecided: 0\.37x .*2\.63x at K=1", decision.sentence)
    assert any(re.search(r"at K=1: 3\.12 .*1\.64\)$", reason) for reason in decision.reasons)
    assert any(re.match("K=1 .*K = 1..2; none is shown", reason) for reason in decision.reasons)


def test_a_decision_about_another_k_gives_the_reason(summarized):
    cells = [summarized(1, 0.98, 0.99, 1.00), summarized(8, 0.80, 0.95, 1.12)]
    verdicts = ("undecided: K=8 looks best so far", "no speedup: K = 1")
    assert decide(choose(cells)).reasons == verdicts


def test_a_detectable_effect_above_100_percent_is_not_quantified(summarized):
    cell = replace(summarized(4, 0.37, 0.98, 2.63), minimum_detectable_effect=11.206)
    (reason,) = decide(choose([cell])).reasons
    assert re.match("minimum detectable effect: .*100%: ", reason)
