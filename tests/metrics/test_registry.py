from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specbench import metrics
from specbench.metrics import registry
from specbench.metrics.registry import all_metrics, measure, metric

NEW_FILE = '''
from specbench.metrics.registry import metric


@metric(unit="prompts", better=None)
def num_prompts_seen(cell):
    """Distinct prompts
    of the cell.

    Not part of the formula.
    """
    return len({request.prompt_id for request in cell.requests})
'''


@pytest.fixture
def added_file(tmp_path: Path) -> Iterator[None]:
    """A metric file next to the others, removed after the test."""
    (tmp_path / "prompts_seen.py").write_text(NEW_FILE)
    known = dict(all_metrics())  # of every module, in any order of imports
    metrics.__path__.append(str(tmp_path))
    yield
    metrics.__path__.remove(str(tmp_path))
    registry._METRICS.clear()
    registry._METRICS.update(known)


@pytest.mark.usefixtures("added_file")
def test_a_new_metric_is_one_file(cell):
    assert measure(cell)["num_prompts_seen"] == 2
    added = all_metrics()["num_prompts_seen"]
    assert (added.unit, added.better) == ("prompts", None)
    assert added.formula == "Distinct prompts of the cell."


def test_every_metric_has_a_unit_and_a_formula():
    assert all(known.unit and known.formula for known in all_metrics().values())
    assert "1 + sum(a) / N" in all_metrics()["mean_acceptance_length"].formula


def test_metrics_are_sorted_by_name():
    assert list(all_metrics()) == sorted(all_metrics())


def test_a_metric_name_cannot_be_registered_twice():
    def alpha(_):
        """Another alpha."""

    with pytest.raises(ValueError, match=r"alpha.*specbench"):
        metric(unit="fraction", better=None)(alpha)


def test_a_metric_without_a_formula_is_refused():
    def nameless(_):
        return None

    with pytest.raises(ValueError, match="no docstring"):
        metric(unit="fraction", better=None)(nameless)


def test_a_metric_that_is_not_finite_is_reported_as_a_bug(cell):
    infinite = replace(cell.requests[0], ttft_s=float("inf"))
    with pytest.raises(ArithmeticError, match=r"ttft_s of demo/draft\|code"):
        measure(replace(cell, requests=(infinite,)))
