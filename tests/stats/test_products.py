"""Products of ratios with independent errors."""

import pytest

from specbench.stats.intervals import LogRatio, product
from specbench.stats.spread import Uncertainty


def ratio(log: float, error: float | None, freedom: float | None, n: int = 9) -> LogRatio:
    spread = None
    if error is not None and freedom is not None:
        spread = Uncertainty(standard_error=error, degrees_of_freedom=freedom)
    return LogRatio(log=log, spread=spread, num_prompts=n)


def test_errors_add_in_squares_and_freedom_as_welch_and_satterthwaite_have_it():
    found = product(ratio(0.5, 0.03, 8.0), ratio(0.2, 0.04, 5.0, n=6))
    assert found.log == pytest.approx(0.7)
    assert found.standard_error == pytest.approx(0.05)
    expected = 0.05**4 / (0.03**4 / 8 + 0.04**4 / 5)
    assert found.spread.degrees_of_freedom == pytest.approx(expected)
    assert found.num_prompts == 9


def test_a_second_one_without_error_counts_as_exact():
    found = product(ratio(0.5, 0.03, 8.0), ratio(0.2, None, None, n=1))
    assert found.spread == Uncertainty(standard_error=0.03, degrees_of_freedom=8.0)


def test_a_first_one_without_error_leaves_none():
    found = product(ratio(0.5, None, None, n=3), ratio(0.2, 0.04, 5.0))
    assert found.spread is None


def test_no_error_at_all_keeps_the_freedom_of_the_prompts():
    assert product(ratio(0.5, 0.0, 8.0), ratio(0.2, 0.0, 5.0)).spread.degrees_of_freedom == 8.0
