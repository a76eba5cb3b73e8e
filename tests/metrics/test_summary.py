import math
from dataclasses import replace

import pytest

from specbench.metrics.cell import against
from specbench.metrics.machine import machine_noise
from specbench.metrics.summary import summarize
from specbench.records import DraftConfig, Kind
from specbench.stats.intervals import minimum_detectable_effect, speedup_ratio
from specbench.stats.machine_noise import MachineKind
from tests.decide.cells import BASE, cell, draft

BASE_S = [1.2] * 6
SPEC_S = [0.60, 0.66, 0.72, 0.78, 0.84, 0.90]


def test_a_cell_summary_has_metrics_validity_and_speedup(steady):
    (summary,) = summarize([steady])
    assert summary.key == steady.key
    assert summary.valid
    assert (summary.num_prompts, summary.num_requests) == (6, 6)
    assert summary.metrics["mean_acceptance_length"] == 2.0
    assert summary.speedup is not None
    assert summary.speedup.estimate == pytest.approx(1.6)
    assert summary.speedup_end_to_end is not None
    assert summary.speedup_end_to_end.estimate == pytest.approx(7.8 / 5.1)
    measured = speedup_ratio(BASE_S, SPEC_S).on(machine_noise(steady))
    assert summary.minimum_detectable_effect == pytest.approx(minimum_detectable_effect(measured))


def test_the_metric_and_the_interval_agree_on_the_speedup(steady):
    (summary,) = summarize([steady])
    assert summary.speedup is not None
    assert summary.metrics["decode_speedup"] == pytest.approx(summary.speedup.estimate)


def test_turns_and_repeats_of_a_prompt_are_one_unit(steady):
    """Measuring every prompt twice adds no prompts: their margin stays the same."""
    again = tuple(replace(r, repeat=1) for r in steady.requests)
    base_again = tuple(replace(r, repeat=1) for r in steady.baseline)
    twice = replace(
        steady, requests=(*steady.requests, *again), baseline=(*steady.baseline, *base_again)
    )
    once, doubled = summarize([steady, twice])
    assert once.margin is not None
    assert doubled.margin is not None
    assert doubled.margin.prompts == pytest.approx(once.margin.prompts)
    assert (doubled.num_prompts, doubled.num_requests) == (6, 12)


def test_the_baseline_has_metrics_and_no_speedup(steady_baseline):
    (summary,) = summarize([steady_baseline])
    assert summary.valid
    assert summary.speedup is None
    assert summary.metrics["decode_tokens_per_s"] == pytest.approx(10.0)


def test_an_invalid_cell_keeps_its_metrics_and_has_a_reason(steady):
    (summary,) = summarize([replace(steady, requests=steady.requests[:4])])
    assert not summary.valid
    assert summary.invalid_reasons == (Kind.TOO_FEW_ROUNDS(needed=30),)
    assert summary.speedup is not None
    assert summary.speedup.low is None
    assert "round_s" in summary.metrics


def test_a_cell_with_only_failures_has_only_counts(steady):
    failed = tuple(
        replace(r, finish_reason="failed", error="refused", output_ids=()) for r in steady.requests
    )
    (summary,) = summarize([replace(steady, requests=failed)])
    assert not summary.valid
    assert dict(summary.metrics) == {"num_failed": 6, "num_output_tokens": 0}
    assert summary.speedup is None


def test_k_that_served_fewer_prompts_are_compared_over_all_of_them():
    """As under a time budget: the first five prompts gain less from speculation than the others."""
    base = cell(BASE, [1.0] * 12)
    gains = [1.2] * 5 + [2.4] * 7
    many = against(cell(draft(2), [1 / g for g in gains]), base)
    few = against(cell(draft(4), [1 / g / 1.1 for g in gains[:5]]), base)
    of_many, of_few = summarize([many, few])
    over_all = 12 / sum(1 / g for g in gains)
    assert of_many.speedup.estimate == pytest.approx(over_all)
    assert of_few.speedup.estimate == pytest.approx(1.1 * over_all, rel=1e-5)
    assert of_few.metrics["decode_speedup"] == pytest.approx(of_few.speedup.estimate)
    # A request takes 0.1 s more, on both sides.
    whole = 12 * 1.1 / sum(0.1 + 1 / g for g in gains)
    assert of_many.speedup_end_to_end.estimate == pytest.approx(whole)
    assert of_few.speedup_end_to_end.estimate > of_many.speedup_end_to_end.estimate
    (alone,) = summarize([few])
    assert alone.speedup.estimate == pytest.approx(1.2 * 1.1)


def test_k_with_fewer_repeats_are_compared_as_if_they_had_as_many():
    """K = 4 is 1.5x on ten prompts, three times each; K = 8 0.7x on five of them, once."""
    base = cell(BASE, [1.0] * 10)
    repeats = [cell(BASE, [1.0] * 10, repeat=i) for i in range(3)]
    thrice = replace(base, requests=tuple(r for of in repeats for r in of.requests))
    drafted = [cell(draft(4), [1 / 1.5] * 10, repeat=i) for i in range(3)]
    many = replace(drafted[0], requests=tuple(r for of in drafted for r in of.requests))
    few = against(cell(draft(8), [1 / 0.7] * 5), base)
    of_many, of_few = summarize([against(many, thrice), few])
    assert of_many.speedup.estimate == pytest.approx(1.5)
    assert of_few.speedup.estimate == pytest.approx(0.7)


def test_the_seconds_of_k_0_follow_the_machine_twice_as_much_as_the_ratio(steady):
    """All requests take equally long per token, so that prompts make no margin."""
    alike = tuple(replace(r, total_s=0.1 * r.num_output_tokens) for r in steady.requests)
    drafted = replace(steady, requests=alike)
    plain = replace(drafted, key=replace(steady.key, draft=DraftConfig.none))
    margins = [summarize([cell])[0].speed_margin for cell in (drafted, plain)]
    noise = machine_noise(drafted).of_run
    assert margins[0] == pytest.approx(math.expm1(noise.margin()))
    assert margins[1] == pytest.approx(math.expm1(2 * machine_noise(plain).of_run.margin()))


def test_k_0_shows_the_machine_by_its_own_requests(steady):
    plain = replace(
        steady,
        key=replace(steady.key, draft=DraftConfig.none),
        requests=steady.baseline,
        baseline=(),
        shared={},
    )
    assert machine_noise(plain).kind is machine_noise(steady).kind is MachineKind.QUIET_CPU
    assert machine_noise(plain).num_parts == machine_noise(steady).num_parts > 1
    waited = tuple(replace(r, cpu_s=0.5 * r.total_s) for r in plain.requests)
    assert machine_noise(replace(plain, requests=waited)).kind is MachineKind.SHARED_CPU
