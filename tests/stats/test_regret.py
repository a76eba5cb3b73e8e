"""The smallest worst-case regret against a search over all options."""

import numpy as np
import pytest

from specbench.decide.objective import minimax_regret
from specbench.decide.recommend import TIE

CASES = ("chat", "code", "creative")


def drawn(seed: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Rates of some options, rounded so that they tie; the best may be another one."""
    rng = np.random.default_rng(seed)
    options = [
        dict(zip(CASES, np.round(rng.uniform(0.5, 2, 3), 2).tolist(), strict=True))
        for _ in range(rng.integers(1, 8))
    ]
    best = {c: max(o[c] for o in options) * rng.choice([1.0, 1.1]) for c in CASES}
    return options, best


def test_the_first_option_of_least_worst_regret_is_chosen():
    for seed in range(400):
        options, best = drawn(seed)
        choice = minimax_regret(options, best)
        worst = [max((best[c] - o[c]) / best[c] for c in CASES) for o in options]
        assert worst[choice.option] <= min(worst) + TIE + 1e-12
        assert all(w > min(worst) + TIE - 1e-12 for w in worst[: choice.option])
        assert max(choice.regret.values()) == pytest.approx(worst[choice.option])
        assert all(-1e-12 <= regret < 1 for regret in choice.regret.values())


def test_the_unit_of_a_case_does_not_matter():
    for seed in range(100):
        options, best = drawn(seed)
        scaled = [{**option, "code": 64 * option["code"]} for option in options]
        once = minimax_regret(options, best)
        assert minimax_regret(scaled, {**best, "code": 64 * best["code"]}) == once


def test_minimax_regret_equals_a_worked_example():
    options = [{"a": 1.0, "b": 1.0}, {"a": 1.8, "b": 1.1}, {"a": 2.0, "b": 0.6}]
    choice = minimax_regret(options, {"a": 2.0, "b": 1.2})
    assert choice.option == 1
    assert choice.regret == pytest.approx({"a": 0.1, "b": 1 / 12})


def test_a_rate_within_the_tie_does_not_justify_a_less_simple_choice():
    choice = minimax_regret([{"a": 1.0}, {"a": 1.1}], {"a": 1.0})
    assert choice == (0, {"a": 0.0})


def test_minimax_regret_needs_at_least_one_option():
    with pytest.raises(ValueError, match="empty"):
        minimax_regret([], {})
