"""Rare refusals, causes and reasons of the gate."""

import math
import re

import pytest

from specbench.errors import UsageError
from specbench.gate.attribution import Cause, attribute
from specbench.gate.baseline import pool
from specbench.gate.check import Tolerance, check
from specbench.gate.comparable import pair_up
from specbench.gate.comparison import Comparison
from specbench.gate.figures import Figure
from specbench.stats.spread import Uncertainty
from tests.gate.gate_sides import cell, figure, key, side
from tests.gate.test_attribution import causes, figures
from tests.gate.test_comparable import FIGURES, refused

SPEEDUP = (Tolerance(metric="decode_speedup", share=0.05),)


def test_too_few_prompts_of_the_baseline_are_named_as_well():
    three = ("p1", "p2", "p3")
    few = cell({"decode_speedup": Figure(value=2.0, without=(1.9, 2.0, 2.1))}, units=three)
    many = side(cell({"decode_speedup": figure(2.0)}), name="b")
    gate = check(side(few), many, SPEEDUP, {"prompts"})
    assert re.fullmatch("3 prompts .*; .*5", gate.judgments[-1].reason)


def test_a_small_share_is_not_reported_if_k_0_hides_the_loss():
    """The metric itself lost 3 %: the causes are weighed by what acceptance and rounds lost."""
    before, after = figures(), figures(length=2.0, verify_s=0.0072)
    whole = (("end_to_end_speedup", 2.0), ("end_to_end_speedup", 1.94))
    before, after = (
        cell({**c.figures, name: figure(value)})
        for c, (name, value) in zip((before, after), whole, strict=True)
    )
    found = attribute(before, after, ["end_to_end_speedup"], same_hardware=True)
    assert found.causes == (Cause.ACCEPTANCE,)


@pytest.mark.parametrize(
    "metric",
    [
        "mean_acceptance_length",
        "acceptance_rate",
        "acceptance_rate_per_position[1]",
        "conditional_acceptance_rate[2]",
        "alpha",
    ],
)
def test_acceptance_metrics_are_attributed_to_acceptance(metric):
    assert causes(figures(length=2.0), metric) == (Cause.ACCEPTANCE,)


@pytest.mark.parametrize("changed", [{"concurrency": (4, 8)}, {"temperature": (0.7, 1.0)}])
def test_a_changed_cell_is_omitted_if_cells_may_differ(changed):
    ((name, values),) = changed.items()
    one, other = (
        side(cell(FIGURES), cell(FIGURES, of=key(**{name: value})), name=run)
        for run, value in zip("ab", values, strict=True)
    )
    assert name in refused(one, other)
    assert [pair.baseline.key for pair in pair_up(one, other, {"cells"}).pairs] == [key()]


def test_an_additional_cell_is_named_by_the_axis_in_which_it_differs():
    both = side(cell(FIGURES), cell(FIGURES, of=key(dtype="bfloat16")))
    told = refused(both, side(cell(FIGURES), name="b"))
    assert re.search("cells: demo/draft K=4 .*code, .*bfloat16 .*baseline", told)


def test_a_figure_that_only_one_prompt_has_is_compared_as_a_share():
    """A place that only one prompt's drafts reach: without that prompt it is 0."""
    name = "acceptance_rate_per_position[4]"
    before, after = (
        side(cell({name: Figure(value=v, without=(0.0, v, v, v, v))}), name=run)
        for run, v in (("a", 0.2), ("b", 0.1))
    )
    asked = [Tolerance(metric="acceptance_rate_per_position", share=0.05)]
    (found,) = check(before, after, asked).judgments
    assert found.change.estimate == pytest.approx(-0.5)


def test_the_bound_of_a_very_uncertain_loss_is_finite():
    wide = Uncertainty(standard_error=1e3, degrees_of_freedom=1.0)
    worse = Comparison(loss=0.1, limit=0.05, spread=wide)
    assert math.isfinite(worse.as_change(worse.bound(0.975), higher_is_better=False))


def test_a_run_that_is_named_twice_after_another_is_refused():
    def run(name):
        return side(cell({"decode_speedup": figure(2.0)}), name=name)

    with pytest.raises(UsageError, match="a0 was named twice"):
        pool([run("a"), run("b"), run("a")])


def test_a_pairing_of_only_one_run_is_not_a_changed_draft():
    both, one = (
        side(cell({"decode_speedup": figure(2.0)}), name=name, drafters=drafters, entries=drafters)
        for name, drafters in (
            ("a", {"demo/draft": "d" * 64, "demo/eagle": "e" * 64}),
            ("b", {"demo/draft": "d" * 64}),
        )
    )
    assert pool([both, one]).num_runs == 2
