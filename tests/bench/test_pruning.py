import pytest

from specbench.bench.pruning import hopeless, unaffordable
from specbench.bench.spent import block_seconds
from specbench.records import CellSummary, Interval
from tests.cell_keys import cell_key
from tests.made_records import made_block, made_request, steps


def cell(pairing: str, k: int, speedup: float | None) -> CellSummary:
    """A cell after a prompt or a few: a speed-up without an interval, or none at all."""
    drafter = pairing.partition("/")[2]
    return CellSummary(
        key=cell_key(
            pairing=pairing,
            target="big",
            drafter=drafter,
            workload="chat",
            engine="builtin",
            method="ngram",
            num_speculative_tokens=k,
            concurrency=1,
            temperature=0.0,
            dtype="float32",
        ),
        valid=True,
        invalid_reasons=(),
        num_prompts=1,
        num_requests=1,
        metrics={},
        speedup=None if speedup is None else Interval(estimate=speedup, low=None, high=None),
    )


def ks_out(speedups: dict[int, float | None], num_prompts: int) -> set[int]:
    """The Ks of one drafter that are pruned."""
    cells = {k: cell("big/draft", k, speedup) for k, speedup in speedups.items()}
    losers = hopeless(list(cells.values()), num_prompts)
    return {k for k, c in cells.items() if c.key.id in losers}


def test_after_one_prompt_only_what_is_clearly_slower_than_k_0_leaves():
    assert ks_out({1: 1.3, 2: 1.0, 4: 0.81, 8: 0.79}, num_prompts=1) == {8}


def test_after_a_few_prompts_what_is_far_behind_the_best_leaves_too():
    # 85 % of 2.0 is 1.7.
    assert ks_out({1: 1.5, 2: 2.0, 4: 1.71, 8: 1.69}, num_prompts=3) == {1, 8}


def test_the_best_k_stays_however_slow_it_is():
    assert ks_out({1: 0.7, 2: 0.6, 4: 0.5}, num_prompts=1) == {2, 4}
    assert ks_out({1: 0.7, 2: 0.6, 4: 0.5}, num_prompts=3) == {2, 4}
    assert ks_out({4: 0.5}, num_prompts=3) == set()


def test_every_drafter_races_against_itself_alone():
    cells = [cell("big/good", 2, 3.0), cell("big/bad", 2, 0.9), cell("big/bad", 4, 0.5)]
    assert hopeless(cells, num_prompts=3) == {cells[2].key.id}


def test_a_k_that_could_not_be_measured_is_not_judged():
    assert ks_out({1: None, 2: 1.2}, num_prompts=3) == set()
    assert ks_out({1: None}, num_prompts=1) == set()


def cells_out(limit_s: float) -> set[int]:
    """K that leave at 1 s a K > 0 and 2 s for K = 0, with speed-ups 1.5, 2.0 and 1.2."""
    cells = [cell("big/good", k, s) for k, s in ((1, 1.5), (2, 2.0), (4, 1.2))]
    seconds = {c.key.id: 1.0 for c in cells} | {"big|k0": 2.0}
    out = unaffordable(cells, seconds, limit_s)
    return {c.key.draft.k for c in cells if c.key.id in out}


def test_what_the_budget_cannot_pay_for_leaves_slowest_first():
    assert cells_out(5.0) == set()
    assert cells_out(4.0) == {4}
    assert cells_out(3.0) == {1, 4}


def test_the_best_k_stays_even_when_nothing_can_be_paid_for():
    assert cells_out(0.0) == {1, 4}


def test_what_a_prompt_took_is_that_of_all_its_turns():
    turns = [made_request("k4", "p", steps(n), turn=i) for i, n in enumerate((2, 5))]
    stored = made_block("p", *turns, made_request("k0", "p", steps(4)))
    assert block_seconds(stored) == pytest.approx({"k4": 0.9, "k0": 0.5})
