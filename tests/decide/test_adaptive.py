import math
from dataclasses import replace

import pytest

from specbench.decide.comparisons import (
    AdaptiveComparison,
    best_fixed,
    compare_adaptive,
    pooled,
)
from specbench.decide.recommend import winners
from specbench.metrics.cell import CellData, against
from specbench.metrics.machine import machine_kind
from specbench.metrics.summary import summarize
from specbench.stats.intervals import minimum_detectable_effect, speedup_ratio
from specbench.stats.machine_noise import PARTS, MachineKind, assumed_noise
from tests.cell_keys import with_axes
from tests.decide.cells import BASE, cell, draft, stream

AUTO = draft(8, adaptive=True)
ROWS = {"concurrency": 2}


def explored(base: float, auto: float, **by_k: float) -> list[CellData]:
    """Cells whose requests all take equally long; each with its baseline."""
    plain = cell(BASE, [base] * 6)
    drafting = {draft(int(name[1:])): s for name, s in by_k.items()} | {AUTO: auto}
    return [plain, *(against(cell(key, [s] * 6), plain) for key, s in drafting.items())]


def with_variant(cell: CellData, name: str) -> CellData:
    """The cell under a set of a server's arguments."""
    return replace(cell, key=with_axes(cell.key, variant=name))


def broken(cell: CellData) -> CellData:
    """The cell with its first request failed."""
    first, *other_requests = cell.requests
    failed = replace(first, finish_reason="failed", error="refused")
    return replace(cell, requests=(failed, *other_requests))


def prefilled(cell: CellData, seconds: float) -> CellData:
    """The cell with prefills that take this long."""
    requests = tuple(
        replace(r, prefill_s=seconds, ttft_s=seconds, total_s=seconds + r.decode_s)
        for r in cell.requests
    )
    return replace(cell, requests=requests)


def single(comparisons: tuple[AdaptiveComparison, ...]) -> AdaptiveComparison:
    (comparison,) = comparisons
    return comparison


def test_auto_is_compared_with_the_fastest_fixed_k():
    comparison = single(compare_adaptive(explored(2.0, 0.8, k2=1.25, k4=1.0, k8=1.6)))
    assert comparison.best_fixed.draft.k == 4
    assert comparison.decode.estimate == pytest.approx(1.0 / 0.8)
    # All prompts and parts agree, so that only what is assumed of the machine remains.
    machine = assumed_noise(MachineKind.QUIET_CPU, alike=True).of_parts([0.0] * PARTS)
    assert comparison.decode.low == pytest.approx(1.25 * math.exp(-machine.of_run.margin()))
    assert (comparison.num_units, comparison.is_confirmed, comparison.valid) == (6, False, True)


def test_k_0_counts_as_a_fixed_k():
    comparison = single(compare_adaptive(explored(1.0, 1.0, k2=1.5, k4=2.0)))
    assert comparison.best_fixed == BASE
    assert comparison.decode.estimate == pytest.approx(1.0)


def test_the_confirmation_run_counts_if_there_is_one():
    """The first pass picks the K, by luck too fast; the confirmation run measures it again."""
    first = explored(2.0, 1.0, k2=1.2, k4=0.9)
    plain = cell(BASE, [2.0] * 6, repeat=9)
    again = [plain, cell(draft(4), [1.1] * 6, repeat=9), cell(AUTO, [1.0] * 6, repeat=9)]
    comparison = single(compare_adaptive(first, again))
    assert comparison.best_fixed.draft.k == 4
    assert comparison.is_confirmed
    assert comparison.decode.estimate == pytest.approx(1.1)
    assert not single(compare_adaptive(first, again[:2])).is_confirmed  # auto was not repeated
    assert not single(compare_adaptive(first, again[::2])).is_confirmed  # nor the K


def test_an_invalid_k_is_not_the_best():
    cells = explored(2.0, 1.0, k2=1.5, k4=0.5)
    cells[2] = broken(cells[2])
    assert single(compare_adaptive(cells)).best_fixed.draft.k == 2


def test_decoding_decides_the_best_fixed_k_and_whole_requests_are_also_shown():
    plain, k2, k4, auto = explored(2.0, 0.8, k2=1.0, k4=1.25)
    # Whole requests: 2.1 s without a draft, 5 s at K = 2, 1.35 s at K = 4 and 0.9 s at auto.
    comparison = single(compare_adaptive([plain, prefilled(k2, 4.0), k4, auto]))
    assert comparison.best_fixed.draft.k == 2
    assert comparison.decode.estimate == pytest.approx(1.0 / 0.8)
    assert comparison.end_to_end is not None
    assert comparison.end_to_end.estimate == pytest.approx(5.0 / 0.9)


def test_a_comparison_is_valid_only_if_both_sides_are():
    first = explored(2.0, 0.8, k4=1.0)
    plain, fixed, auto = (cell(key, [1.0] * 6, repeat=9) for key in (BASE, draft(4), AUTO))
    sides = [[fixed, auto], [broken(fixed), auto], [fixed, broken(auto)]]
    comparisons = [single(compare_adaptive(first, [plain, *both])) for both in sides]
    assert all(comparison.is_confirmed for comparison in comparisons)
    assert [comparison.valid for comparison in comparisons] == [True, False, False]


