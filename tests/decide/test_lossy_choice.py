"""A rule that changes the text is the last resort of `recommend`."""

from dataclasses import replace

import pytest

from specbench.decide.objective import Objective, joint_recommendation, recommend_for
from specbench.decide.recommend import choose, decide
from tests.cell_keys import with_axes
from tests.decide.conftest import summary


def cells(lossless: float, lossy: float, workload: str = "code"):
    base = summary(0, None, 1.0, None, workload=workload, metrics={"tpot_s": 0.01})
    one = summary(4, lossless - 0.05, lossless, lossless + 0.05, workload=workload)
    other = summary(4, lossy - 0.05, lossy, lossy + 0.05, workload=workload)
    key = with_axes(other.key, pairing="demo/bold", drafter="bold", lossy="typical")
    return [base, one, replace(other, key=key)]


def decisions(found):
    return [decide(choose([cell])) for cell in found if cell.key.draft.k]


@pytest.mark.parametrize(
    ("lossless", "lossy", "chosen"), [(1.5, 2.5, "draft"), (0.9, 2.5, "bold"), (0.9, 0.8, "none")]
)
def test_a_lossy_drafter_is_recommended_only_if_no_lossless_one_helps(lossless, lossy, chosen):
    found = cells(lossless, lossy)
    (one,) = recommend_for(found, decisions(found), Objective())
    assert one.best.key.draft.drafter == chosen


def test_a_lossy_drafter_is_never_the_joint_recommendation():
    found = [*cells(1.5, 2.5, "chat"), *cells(1.5, 2.5, "code")]
    shared = joint_recommendation(recommend_for(found, decisions(found), Objective()))
    assert shared.key.draft.drafter == "draft"
    assert shared.regret == pytest.approx({"chat": 0.0, "code": 0.0})
