from dataclasses import replace

import pytest

from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.cell import CellData, against, finished_baseline, once_a_baseline
from specbench.records import (
    ForwardCost,
    MemoryRecord,
    PassRecord,
    RoundTimeline,
)
from tests.cell_keys import with_axes
from tests.made_records import made_block

EMPTY = RoundTimeline(
    at_s=(), seconds=(), num_speculative_tokens=(), num_live=(), num_rows=(), num_emitted=()
)


def memory(drafter: str) -> MemoryRecord:
    return MemoryRecord(target="demo", drafter=drafter, weights_bytes=1, kv_bytes_per_token=1)


def cost(cell_id: str) -> ForwardCost:
    return ForwardCost(
        cell_id=cell_id, role="target", num_tokens=1, num_per_round=1, seconds=1.0, num_samples=1
    )


def test_a_cell_is_aggregated_with_the_baseline_of_its_blocks(cell: CellData, baseline_cell):
    spec_a, spec_b = cell.requests
    base_a, base_b = cell.baseline
    other_key = with_axes(cell.key, pairing="demo/poor", drafter="poor")
    blocks = [
        made_block("a", base_a, spec_a),
        made_block("b", spec_b, base_b),
        # Another drafter that did not fit next to the first has its own blocks and K = 0.
        made_block("a", base_a, replace(spec_a, cell_id=other_key.id), repeat=1),
    ]
    keys = [baseline_cell.key, cell.key, other_key]

    base, first, second = aggregate_cells(keys, blocks)

    assert first == cell
    assert second.baseline == (base_a,)
    assert base.requests == (base_a, base_b, base_a)
    assert base.baseline == ()


def test_a_k_that_a_resumed_run_measures_again_is_paired_within_its_last_block(cell, baseline_cell):
    """Another drafter loads, or no longer does: the run's blocks have other cells than before."""
    (spec_a, spec_b), (base_a, base_b) = cell.requests, cell.baseline
    other_key = with_axes(cell.key, pairing="demo/poor", drafter="poor")
    slow_base, slow_spec = (replace(r, decode_s=2 * r.decode_s) for r in (base_a, spec_a))
    other = replace(slow_spec, cell_id=other_key.id)
    alone = [made_block("a", base_a, spec_a), made_block("b", base_b, spec_b)]
    both = [made_block("a", slow_base, slow_spec, other, block_id="both")]
    keys = [baseline_cell.key, cell.key, other_key]

    base, known, added = aggregate_cells(keys, [*alone, *both])
    assert known.pairs == ((base_b, spec_b), (slow_base, slow_spec))
    assert added.pairs == ((slow_base, other),)
    assert base.requests == (base_a, base_b, slow_base)

    _, known, lost = aggregate_cells(keys, [*both, *alone])
    assert known.pairs == ((base_a, spec_a), (base_b, spec_b))
    assert lost.pairs == ((slow_base, other),)


def test_values_derived_from_a_baseline_are_computed_once_per_baseline(cell, baseline_cell):
    spec_a, spec_b = cell.requests
    base_a, base_b = cell.baseline
    far_key = with_axes(cell.key, num_speculative_tokens=8)
    alone_key = with_axes(cell.key, pairing="demo/poor", drafter="poor")
    other_a = replace(base_a, output_ids=base_a.output_ids[:-1])
    blocks = [
        made_block("a", base_a, spec_a, replace(spec_a, cell_id=far_key.id)),
        made_block("b", base_b, spec_b, replace(spec_b, cell_id=far_key.id)),
        made_block("a", other_a, replace(spec_a, cell_id=alone_key.id), repeat=1),
        made_block("b", base_b, replace(spec_b, cell_id=alone_key.id), repeat=1),
    ]
    seen_keys = []

    @once_a_baseline
    def num_tokens(cell: CellData) -> int:
        seen_keys.append(cell.key)
        return sum(request.num_output_tokens for request in finished_baseline(cell))

    keys = [baseline_cell.key, cell.key, far_key, alone_key]
    _, near, far, alone = aggregate_cells(keys, blocks)
    assert num_tokens(near) == num_tokens(far) == sum(r.num_output_tokens for r in (base_a, base_b))
    assert num_tokens(alone) == num_tokens(near) - 1
    assert seen_keys == [cell.key, alone_key]
    assert num_tokens(replace(near, baseline=(base_b,))) == base_b.num_output_tokens
    assert num_tokens(near) == num_tokens(far)


