from dataclasses import replace

import pytest

from specbench.metrics.cell import CellData, against
from specbench.pairing.adaptive import AdaptiveComparison, compare_adaptive, pooled
from tests.pairing.cells import BASE, cell, draft, stream

AUTO = draft(8, adaptive=True)
ROWS = {"concurrency": 2}


def explored(base: float, auto: float, **by_k: float) -> list[CellData]:
    """Cells whose requests all take as long; each beside its baseline."""
    plain = cell(BASE, [base] * 6)
    drafting = {draft(int(name[1:])): s for name, s in by_k.items()} | {AUTO: auto}
    return [plain, *(against(cell(key, [s] * 6), plain) for key, s in drafting.items())]


def only(comparisons: tuple[AdaptiveComparison, ...]) -> AdaptiveComparison:
    (comparison,) = comparisons
    return comparison


def test_auto_is_held_against_the_fastest_fixed_k():
    found = only(compare_adaptive(explored(2.0, 0.8, k2=1.25, k4=1.0, k8=1.6)))
    assert found.best_fixed.num_speculative_tokens == 4
    assert found.decode.estimate == pytest.approx(1.0 / 0.8)
    assert found.decode.low == pytest.approx(1.25)
    assert (found.num_units, found.is_confirmed, found.valid) == (6, False, True)


def test_not_speculating_is_one_of_the_fixed():
    found = only(compare_adaptive(explored(1.0, 1.0, k2=1.5, k4=2.0)))
    assert found.best_fixed == BASE
    assert found.decode.estimate == pytest.approx(1.0)


def test_fresh_repeats_are_what_counts_where_there_are_any():
    """The first pass picks the K, by luck too fast; the repeats say what it is worth."""
    first = explored(2.0, 1.0, k2=1.2, k4=0.9)
    plain = cell(BASE, [2.0] * 6, repeat=9)
    again = [plain, cell(draft(4), [1.1] * 6, repeat=9), cell(AUTO, [1.0] * 6, repeat=9)]
    found = only(compare_adaptive(first, again))
    assert found.best_fixed.num_speculative_tokens == 4
    assert found.is_confirmed
    assert found.decode.estimate == pytest.approx(1.1)
    assert not only(compare_adaptive(first, again[:2])).is_confirmed  # auto was not repeated


def test_an_invalid_k_is_not_the_best():
    cells = explored(2.0, 1.0, k2=1.5, k4=0.5)
    failed = replace(cells[2].requests[0], finish_reason="failed", error="refused")
    cells[2] = replace(cells[2], requests=(failed, *cells[2].requests[1:]))
    assert only(compare_adaptive(cells)).best_fixed.num_speculative_tokens == 2


def test_above_one_row_passes_are_the_unit():
    base, k4 = replace(BASE, **ROWS), draft(4, **ROWS)
    auto = replace(AUTO, **ROWS)
    plain = stream(base, [2.0, 2.2, 2.1, 2.0, 2.3, 2.1])
    fixed = against(stream(k4, [1.0, 1.1, 1.0, 1.2, 1.1, 1.0]), plain)
    adaptive = against(stream(auto, [0.8, 0.9, 0.8, 0.9, 0.8, 0.8], ks=(8, 4, 4, 4, 2, 2)), plain)
    found = only(compare_adaptive([plain, fixed, adaptive]))
    assert found.best_fixed == k4
    assert found.num_units == 6
    assert found.decode.estimate == pytest.approx(6.4 / 5.0)
    assert found.decode.low is not None
    assert 1.1 < found.decode.low < 6.4 / 5.0
    assert found.mean_num_speculative_tokens == pytest.approx(4.0)


def test_another_method_or_setting_is_no_rival():
    cells = explored(2.0, 1.0, k4=1.5)
    lookup = cell(draft(4, method="ngram", pairing="demo/ngram"), [0.1] * 6)
    longer = cell(draft(4, context=512), [0.1] * 6)
    rivals = [against(rival, cells[0]) for rival in (lookup, longer)]
    assert only(compare_adaptive([*cells, *rivals])).best_fixed == draft(4)


def test_without_an_adaptive_cell_there_is_nothing_to_compare():
    assert compare_adaptive(explored(2.0, 1.0, k4=1.5)[:2]) == ()


def test_the_pooled_ratio_is_a_geometric_mean_of_the_valid_ones():
    one = only(compare_adaptive(explored(2.0, 1.0, k4=2.0 / 4)))  # 0.5
    two = only(compare_adaptive(explored(2.0, 1.0, k4=2.0)))  # 2.0
    assert pooled([one, two]) == pytest.approx(1.0)
    assert pooled([one, replace(two, valid=False)]) == pytest.approx(0.5)
    assert pooled([]) is None
