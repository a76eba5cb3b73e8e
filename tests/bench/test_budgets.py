"""How a run spends its time: budgets, races between K, and the precision asked for."""

import re
from collections import Counter

import pytest

from specbench.report.document import build_document
from specbench.runs import StoredRecord, reader
from specbench.runs.codec import decode_line
from tests.bench.fake_runs import (
    SETTINGS,
    SIX,
    TWENTY,
    cells_of,
    confirmed,
    explored,
    make_plan,
    measure,
    write_prompts,
)
from tests.bench.fakes import FakeClock, FakeEngine, RecordingWatch
from tests.settings.flat_settings import changed


def test_a_budget_ends_the_run_early_balanced_and_with_the_winners_confirmed(tmp_path):
    files = tuple(write_prompts(tmp_path / f"{name}.jsonl", TWENTY) for name in ("a", "b"))
    # A block takes 175 s, without its slowest K 118 s, and a reference 41 s more, so that some 16
    # of 120 blocks fit into 80 % of the time; a winner beside K = 0 takes 52 s.
    plan = make_plan(tmp_path, changed(SETTINGS, workloads=files, budget_s=3500.0))
    clock = FakeClock()
    watch = RecordingWatch()
    run = measure(plan, FakeEngine(clock), tmp_path, watch)

    first = Counter(block.workload for block in explored(run))
    assert set(first) == {"a.jsonl", "b.jsonl"}
    assert abs(first["a.jsonl"] - first["b.jsonl"]) <= 1
    assert 14 <= sum(first.values()) <= 18
    again = Counter(block.workload for block in confirmed(run))
    assert set(again) == {"a.jsonl", "b.jsonl"}
    assert all(5 <= again[name] <= first[name] for name in first)
    assert 3200 < clock.now_s < 3500 + 216
    assert run.is_complete
    lefts = [left for _, _, left in watch.advances]
    assert lefts == sorted(lefts[: len(explored(run))], reverse=True) + lefts[len(explored(run)) :]


def test_nothing_reads_the_stored_records_again_while_it_is_measured(tmp_path, monkeypatch):
    files = (write_prompts(tmp_path / "a.jsonl", TWENTY),)
    settings = changed(SETTINGS, workloads=files, budget_s=3000.0, precision=0.02)
    num_read = 0

    def counted(line: bytes) -> StoredRecord:
        nonlocal num_read
        num_read += 1
        return decode_line(line)

    monkeypatch.setattr(reader, "decode_line", counted)
    run = measure(make_plan(tmp_path, settings), FakeEngine(FakeClock()), tmp_path)

    num_stored = len((run.folder / reader.RECORDS_FILE).read_bytes().splitlines())
    assert num_stored > 10
    assert num_read == num_stored  # by the test itself, when all is done


def test_under_a_budget_a_k_that_cannot_win_leaves_the_race(tmp_path):
    plan = make_plan(tmp_path, changed(SETTINGS, budget_s=1600.0), TWENTY)
    run = measure(plan, FakeEngine(FakeClock()), tmp_path)
    # At K = 4 the bad drafter runs at 1 / 1.4 of the baseline's speed and leaves after one
    # prompt; at K = 2, its best, at 1 / 1.2, and stays so that "do not speculate" is said with
    # an interval. The good drafter's K = 2 is far behind its K = 4, and leaves after three.
    sizes = [len(cells_of(block)) for block in explored(run)]
    assert sizes == [5, 4, 4, *[3] * (len(sizes) - 3)]
    assert len(sizes) > 5
    cells = [cells_of(block) for block in explored(run)]
    assert not any("big/bad|own.jsonl|builtin|ngram|k4" in i for i in cells[1])
    assert not any("big/good|own.jsonl|builtin|ngram|k2" in i for i in cells[3])
    good, bad = build_document(run).decisions
    assert good.sentence.startswith("own.jsonl: K=4")
    assert bad.sentence.startswith("own.jsonl: do not speculate")


def test_without_a_budget_every_k_runs_to_the_end(tmp_path):
    run = measure(make_plan(tmp_path, SETTINGS, SIX), FakeEngine(FakeClock()), tmp_path)
    assert {len(cells_of(block)) for block in explored(run)} == {5}


def test_drafters_that_take_turns_share_the_budget_and_race_alike(tmp_path):
    plan = make_plan(tmp_path, changed(SETTINGS, budget_s=3000.0), TWENTY)
    run = measure(plan, FakeEngine(FakeClock(), room=1), tmp_path)
    sizes = {"big/good": [], "big/bad": []}
    for block in explored(run):
        (pairing,) = {cell_id.split("|")[0] for cell_id in cells_of(block)} - {"big"}
        sizes[pairing].append(len(cells_of(block)))
    assert sizes["big/good"] == [3, 3, 3, *[2] * (len(sizes["big/good"]) - 3)]
    assert sizes["big/bad"] == [3, *[2] * (len(sizes["big/bad"]) - 1)]
    assert min(map(len, sizes.values())) > 5


