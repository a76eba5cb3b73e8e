"""Figures of a cell: units, leave-one-out values, greedy texts."""

from dataclasses import replace

import numpy as np
import pytest

from specbench.gate.check import Tolerance, check
from specbench.gate.figures import cell_figures, first_difference
from specbench.gate.judging import Runs, compare
from specbench.gate.tolerances import MetricKind, deviation_floor, kind_of
from specbench.metrics import registry
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.cell import Pass
from specbench.metrics.registry import all_metrics, metric
from specbench.records import SamplesRecord
from specbench.stats.intervals import log_ratio
from tests.cell_keys import with_axes
from tests.gate.gate_sides import side
from tests.report.served_runs import served_run


@pytest.fixture(scope="module")
def stream():
    """A cell of overlapping requests."""
    stored = served_run()
    cells = aggregate_cells([plan.key for plan in stored.run.cells], stored.blocks)
    return next(c for c in cells if c.key.condition.concurrency > 1 and c.key.draft.k)


LENGTH = [Tolerance(metric="mean_acceptance_length", share=0.02)]


def test_a_leave_one_out_value_equals_that_of_a_cell_without_the_prompt(steady):
    figures = cell_figures(steady, {"decode_speedup", "mean_acceptance_length"})
    fewer = replace(
        steady,
        requests=tuple(r for r in steady.requests if r.prompt_id != "p2"),
        baseline=tuple(r for r in steady.baseline if r.prompt_id != "p2"),
    )
    assert figures.units == tuple(f"p{i}" for i in range(6))
    assert figures.num_tokens == (13.0,) * 6
    expected = cell_figures(fewer, {"decode_speedup"}).value("decode_speedup")
    assert figures.figures["decode_speedup"].without[2] == expected
    assert figures.value("mean_acceptance_length") == 2.0


def test_prompts_are_compared_by_their_first_turns(steady):
    """The prompt of a later turn depends on the target's answer."""
    turns = (
        replace(request, turn=turn, prompt_sha256=f"{request.prompt_id}-{turn}")
        for request in steady.requests
        for turn in (0, 1)
    )
    figures = cell_figures(replace(steady, requests=tuple(turns)), {"mean_acceptance_length"})
    assert figures.prompt_sha256 == {f"p{i}": f"p{i}-0" for i in range(6)}


def test_the_spread_is_that_of_the_paired_interval_over_sums(steady):
    """The same jackknife as intervals.log_ratio, which knows the sums."""
    slower = replace(
        steady,
        requests=tuple(
            replace(r, decode_s=r.decode_s * (1.1 + 0.02 * i))
            for i, r in enumerate(steady.requests)
        ),
    )
    before, after = (cell_figures(c, {"decode_speedup"}) for c in (steady, slower))
    change = compare(
        before, after, "decode_speedup", 0.05, higher_is_better=True, floor=0.0, runs=Runs(1, 1)
    )
    base, spec = ([r.decode_s for r in c.requests] for c in (steady, slower))
    expected = log_ratio([spec], [base])
    assert change.loss == pytest.approx(expected.log, rel=1e-5)
    assert change.spread.standard_error == pytest.approx(expected.standard_error, rel=1e-4)
    assert change.spread.degrees_of_freedom == pytest.approx(5)


def test_a_newly_registered_metric_can_be_gated(steady, monkeypatch):
    monkeypatch.setattr(registry, "_METRICS", dict(all_metrics()))

    @metric(unit="s", better="lower")
    def longest_request_s(cell):
        """Longest decode_s."""
        return max((r.decode_s for r in cell.finished), default=None)

    single = side(cell_figures(steady, {"longest_request_s"}))
    gate = check(single, single, [Tolerance(metric=longest_request_s.__name__, share=0.05)])
    assert gate.judgments[-1].baseline == pytest.approx(0.9)


def test_list_metrics_have_one_value_per_entry(steady):
    figures = cell_figures(steady, {"acceptance_rate_per_position"})
    assert figures.series("acceptance_rate_per_position") == (0.5, 0.5)


