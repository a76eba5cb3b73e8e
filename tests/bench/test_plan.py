from collections import Counter
from dataclasses import replace

import pytest

from specbench.bench.benchmark import foreign_workloads
from specbench.bench.blocks import request_seed
from specbench.bench.plan import ENOUGH_ARRIVALS, PASSES
from specbench.errors import UsageError
from tests.bench.fake_runs import SETTINGS, make_plan, write_prompts
from tests.settings.flat_settings import changed

PROMPTS = [f"prompt {i}" for i in range(20)]


def ks_of(block):
    return [(cell.drafter, cell.key.draft.k) for cell in block.cells]


@pytest.mark.parametrize("ks", [(4,), (0, 4), None])
def test_k_0_is_always_measured(tmp_path, ks):
    plan = make_plan(tmp_path, changed(SETTINGS, num_speculative_tokens=ks, pairings=("big/good",)))
    for block in plan.explore_blocks():
        # The pairing's own K is 3.
        assert ks_of(block) == [("none", 0), ("good", 4 if ks else 3)]


@pytest.mark.parametrize("rate", [1.0, 2.0, 50.0])
def test_the_arrivals_of_a_pass_fit_into_a_budget(tmp_path, rate):
    settings = changed(SETTINGS, pairings=("big/good",), num_speculative_tokens=(4,))
    settings = changed(settings, request_rate=rate)

    def arriving_s(budget_s):
        plan = make_plan(tmp_path, changed(settings, budget_s=budget_s), PROMPTS)
        return sum(len(b.prompts) * len(b.cells) / rate for b in plan.explore_blocks())

    plain_s = arriving_s(None)
    assert plain_s == 2 * PASSES * ENOUGH_ARRIVALS / rate
    assert arriving_s(40.0) == pytest.approx(min(0.8 * 40, plain_s), rel=0.2)
    assert arriving_s(40.0) <= 40.0
    assert arriving_s(3600.0) == plain_s


def test_a_plan_may_have_only_k_0(tmp_path):
    plan = make_plan(tmp_path, changed(SETTINGS, num_speculative_tokens=(0,)))
    assert [ks_of(block) for block in plan.explore_blocks()] == [[("none", 0)]] * 2


def test_a_drafter_without_its_own_k_gets_4(tmp_path):
    settings = changed(SETTINGS, num_speculative_tokens=None, pairings=("big/bad",))
    assert ks_of(next(make_plan(tmp_path, settings).explore_blocks())) == [("none", 0), ("bad", 4)]


def test_a_block_has_one_prompt_at_every_k_of_every_drafter(tmp_path):
    plan = make_plan(tmp_path, SETTINGS)
    first, second = plan.explore_blocks()
    assert ks_of(first) == [("none", 0), ("good", 2), ("good", 4), ("bad", 2), ("bad", 4)]
    assert ks_of(first) == ks_of(second)
    assert {first.prompt_id, second.prompt_id} == {"p0", "p1"}
    assert (first.repeat, first.purpose) == (0, "explore")


def test_the_order_inside_a_block_comes_from_the_seed(tmp_path):
    blocks = list(make_plan(tmp_path, SETTINGS, PROMPTS).explore_blocks())
    orders = [tuple(cell.key.id for cell in block.order(7)) for block in blocks]
    again = [tuple(cell.key.id for cell in block.order(7)) for block in blocks]
    other = [tuple(cell.key.id for cell in block.order(8)) for block in blocks]

    assert orders == again
    assert orders != other
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    # Ten blocks of five cells in the same order: 1 in 120 ** 9.
    assert len(set(orders)) > 1


def test_every_cell_runs_first_equally_often(tmp_path):
    # 5 cells, 500 orders: 100 each, standard deviation 9; 5 of them are 45.
    block = next(make_plan(tmp_path, SETTINGS).explore_blocks())
    firsts = Counter(block.order(seed)[0].key.id for seed in range(500))
    assert len(firsts) == 5
    assert all(abs(count - 100) < 45 for count in firsts.values())


def test_the_default_plan_measures_ten_prompts_once(tmp_path):
    blocks = list(make_plan(tmp_path, SETTINGS, PROMPTS).explore_blocks())
    assert len(blocks) == len({block.prompt_id for block in blocks}) == 10


def test_sampling_measures_three_seeds_per_prompt_and_greedy_one(tmp_path):
    settings = changed(SETTINGS, temperatures=(0.0, 1.0), num_prompts=2)
    blocks = list(make_plan(tmp_path, settings, PROMPTS).explore_blocks())
    repeats = Counter((b.cells[0].key.condition.temperature, b.repeat) for b in blocks)
    assert repeats == {(0.0, 0): 2, (1.0, 0): 2, (1.0, 1): 2, (1.0, 2): 2}


