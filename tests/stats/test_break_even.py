"""At break-even a round emits what it costs."""

import numpy as np
import pytest

from specbench.stats.acceptance import expected_tokens_iid
from specbench.stats.costs import break_even_acceptance


def test_at_break_even_acceptance_a_round_emits_what_it_costs():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        k = int(rng.integers(1, 17))
        steps = float(rng.uniform(1, k + 1))
        rate = break_even_acceptance(k, steps)
        assert 0 <= rate <= 1
        assert expected_tokens_iid(rate, k) == pytest.approx(steps, abs=1e-9)


def test_no_acceptance_pays_for_a_round_dearer_than_all_it_can_emit():
    assert break_even_acceptance(4, 5.01) is None
    assert break_even_acceptance(4, 5.0) == pytest.approx(1.0)
    assert break_even_acceptance(4, 5.0 - 1e-9) < 1


def test_a_round_that_costs_no_more_than_a_step_pays_without_any():
    assert break_even_acceptance(4, 1.0) == break_even_acceptance(4, 0.7) == 0.0


def test_one_draft_must_be_kept_as_often_as_its_round_costs_more():
    assert break_even_acceptance(1, 1.3) == pytest.approx(0.3)