def test_a_metric_equal_for_every_prompt_has_no_leave_one_out_values(steady):
    figures = cell_figures(steady, {"mean_acceptance_length"})
    assert figures.figures["mean_acceptance_length"].without == ()
    assert check(side(figures), side(figures), LENGTH).num_tests == 0


def test_the_unit_is_a_pass_if_requests_overlap(stream):
    figures = cell_figures(stream, {"decode_speedup", "mean_acceptance_length"})
    assert figures.units == tuple(f"pass {i}" for i in range(len(stream.passes)))
    fewer = replace(stream, passes=stream.passes[1:], baseline_passes=stream.baseline_passes[1:])
    expected = all_metrics()["decode_speedup"].function(fewer)
    without = figures.figures["decode_speedup"].without or (figures.value("decode_speedup"),)
    assert without[0] == pytest.approx(expected, rel=1e-6)


def test_a_pass_that_repeats_prompts_is_one_unit(stream):
    """As in 16 rows over 40 prompts: a prompt that a pass serves again counts as a repeat."""

    def twice(i, served, pace):
        requests = (replace(r, repeat=2 * i + c) for c in (0, 1) for r in served.requests)
        record = replace(served.record, seconds=served.record.seconds * pace)
        return served._replace(requests=tuple(requests), record=record)

    passes = tuple(twice(i, p, 1 + 0.1 * i) for i, p in enumerate(stream.passes))
    base = tuple(twice(i, p, 1.0) for i, p in enumerate(stream.baseline_passes))
    doubled = replace(
        stream,
        passes=passes,
        baseline_passes=base,
        requests=tuple(r for p in passes for r in p.requests),
        baseline=tuple(r for p in base for r in p.requests),
    )
    figures = cell_figures(doubled, {"aggregate_tokens_per_s"})
    assert figures.units == tuple(f"pass {i}" for i in range(len(passes)))
    without = figures.figures["aggregate_tokens_per_s"].without
    assert len(without) == len(set(without)) == len(passes)
    fewer = replace(
        doubled,
        passes=passes[1:],
        baseline_passes=base[1:],
        requests=tuple(r for p in passes[1:] for r in p.requests),
    )
    expected = all_metrics()["aggregate_tokens_per_s"].function(fewer)
    assert without[0] == pytest.approx(expected, rel=1e-6)


def test_descriptive_counts_are_not_gated(steady):
    assert "num_rounds" not in cell_figures(steady).figures


def test_text_is_hashed_in_pieces_so_that_the_first_difference_is_found(steady):
    changed = replace(
        steady,
        requests=tuple(
            replace(r, output_ids=(*range(40), 99 if r.prompt_id == "p1" else 40))
            for r in steady.requests
        ),
    )
    same = replace(
        steady, requests=tuple(replace(r, output_ids=tuple(range(41))) for r in steady.requests)
    )
    first, other = (cell_figures(c, set()).texts for c in (same, changed))
    assert {p for p in first if first[p] != other[p]} == {"p1"}
    assert first_difference(first["p1"], other["p1"]) == "tokens 33 to 48"


def test_repeats_that_agree_are_hashed_once(steady):
    twice = replace(
        steady, requests=(*steady.requests, *(replace(r, repeat=1) for r in steady.requests))
    )
    assert cell_figures(twice, set()).texts == cell_figures(steady, set()).texts


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.7},
        {"adaptive": True},
        {"request_rate": 2.0},
        {"lossy": "typical 0.3 0.09"},
    ],
)
def test_text_that_need_not_repeat_is_not_hashed(steady, changed):
    other = replace(steady, key=with_axes(steady.key, **changed))
    assert cell_figures(other, set()).texts == {}


def _slower(request, times):
    log = request.rounds
    return replace(
        request,
        prefill_s=times * request.prefill_s,
        ttft_s=times * request.ttft_s,
        decode_s=times * request.decode_s,
        total_s=times * request.total_s,
        cpu_s=times * request.cpu_s,
        rounds=replace(log, round_s=tuple(times * s for s in log.round_s)),
    )