def test_a_budget_too_small_for_anything_still_ends_well(tmp_path):
    plan = make_plan(tmp_path, changed(SETTINGS, budget_s=1.0))
    run = measure(plan, FakeEngine(FakeClock()), tmp_path)
    assert run.blocks == ()
    assert len(build_document(run).missing) == 5


def test_a_precision_ends_the_run_when_the_best_k_is_known_well_enough(tmp_path):
    # Without noise five prompts, the fewest that give an interval, give one of no width.
    plan = make_plan(tmp_path, changed(SETTINGS, precision=0.02), TWENTY)
    run = measure(plan, FakeEngine(FakeClock()), tmp_path)
    assert len(explored(run)) == 5
    assert len(confirmed(run)) == 5


def test_a_noisier_measurement_takes_more_prompts_and_a_hopeless_one_all(tmp_path):
    num_blocks = {}
    for name, noise in (("little", 0.1), ("much", 1.0)):
        (tmp_path / name).mkdir()
        settings = changed(SETTINGS, precision=0.02, pairings=("big/good",), num_repeats=1)
        plan = make_plan(tmp_path / name, settings, TWENTY)
        run = measure(plan, FakeEngine(FakeClock(), noise=noise), tmp_path / name)
        num_blocks[name] = len(explored(run))
    assert 5 < num_blocks["little"] < 20
    assert num_blocks["much"] == 20


def test_a_pruned_k_cannot_push_out_its_drafters_best(tmp_path):
    # On the first prompt K = 4 of the bad drafter leaves; its K = 2 is measured to the end.
    plan = make_plan(tmp_path, changed(SETTINGS, budget_s=1600.0), TWENTY)
    run = measure(plan, FakeEngine(FakeClock(), noise=0.5), tmp_path)
    best = "big/bad|own.jsonl|builtin|ngram|k2"
    assert all(any(best in i for i in cells_of(block)) for block in explored(run))


def asked(run):
    """The K of the drafter `good` that each block of the first pass measured."""
    own = ("".join(i + "\n" for i in cells_of(block) if "/good|" in i) for block in explored(run))
    return [sorted(map(int, re.findall(r"\|k(\d+)", ids))) for ids in own]


WIDE = changed(SETTINGS, pairings=("big/good",), num_speculative_tokens=tuple(range(9)))


def test_a_budget_first_secures_five_prompts_at_few_spread_k_and_then_goes_on_beside_the_best(
    tmp_path,
):
    # A cell takes 41 s a prompt, so that 80 % of 1,300 s pay for four over five prompts: K = 0 and
    # three of eight. The deepest is the best, and so is its deeper neighbour, which then follows.
    watch = RecordingWatch()
    plan = make_plan(tmp_path, changed(WIDE, budget_s=1_300.0), TWENTY)
    run = measure(plan, FakeEngine(FakeClock()), tmp_path, watch)
    first, later = asked(run)[:5], asked(run)[5:]
    assert first[0] == [2, 5, 7]
    assert all(7 in ks and set(ks) <= {2, 5, 7} for ks in first)
    assert later
    assert all(7 in ks and not {1, 3, 4} & set(ks) for ks in later)
    assert any(8 in ks for ks in later)
    (said,) = [w for w in watch.warnings if "the budget first pays" in w]
    assert "5 prompts at K = 0, 2, 5 and 7; K beside the best follow" in said
    (decision,) = build_document(run).decisions
    assert decision.leader.draft.k in (7, 8)
    assert decision.speedup is not None


def test_a_budget_too_small_for_five_prompts_says_so_and_measures_one_k(tmp_path):
    watch = RecordingWatch()
    plan = make_plan(tmp_path, changed(WIDE, budget_s=300.0), TWENTY)
    run = measure(plan, FakeEngine(FakeClock()), tmp_path, watch)
    assert {tuple(ks) for ks in asked(run)} == {(5,)}
    (said,) = [w for w in watch.warnings if "too small" in w]
    assert "a budget of 300 s is too small for the 5 prompts that an interval needs" in said
    assert "measuring K = 0 and 5 alone" in said


def test_a_resumed_run_keeps_to_the_k_that_it_began_with(tmp_path):
    plan = make_plan(tmp_path, changed(WIDE, budget_s=1_300.0), TWENTY)
    clock = FakeClock()

    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(plan, FakeEngine(clock), tmp_path, RecordingWatch(on_advance=stop))
    run = measure(plan, FakeEngine(clock), tmp_path, spent_s=clock.now_s)
    begun_with = set(asked(run)[0])
    assert len(begun_with) < 8
    assert all(set(ks) <= begun_with for ks in asked(run)[:5])
    assert len({block.block_id for block in run.blocks}) == len(run.blocks)


def test_a_budget_that_pays_for_every_k_puts_none_off(tmp_path):
    plan = make_plan(tmp_path, changed(WIDE, budget_s=4_000.0), TWENTY)
    run = measure(plan, FakeEngine(FakeClock()), tmp_path)
    assert asked(run)[0] == list(range(1, 9))
