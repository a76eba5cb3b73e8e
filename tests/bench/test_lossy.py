"""Texts of a lossy cell are not known beforehand: they end where they end."""

from dataclasses import replace
from pathlib import Path

from specbench.bench.plan import TargetPlan
from specbench.records import LossyRule
from tests.bench.fake_runs import SETTINGS, make_plan, measure
from tests.bench.fakes import ANSWER_TOKENS, FakeEngine
from tests.settings.flat_settings import changed

RULE = LossyRule(name="typical", parameters={"threshold": 0.09, "alpha": 0.3})


def with_rule(plan: TargetPlan, drafter: str) -> TargetPlan:
    """The plan with a rule on one of its drafters."""
    pairings = tuple(
        replace(pairing, drafter=replace(pairing.drafter, lossy=RULE))
        if pairing.drafter.name == drafter
        else pairing
        for pairing in plan.pairings
    )
    return replace(plan, pairings=pairings)


def test_lossy_cells_stop_at_their_own_end_of_text(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    settings = changed(SETTINGS, num_speculative_tokens=(2,), max_new_tokens=99)
    run = measure(with_rule(make_plan(tmp_path, settings), "bad"), engine, tmp_path)

    assert not run.failures
    asked = {
        (call.drafter, call.request.max_new_tokens, call.request.stop_at_eos)
        for call in engine.calls
    }
    assert ("good", ANSWER_TOKENS, False) in asked
    assert ("none", ANSWER_TOKENS, False) in asked
    assert ("bad", 99, True) in asked
    assert ("bad", ANSWER_TOKENS, False) not in asked
    assert {key.draft.drafter for key in run.run.keys if key.draft.lossy == "typical"} == {"bad"}
