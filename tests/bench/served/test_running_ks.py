"""Servers that run already have the K they have."""

import pytest

from specbench.bench.planning import plan_targets
from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from specbench.records import DraftConfig
from tests.bench.served.served_runs import settings_for


def plan_of(folder, running_ks, **changes):
    settings = settings_for(folder, **changes)
    pairings = load_pairings(folder / "pairings.yaml").select(settings.workload.pairings)
    (plan,) = plan_targets(settings, pairings, lambda _: "float32", running_ks=running_ks)
    return plan


def test_of_a_default_range_the_running_k_are_measured_and_nothing_is_said_of_the_others(tmp_path):
    plan = plan_of(tmp_path, (0, 4), is_default_range=True)
    assert {cell.key.draft.k for cell in plan.all_cells} == {DraftConfig.none.k, 4}
    assert not list(plan.left_out)


def test_a_k_that_was_asked_for_and_runs_nowhere_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"-k 2.*K = 0, 4"):
        plan_of(tmp_path, (4, 0))