def test_explored_and_confirmed_blocks_are_aggregated_separately(cell: CellData, baseline_cell):
    spec, base = cell.requests[0], cell.baseline[0]
    blocks = [
        made_block("a", base, spec),
        made_block(
            "a", replace(base, repeat=1), replace(spec, repeat=1), purpose="confirm", repeat=1
        ),
    ]
    keys = [baseline_cell.key, cell.key]
    assert [len(c.requests) for c in aggregate_cells(keys, blocks)] == [1, 1]
    _, confirmed = aggregate_cells(keys, blocks, purpose="confirm")
    assert confirmed.requests[0].repeat == 1


def test_an_unmeasured_cell_is_omitted(cell, baseline_cell):
    blocks = [made_block("a", cell.baseline[0])]
    assert [c.key for c in aggregate_cells([baseline_cell.key, cell.key], blocks)] == [
        baseline_cell.key
    ]


def test_a_cell_at_another_temperature_is_no_baseline(cell, baseline_cell):
    warm = with_axes(cell.key, temperature=1.0)
    spec = replace(cell.requests[0], cell_id=warm.id)
    (_, sampled) = aggregate_cells(
        [baseline_cell.key, warm], [made_block("a", cell.baseline[0], spec)]
    )
    assert sampled.baseline == ()


def test_memory_and_forward_records_belong_to_their_cell(cell, baseline_cell):
    base, spec = aggregate_cells(
        [baseline_cell.key, cell.key],
        [made_block("a", cell.requests[0], cell.baseline[0])],
        memories=[memory("none"), memory("draft"), memory("poor")],
        forwards=[cost(baseline_cell.key.id), cost(cell.key.id), cost("another")],
    )
    assert base.memory == memory("none")
    assert (spec.memory_target, spec.memory) == (memory("none"), memory("draft"))
    assert spec.forwards == (cost(cell.key.id),)
    assert base.forwards == (cost(baseline_cell.key.id),)


def test_repeats_and_turns_are_paired_like_with_like(cell):
    spec, base = cell.requests[0], cell.baseline[0]
    again = replace(
        cell,
        requests=(spec, replace(spec, repeat=1), replace(spec, turn=1)),
        baseline=(replace(base, repeat=1), base),
    )
    assert [(p.base.repeat, p.spec.repeat) for p in again.pairs] == [(0, 0), (1, 1)]
    assert all(p.base.turn == p.spec.turn == 0 for p in again.pairs)


@pytest.mark.parametrize("change", [{"context": 4096}, {"request_rate": 2.0}, {"concurrency": 4}])
def test_another_setting_is_not_the_baseline(cell, baseline_cell, change):
    key = with_axes(cell.key, **change)
    spec = replace(cell.requests[0], cell_id=key.id)
    (_, other) = aggregate_cells(
        [baseline_cell.key, key], [made_block("a", cell.baseline[0], spec)]
    )
    assert other.baseline == ()


def test_an_adaptive_cell_has_the_baseline_of_the_fixed_ones_and_its_time_line(cell, baseline_cell):
    key = with_axes(cell.key, adaptive=True)
    spec = replace(cell.requests[0], cell_id=key.id)
    record = PassRecord(cell_id=key.id, seconds=1.0, rounds=EMPTY)
    stored = replace(made_block("a", cell.baseline[0], cell.requests[0], spec), passes=(record,))
    _, fixed, adaptive = aggregate_cells([baseline_cell.key, cell.key, key], [stored])
    assert fixed.passes == ()
    assert [(p.name, p.record, p.requests) for p in adaptive.passes] == [
        ("a-0-explore", record, (spec,))
    ]
    assert adaptive.baseline == fixed.baseline == (cell.baseline[0],)
    assert adaptive.pass_pairs == ()  # the baseline was not one pass


def test_generate_is_the_baseline_of_the_transformers_engine(cell):
    def peer(method: str, k: int):
        drafter = {"drafter": "draft"} if k else {"drafter": "none", "pairing": "demo"}
        key = with_axes(cell.key, engine="transformers", method=method, **drafter)
        return with_axes(key, num_speculative_tokens=k)

    base_key, static, plain, drafted = (
        with_axes(
            cell.key, method="none", drafter="none", pairing="demo", num_speculative_tokens=0
        ),
        peer("generate_static", 0),
        peer("generate", 0),
        peer("assisted", 3),
    )
    keys = [base_key, static, plain, drafted]
    stored = made_block("a", *(replace(cell.requests[0], cell_id=key.id) for key in keys))
    baselines = [gathered.baseline for gathered in aggregate_cells(keys, [stored])]
    assert [[r.cell_id for r in base] for base in baselines] == [[], [plain.id], [], [plain.id]]
    assert [key.is_baseline for key in keys] == [True, False, True, False]


def test_any_two_cells_can_be_compared(cell, baseline_cell):
    swapped = against(baseline_cell, cell)
    assert [(p.base, p.spec) for p in swapped.pairs] == [(p.spec, p.base) for p in cell.pairs]
