"""commands.md and yaml.md agree with the program; the break-even page is right."""

import re

import pytest

from benchmarks import break_even, readme
from specbench.errors import ExitCode
from specbench.stats.rounds import expected_tokens_iid
from tools import reference


def test_the_yaml_reference_is_generated_from_the_program():
    assert reference.YAML.read_text(encoding="utf-8") == reference.yaml_page(), "run `make docs`"


def test_every_exit_code_is_explained():
    page = reference.YAML.with_name("commands.md").read_text(encoding="utf-8")
    assert all(f"| {int(code)} | " in page for code in ExitCode)


def test_no_k_pays_off_if_k_1_does_not():
    for cost in break_even.COSTS:
        assert break_even.best(cost - 0.001, cost) == (1.0, 0)
        speedup, k = break_even.best(cost + 0.02, cost)
        assert speedup > 1
        assert k >= 1


def test_the_dots_of_the_break_even_chart_are_where_a_round_gains_nothing():
    shown_costs = re.findall(
        r"costs ([\d.]+) of a step: breaks even at (\d+)%",
        readme.BREAK_EVEN.read_text(encoding="utf-8"),
    )
    assert [float(cost) for cost, _ in shown_costs] == list(break_even.COSTS)
    for cost, bound in shown_costs:
        steps = 1 + 4 * float(cost)
        assert expected_tokens_iid(int(bound) / 100, 4) == pytest.approx(steps, rel=0.02)
