"""What a cell is without one of its units: nothing of that unit is left on either side."""

from dataclasses import replace

import pytest

from specbench.gate.figures import cell_figures
from specbench.metrics import registry
from specbench.metrics.aggregate import gather_cells
from specbench.metrics.cell import Samples
from specbench.metrics.registry import all_metrics, metric
from specbench.records import SamplesRecord
from tests.report.served_runs import served_run


def stream_cell():
    stored = served_run()
    cells = gather_cells([plan.key for plan in stored.run.cells], stored.blocks)
    return next(c for c in cells if c.key.condition.concurrency > 1 and c.key.draft.k)


@pytest.fixture
def seen(monkeypatch):
    """The cells that a metric was asked about: the whole one, then each without a unit."""
    found = []
    monkeypatch.setattr(registry, "_METRICS", dict(all_metrics()))

    @metric(unit="s", better="lower")
    def noted_s(cell):
        """Always 1."""
        found.append(cell)
        return 1.0

    return found


def test_a_pass_is_left_out_of_both_sides_whatever_their_repeats(seen):
    stream = stream_cell()
    base = tuple(
        p._replace(requests=tuple(replace(r, repeat=r.repeat + 100) for r in p.requests))
        for p in stream.baseline_passes
    )
    other = replace(
        stream, baseline_passes=base, baseline=tuple(r for p in base for r in p.requests)
    )
    cell_figures(other, {"noted_s"})
    _, *rest = seen
    assert len(rest) == len(other.passes)
    for i, left in enumerate(rest):
        passes, base_passes = (s[:i] + s[i + 1 :] for s in (other.passes, base))
        assert left.passes == passes
        assert left.baseline_passes == base_passes
        assert left.requests == tuple(r for p in passes for r in p.requests)
        assert left.baseline == tuple(r for p in base_passes for r in p.requests)


def test_a_prompt_is_left_out_of_the_samples_of_both_sides(seen, steady):
    served = stream_cell().passes[0].record

    def of(request):
        return {n: getattr(request, n) for n in ("prompt_id", "turn", "repeat")}

    def sampled(requests):
        return tuple(
            Samples(
                SamplesRecord(**of(r), served=served, log_probs=(-1.0,), picked=0, scoring_s=0.0),
                (r,),
            )
            for r in requests
        )

    cell = replace(
        steady, samples=sampled(steady.requests), baseline_samples=sampled(steady.baseline)
    )
    cell_figures(cell, {"noted_s"})
    left = seen[1]  # without p0
    for own, base in ((left.samples, left.requests), (left.baseline_samples, left.baseline)):
        assert own == sampled(base)
        assert "p0" not in {r.prompt_id for s in own for r in s.requests}


def test_a_failed_request_is_not_a_unit():
    stream = stream_cell()

    def fail(served, which):
        return served._replace(
            requests=tuple(
                replace(r, finish_reason="failed") if i in which else r
                for i, r in enumerate(served.requests)
            )
        )

    one, two, *others = stream.passes
    passes = (fail(one, {0}), fail(two, set(range(len(two.requests)))), *others)
    cell = replace(stream, passes=passes, requests=tuple(r for p in passes for r in p.requests))
    whole, found = (cell_figures(c, {"aggregate_tokens_per_s"}) for c in (stream, cell))
    assert found.units == ("pass 0", *whole.units[2:])
    failed = one.requests[0].num_output_tokens
    assert failed > 0
    assert found.num_tokens[0] == whole.num_tokens[0] - failed