def test_prompts_and_repeats_can_be_chosen(tmp_path):
    settings = changed(SETTINGS, num_prompts=3, num_repeats=2)
    plan = make_plan(tmp_path, settings, PROMPTS)
    blocks = list(plan.explore_blocks())
    assert len({block.id for block in blocks}) == len(blocks) == 6
    assert {(cell.num_prompts, cell.num_repeats) for cell in plan.cell_plans()} == {(3, 2)}


@pytest.mark.parametrize("limit", [{"budget_s": 60.0}, {"precision": 0.02}], ids=["budget", "prec"])
def test_a_budget_or_precision_may_repeat_every_prompt_three_times(tmp_path, limit):
    plan = make_plan(tmp_path, changed(SETTINGS, **limit), PROMPTS)
    assert plan.settings.effort.is_open_ended
    assert len(list(plan.explore_blocks())) == 60


def test_a_budget_gives_prompts_and_passes_in_step_with_what_each_needs(tmp_path):
    """Ten prompts of single requests need as long a part of the plan as six passes of four."""
    settings = changed(SETTINGS, concurrency=(1, 4), budget_s=60.0)
    blocks = list(make_plan(tmp_path, settings, PROMPTS).explore_blocks())
    assert len({block.id for block in blocks}) == len(blocks)
    for end in range(len(blocks)):
        done = Counter(block.condition.concurrency for block in blocks[:end])
        if done[4] < PASSES:
            assert abs(done[1] / 10 - done[4] / PASSES) <= 1 / PASSES
    whole = make_plan(tmp_path, changed(SETTINGS, concurrency=(1, 4)), PROMPTS).explore_blocks()
    assert Counter(b.condition.concurrency for b in whole) == {1: 10, 4: PASSES}


def test_workloads_and_temperatures_alternate_between_blocks(tmp_path):
    files = tuple(write_prompts(tmp_path / f"{name}.jsonl", PROMPTS) for name in "ab")
    settings = changed(SETTINGS, workloads=files, temperatures=(0.0, 1.0), num_prompts=3)
    blocks = list(make_plan(tmp_path, settings).explore_blocks())
    for end in range(len(blocks)):
        done = Counter(block.condition.workload for block in blocks[:end])
        assert abs(done["a.jsonl"] - done["b.jsonl"]) <= 1


def test_a_shorter_workload_does_not_end_a_longer_one(tmp_path):
    files = (
        write_prompts(tmp_path / "long.jsonl", PROMPTS[:5]),
        write_prompts(tmp_path / "short.jsonl", PROMPTS[:2]),
    )
    blocks = make_plan(tmp_path, changed(SETTINGS, workloads=files)).explore_blocks()
    assert Counter(b.condition.workload for b in blocks) == {"long.jsonl": 5, "short.jsonl": 2}


def test_two_files_of_one_name_are_refused(tmp_path):
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.append(write_prompts(tmp_path / name / "mine.jsonl", PROMPTS))
    with pytest.raises(UsageError, match=r"mine\.jsonl.*rename"):
        make_plan(tmp_path, changed(SETTINGS, workloads=tuple(files)))


def test_block_ids_are_the_same_in_every_session_and_no_two_are_equal(tmp_path):
    settings = changed(SETTINGS, temperatures=(0.0, 1.0), num_repeats=2)
    ids = [block.id for block in make_plan(tmp_path, settings, PROMPTS).explore_blocks()]
    again = [block.id for block in make_plan(tmp_path, settings, PROMPTS).explore_blocks()]
    assert ids == again
    assert len(set(ids)) == len(ids) == 40


def test_a_block_without_one_of_its_cells_is_another_block(tmp_path):
    block = next(make_plan(tmp_path, SETTINGS).explore_blocks())
    assert replace(block, cells=block.cells[:-1]).id != block.id


def test_a_request_has_its_own_seed_which_does_not_depend_on_k():
    seeds = {
        request_seed(seed, prompt_id, repeat, turn)
        for seed in (0, 1)
        for prompt_id in ("a", "b")
        for repeat in (0, 1)
        for turn in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_text_that_is_not_the_targets_own_is_named(tmp_path):
    plan = make_plan(tmp_path, SETTINGS)
    assert foreign_workloads(plan) == ()  # this target lists no workloads
    at_home = replace(plan, target=replace(plan.target, workloads=tmp_path))
    assert foreign_workloads(at_home) == ()
    elsewhere = replace(plan, target=replace(plan.target, workloads=tmp_path / "elsewhere"))
    assert foreign_workloads(elsewhere) == ("own.jsonl",)