def test_passes_are_the_unit_with_concurrent_requests():
    base, k4 = with_axes(BASE, **ROWS), draft(4, **ROWS)
    auto = with_axes(AUTO, **ROWS)
    fixed_s, auto_s = [1.0, 1.1, 1.0, 1.2, 1.1, 1.0], [0.8, 0.9, 0.8, 0.9, 0.8, 0.8]
    plain = stream(base, [2.0, 2.2, 2.1, 2.0, 2.3, 2.1])
    fixed = against(stream(k4, fixed_s), plain)
    adaptive = against(stream(auto, auto_s, ks=(8, 4, 4, 4, 2, 2)), plain)
    comparison = single(compare_adaptive([plain, fixed, adaptive]))
    assert comparison.best_fixed == k4
    assert comparison.num_units == 6
    assert comparison.decode.estimate == pytest.approx(6.4 / 5.0)
    assert comparison.decode.low is not None
    assert 1.1 < comparison.decode.low < 6.4 / 5.0
    costs = [math.log((0.1 + f) / (0.1 + a)) for f, a in zip(fixed_s, auto_s, strict=True)]
    kind = machine_kind(against(adaptive, fixed))
    machine = assumed_noise(kind, alike=True).with_run(costs)
    assert comparison.mean_num_speculative_tokens == pytest.approx(4.0)
    assert comparison.minimum_detectable_effect == pytest.approx(
        minimum_detectable_effect(speedup_ratio(fixed_s, auto_s).on(machine))
    )
    # An effect that is found four times in five is larger than the interval's half-width.
    assert (
        comparison.minimum_detectable_effect
        > comparison.decode.estimate / comparison.decode.low - 1
    )


def test_four_prompts_give_no_interval_and_no_detectable_effect():
    plain = cell(BASE, [2.0] * 4)
    auto = against(cell(AUTO, [1.0, 1.1, 1.2, 1.3]), plain)
    comparison = single(compare_adaptive([plain, auto]))
    assert (comparison.decode.low, comparison.minimum_detectable_effect) == (None, None)


def test_adaptive_k_is_compared_only_with_the_same_method_and_setting():
    cells = explored(2.0, 1.0, k4=1.5)
    lookup = cell(draft(4, method="ngram", pairing="demo/ngram"), [0.1] * 6)
    longer = cell(draft(4, context=512), [0.1] * 6)
    rivals = [against(rival, cells[0]) for rival in (lookup, longer)]
    assert single(compare_adaptive([*cells, *rivals])).best_fixed == draft(4)


def test_an_engines_own_scheme_is_compared_with_the_fixed_k_of_the_plain_arguments():
    plain, k4, _ = explored(2.0, 1.0, k4=1.25)
    base, scheme = (with_axes(key, variant="p_min") for key in (BASE, AUTO))
    own = cell(base, [2.5] * 6)
    cells = [with_variant(c, "default") for c in (plain, k4)]
    cells += [own, against(cell(scheme, [1.0] * 6), own)]
    comparison = single(compare_adaptive(cells))
    assert comparison.adaptive == scheme
    assert comparison.best_fixed == with_axes(draft(4), variant="default")
    assert comparison.decode.estimate == pytest.approx(1.25)
    assert {*winners(summarize(cells))} >= {scheme.id, comparison.best_fixed.id}


def test_without_an_adaptive_cell_there_is_nothing_to_compare():
    assert compare_adaptive(explored(2.0, 1.0, k4=1.5)[:2]) == ()


def test_the_best_fixed_k_of_a_setting_is_not_adaptive(summarized):
    cells = [summarized(2, 1.1, 1.2, 1.3), summarized(4, 1.0, 1.5, 2.0)]
    auto = summarized(8, 1.8, 1.9, 2.0)
    auto = replace(auto, key=with_axes(auto.key, adaptive=True))
    assert best_fixed([*cells, auto]) == cells[1].key
    assert best_fixed([auto]) is None


def test_the_best_fixed_k_is_0_if_every_other_is_slower(summarized):
    plain, slow = summarized(0, None, 1.0, None), summarized(2, 0.8, 0.9, 1.0)
    assert best_fixed([slow, plain]) == plain.key
    assert best_fixed([slow]) == slow.key


@pytest.mark.parametrize("ks", [(2, 4), (4, 2)])
def test_the_smaller_of_equally_fast_fixed_k_is_best(summarized, ks):
    key = best_fixed([summarized(k, 1.1, 1.2, 1.3) for k in ks])
    assert key.draft.k == 2


def test_invalid_cells_give_the_best_fixed_k_only_if_no_valid_cell_does(summarized):
    fast, faster = (summarized(k, 1.9, k / 2, 2.1, invalid=("throttled",)) for k in (4, 8))
    valid = summarized(2, 1.0, 1.1, 1.2)
    unmeasured = replace(summarized(3, 1.0, 9.0, 10.0), speedup=None)
    assert best_fixed([fast, faster, valid, unmeasured]) == valid.key
    assert best_fixed([faster, fast, unmeasured]) == faster.key
    assert best_fixed([unmeasured]) is None


def test_the_pooled_ratio_is_a_geometric_mean_of_confirmed_comparisons():
    first = single(compare_adaptive(explored(2.0, 1.0, k4=2.0 / 4)))  # 0.5
    second = single(compare_adaptive(explored(2.0, 1.0, k4=2.0)))  # 2.0
    assert pooled([first, second]) is None
    first, second = replace(first, is_confirmed=True), replace(second, is_confirmed=True)
    assert pooled([first, second]) == (pytest.approx(1.0), 2)
    assert pooled([first, replace(second, valid=False)]) == (pytest.approx(0.5), 1)
    assert pooled([replace(first, is_confirmed=False), second]) == (pytest.approx(2.0), 1)
    assert pooled([]) is None