def test_metric_kinds_match_the_effect_of_a_slower_clock(steady):
    """Independent of units: a slower machine changes times, a slower side also ratios."""
    machine = replace(
        steady,
        requests=tuple(_slower(r, 2) for r in steady.requests),
        baseline=tuple(_slower(r, 2) for r in steady.baseline),
    )
    drafting = replace(steady, requests=machine.requests)
    seen = 0
    for known in all_metrics().values():
        values = [known.function(cell) for cell in (steady, machine, drafting)]
        if known.better is None or values[0] is None or known.name == "num_failed":
            continue
        seen += 1
        moved_all, moved_one = (
            not np.allclose(values[0], value, rtol=1e-9) for value in values[1:]
        )
        expected = (
            MetricKind.TIME if moved_all else MetricKind.RATIO if moved_one else MetricKind.COUNT
        )
        assert kind_of(known) is expected, known.name
    assert seen > 15


def test_the_deviation_floor_is_0_for_counts_and_largest_for_times():
    for device in ("cpu", "cuda", "something else"):
        floors = [deviation_floor(kind, device) for kind in MetricKind]
        assert floors[0] == 0
        assert floors == sorted(floors)


@pytest.fixture
def calls(monkeypatch):
    """The cells passed to a metric: the whole one, then each without a unit."""
    cells = []
    monkeypatch.setattr(registry, "_METRICS", dict(all_metrics()))

    @metric(unit="s", better="lower")
    def noted_s(cell):
        """Always 1."""
        cells.append(cell)
        return 1.0

    return cells


def test_an_excluded_pass_is_removed_from_both_sides(calls, stream):
    base = tuple(
        p._replace(requests=tuple(replace(r, repeat=r.repeat + 100) for r in p.requests))
        for p in stream.baseline_passes
    )
    other = replace(
        stream, baseline_passes=base, baseline=tuple(r for p in base for r in p.requests)
    )
    cell_figures(other, {"noted_s"})
    _, *rest = calls
    assert len(rest) == len(other.passes)
    for i, left in enumerate(rest):
        passes, base_passes = (s[:i] + s[i + 1 :] for s in (other.passes, base))
        assert left.passes == passes
        assert left.baseline_passes == base_passes
        assert left.requests == tuple(r for p in passes for r in p.requests)
        assert left.baseline == tuple(r for p in base_passes for r in p.requests)


def test_an_excluded_prompt_is_removed_from_the_samples_of_both_sides(calls, steady, stream):
    served = stream.passes[0].record

    def key_of(request):
        return {n: getattr(request, n) for n in ("prompt_id", "turn", "repeat")}

    def sampled(requests):
        return tuple(
            Pass(
                r.prompt_id,
                served,
                (r,),
                SamplesRecord(
                    **key_of(r), served=served, log_probs=(-1.0,), picked=0, scoring_s=0.0
                ),
            )
            for r in requests
        )

    cell = replace(
        steady, passes=sampled(steady.requests), baseline_passes=sampled(steady.baseline)
    )
    cell_figures(cell, {"noted_s"})
    left = calls[1]  # without p0
    for timed, base in ((left.passes, left.requests), (left.baseline_passes, left.baseline)):
        assert timed == sampled(base)
        assert "p0" not in {r.prompt_id for s in timed for r in s.requests}


def test_a_failed_request_is_not_a_unit(stream):

    def fail(served, which):
        return served._replace(
            requests=tuple(
                replace(r, finish_reason="failed") if i in which else r
                for i, r in enumerate(served.requests)
            )
        )

    first, second, *rest = stream.passes
    passes = (fail(first, {0}), fail(second, set(range(len(second.requests)))), *rest)
    cell = replace(stream, passes=passes, requests=tuple(r for p in passes for r in p.requests))
    whole, partial = (cell_figures(c, {"aggregate_tokens_per_s"}) for c in (stream, cell))
    assert partial.units == ("pass 0", *whole.units[2:])
    failed = first.requests[0].num_output_tokens
    assert failed > 0
    assert partial.num_tokens[0] == whole.num_tokens[0] - failed


@pytest.mark.parametrize("name", ["break_even_length", "busy_share", "bandwidth_utilization"])
def test_shares_and_lengths_by_seconds_are_not_counts(name):
    assert kind_of(all_metrics()[name]) is MetricKind.RATIO
