"""How a run spends its time: budgets, the K that they pay for, and the requested precision."""

import math
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specbench.bench.budget import Deadline
from specbench.bench.passes import PILOT, num_needed
from specbench.bench.units import RunLoop
from specbench.errors import ModelError
from specbench.records import Kind, Margin, SpeedupVerdict
from specbench.report.document import build_document
from specbench.runs import StoredRecord, load_run, reader
from specbench.runs.codec import decode_line
from tests.bench.fake_runs import (
    RUN_ID,
    SETTINGS,
    SIX,
    TWENTY,
    cells_of,
    confirmed,
    explored,
    make_plan,
    measure,
    measured,
    write_prompts,
)
from tests.bench.fakes import FakeClock, FakeEngine, Interrupted, RecordingWatch, stop_after
from tests.decide.conftest import summary
from tests.settings.flat_settings import changed


def test_a_budget_ends_the_run_early_and_balanced(tmp_path):
    files = tuple(write_prompts(tmp_path / f"{name}.jsonl", TWENTY) for name in ("a", "b"))
    # A block takes 175 s, without its slowest K 118 s, and a reference 41 s more, so that some 16
    # of 120 blocks fit into 80% of the time; a winner with K = 0 takes 52 s, and a new prompt's
    # reference 41 s, so that the rest is too short for five other prompts of each workload.
    clock = FakeClock()
    watch = RecordingWatch()
    run = measured(
        tmp_path,
        changed(SETTINGS, workloads=files, budget_s=3500.0),
        engine=FakeEngine(clock),
        watch=watch,
    )

    first = Counter(block.workload for block in explored(run))
    assert set(first) == {"a.jsonl", "b.jsonl"}
    assert abs(first["a.jsonl"] - first["b.jsonl"]) <= 1
    assert 14 <= sum(first.values()) <= 18
    again = Counter(block.workload for block in confirmed(run))
    assert set(again) == {"a.jsonl", "b.jsonl"}
    assert all(0 < again[name] < 5 for name in first)
    for decision in build_document(run).decisions:
        if decision.leader.draft.drafter == "good":
            assert decision.verdict is SpeedupVerdict.FASTER
            assert Kind.CROSS_FITTED() in decision.reasons
    assert 3200 < clock.now_s < 3500 + 216
    assert run.is_complete
    lefts = [left for _, _, left in watch.advances]
    assert lefts == sorted(lefts[: len(explored(run))], reverse=True) + lefts[len(explored(run)) :]


def test_stored_records_are_not_read_again_during_a_run(tmp_path, monkeypatch):
    files = (write_prompts(tmp_path / "a.jsonl", TWENTY),)
    settings = changed(SETTINGS, workloads=files, budget_s=3000.0, precision=0.02)
    num_read = 0

    def counted(line: bytes) -> StoredRecord:
        nonlocal num_read
        num_read += 1
        return decode_line(line)

    monkeypatch.setattr(reader, "decode_line", counted)
    run = measured(tmp_path, settings)

    num_stored = len((run.folder / reader.RECORDS_FILE).read_bytes().splitlines())
    assert num_stored > 10
    assert num_read == num_stored  # by the test itself, when all is done


def test_under_a_budget_every_k_has_five_prompts_before_one_that_cannot_win_is_dropped(tmp_path):
    run = measured(tmp_path, changed(SETTINGS, budget_s=3600.0), TWENTY)
    # The good drafter's K = 2 is slower than its K = 4 on every prompt, the bad one's K = 4 than
    # its K = 2. Its K = 2 stays, so that "do not speculate" has a good interval.
    sizes = [len(cells_of(block)) for block in explored(run)]
    assert sizes[:5] == [5] * 5
    assert sizes[5:10] == [3] * 5
    assert sizes[5:] == sorted(sizes[5:], reverse=True)
    later = cells_of(explored(run)[5])
    assert not any("big/bad|own.jsonl|builtin|ngram|k4" in i for i in later)
    assert not any("big/good|own.jsonl|builtin|ngram|k2" in i for i in later)
    good, bad = build_document(run).decisions
    assert good.draft.k == 4
    assert bad.draft.k == 0
    assert bad.speedup.high < 1


def test_without_a_budget_every_k_runs_to_the_end(tmp_path):
    run = measured(tmp_path, SETTINGS, SIX)
    assert {len(cells_of(block)) for block in explored(run)} == {5}


def test_drafters_loaded_in_turn_share_the_budget_with_five_prompts_each(tmp_path):
    run = measured(tmp_path, changed(SETTINGS, budget_s=3000.0), TWENTY, FakeEngine(room=1))
    sizes = {"big/good": [], "big/bad": []}
    for block in explored(run):
        (pairing,) = {cell_id.split("|")[0] for cell_id in cells_of(block)} - {"big"}
        sizes[pairing].append(len(cells_of(block)))
    assert sizes["big/good"] == [3] * 5 + [2] * (len(sizes["big/good"]) - 5)
    assert sizes["big/bad"][:5] == [3] * 5
    assert min(map(len, sizes.values())) > 5


def test_a_budget_too_small_for_any_block_ends_without_an_error(tmp_path):
    run = measured(tmp_path, changed(SETTINGS, budget_s=1.0))
    assert run.blocks == ()
    assert len(build_document(run).missing) == 5


def test_a_precision_ends_the_run_when_the_best_k_is_known_well_enough(tmp_path):
    # Without noise of prompts the pilot is enough; the workload has no other prompts to confirm on.
    run = measured(tmp_path, changed(SETTINGS, precision=0.1), [f"p{i}" for i in range(50)])
    assert len(explored(run)) == PILOT
    assert len(confirmed(run)) == PILOT


def test_a_precision_needs_no_more_than_the_pilot_at_only_k_0(tmp_path):
    settings = changed(SETTINGS, precision=0.1, num_speculative_tokens=(0,))
    assert len(explored(measured(tmp_path, settings, [f"p{i}" for i in range(50)]))) == PILOT


def test_a_noisier_measurement_uses_the_prompts_that_its_pilot_plans(tmp_path):
    num_blocks = {}
    for name, noise in (("little", 0.1), ("some", 5.0), ("much", 1000.0)):
        (tmp_path / name).mkdir()
        settings = changed(SETTINGS, precision=0.2, pairings=("big/good",), num_repeats=1)
        prompts = [f"p{i}" for i in range(60)]
        run = measured(tmp_path / name, settings, prompts, FakeEngine(noise=noise))
        num_blocks[name] = len(explored(run))
    assert num_blocks["little"] == PILOT
    assert PILOT < num_blocks["some"] < 60
    assert num_blocks["much"] == 60


def test_repeats_are_no_further_prompts_of_a_pilot(tmp_path):
    settings = changed(SETTINGS, precision=0.5, num_repeats=3)
    assert len(explored(measured(tmp_path, settings, TWENTY[:10]))) == 30


@pytest.mark.parametrize(
    ("prompts", "machine", "needed"),
    [
        (0.05, 0.03, 20),  # sqrt(0.1^2 - 0.03^2) = 0.095 for the prompts
        (0.19, 0.03, 20 * (0.19 / 0.0954) ** 2),
        (0.19, 0.0, 20 * 1.9**2),
        (0.2, 0.16, 20 * (0.2 / 0.08) ** 2),  # out of reach: half of the machine's part is enough
    ],
)
def test_the_prompts_of_a_margin_follow_from_its_pilot(prompts, machine, needed):
    margin = Margin(
        prompts=prompts,
        machine=machine,
        machine_kind="GPU",
        largest_prompt=None,
        num_parts=3,
        num_earlier=0,
    )
    cell = replace(summary(4, 1.4, 1.5, 1.6), margin=margin)
    assert num_needed(cell, 0.1, PILOT) == pytest.approx(needed, rel=0.01)
    assert num_needed(replace(cell, margin=None), 0.1, PILOT) == math.inf


def measured_ks(run):
    """The K of the drafter `good` that each block of the first pass measured."""
    lines = ("".join(i + "\n" for i in cells_of(block) if "/good|" in i) for block in explored(run))
    return [sorted(map(int, re.findall(r"\|k(\d+)", ids))) for ids in lines]


WIDE = changed(SETTINGS, pairings=("big/good",), num_speculative_tokens=tuple(range(9)))


def test_a_budget_measures_spread_k_first_then_the_neighbors_of_the_best(
    tmp_path,
):
    # An answer takes 41 s at K = 0: 80% of 1,500 s pay for five of them with their references and
    # three K of eight. The deepest is the best; the K next to it follow on later prompts.
    watch = RecordingWatch()
    run = measured(tmp_path, changed(WIDE, budget_s=1_500.0), TWENTY, watch=watch)
    assert measured_ks(run)[:5] == [[2, 5, 7]] * 5
    assert measured_ks(run)[5:10] == [[7, 8]] * 5
    assert {7} <= set.intersection(*map(set, measured_ks(run)))
    (message,) = [w for w in watch.messages if "the budget fits" in w]
    assert "K=2, 5, 7" in message
    (decision,) = build_document(run).decisions
    assert decision.leader.draft.k in (7, 8)


def test_a_budget_too_small_for_five_prompts_warns_and_measures_one_k(tmp_path):
    watch = RecordingWatch()
    run = measured(tmp_path, changed(WIDE, budget_s=300.0), TWENTY, watch=watch)
    assert {tuple(ks) for ks in measured_ks(run)} == {(5,)}
    (message,) = [w for w in watch.messages if "too little time" in w]
    # Five answers at K = 0 and K = 5, and their references, assumed equally long: 5 x 3 x 40.5 s,
    # after the 116 s that were spent before; 80% of it is for the first pass.
    assert "K=5" in message
    (needed,) = re.findall(r"--time-budget (\d+)s", message)
    assert 760 <= int(needed) <= 920


def test_the_budget_that_is_advised_is_long_enough(tmp_path):
    """Also for drafters loaded in turn, which share it."""

    def advised(name, budget_s):
        watch, settings = RecordingWatch(), changed(SETTINGS, budget_s=budget_s)
        (tmp_path / name).mkdir()
        measured(tmp_path / name, settings, TWENTY, FakeEngine(room=1), watch)
        texts = (text for text in watch.messages if "too little time" in text)
        return [int(re.search(r"--time-budget (\d+)s", text)[1]) for text in texts]

    least_s = max(advised("short", 700.0))
    assert least_s > 700
    assert advised("enough", 1.05 * least_s) == []  # a block more or less


class WithoutBaseline(FakeEngine):
    """Has no memory for concurrent requests at K = 0."""

    def serve(self, requests, work, load):
        if load.concurrency > 1 and not work.k:
            raise ModelError("out of memory")
        return super().serve(requests, work, load)


def test_a_budget_is_spent_on_the_other_k_if_k_0_cannot_run(tmp_path):
    settings = changed(SETTINGS, budget_s=3000.0, concurrency=(4,))
    run = measured(tmp_path, settings, TWENTY, WithoutBaseline())
    assert {cell_id.split("|")[0] for block in run.blocks for cell_id in block.order} == {
        "big/good",
        "big/bad",
    }
    assert [failure.pairing for failure in run.failures] == ["big"]


@pytest.mark.parametrize("num_blocks", [2, 7, 11])
def test_a_resumed_run_keeps_its_original_k(tmp_path, num_blocks):
    settings = changed(WIDE, budget_s=1_900.0)
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    plan = make_plan(tmp_path / "whole", settings, TWENTY)
    whole = measure(plan, FakeEngine(), tmp_path / "whole")
    clock, root = FakeClock(), tmp_path / "stopped"
    with pytest.raises(Interrupted):
        measured(root, settings, TWENTY, FakeEngine(clock), stop_after(num_blocks))
    decided = load_run(RUN_ID, root).extensions
    assert decided == whole.extensions[: len(decided)]
    run = measure(plan, FakeEngine(clock), root, spent_s=clock.now_s)
    assert run.extensions[: len(decided)] == decided
    left_out = [0] + [e.num_prompts for e in decided if e.kind == "drop"]
    until = max(5, left_out[-1])
    assert measured_ks(run)[:until] == measured_ks(whole)[:until]
    assert len({block.block_id for block in run.blocks}) == len(run.blocks)


def test_a_budget_large_enough_for_every_k_defers_none(tmp_path):
    run = measured(tmp_path, changed(WIDE, budget_s=4_000.0), TWENTY)
    assert measured_ks(run)[0] == list(range(1, 9))


def test_exploring_gets_four_fifths_of_the_budget_and_confirming_the_rest():
    clock = FakeClock()
    deadline = Deadline(100.0, clock)
    assert (deadline.seconds_left("explore"), deadline.seconds_left("confirm")) == (80.0, 100.0)

    clock.now_s = 79.0
    assert not deadline.is_over("explore")
    clock.now_s = 80.0
    assert deadline.is_over("explore")
    assert not deadline.is_over("confirm")
    clock.now_s = 100.0
    assert deadline.is_over("confirm")


def test_a_deadline_counts_from_its_creation():
    clock = FakeClock()
    clock.now_s = 500.0
    assert Deadline(10.0, clock).seconds_left("confirm") == 10.0


def test_part_of_a_deadline_gets_a_share_of_the_remaining_time():
    clock = FakeClock()
    deadline = Deadline(100.0, clock)
    clock.now_s = 20.0
    part = deadline.part(0.25)  # of 80 seconds
    assert (part.seconds_left("explore"), part.seconds_left("confirm")) == (16.0, 20.0)
    assert deadline.part(1.0) is deadline
    assert Deadline(None, clock).part(0.25).seconds_left("confirm") is None


def test_a_deadline_without_a_budget_never_passes():
    clock = FakeClock()
    deadline = Deadline(None, clock, spent_s=1e9)
    clock.now_s = 1e9
    assert deadline.seconds_left("explore") is None
    assert not deadline.is_over("confirm")


@pytest.mark.parametrize(
    ("spent_s", "explore_s", "confirm_s"), [(30.0, 50.0, 70.0), (90.0, -10.0, 10.0)]
)
def test_time_spent_before_a_resume_counts_for_both_phases(spent_s, explore_s, confirm_s):
    # A run killed while it confirmed (90 of 100 s) continues to confirm: exploring is over.
    deadline = Deadline(100.0, FakeClock(), spent_s=spent_s)
    assert deadline.seconds_left("explore") == explore_s
    assert deadline.seconds_left("confirm") == confirm_s


def test_a_spent_budget_ends_both_phases():
    deadline = Deadline(100.0, FakeClock(), spent_s=120.0)
    assert deadline.is_over("explore")
    assert deadline.is_over("confirm")


class SlowServer:
    """Takes 30 seconds for each block, and records what it served."""

    def __init__(self, clock):
        self.clock, self.served = clock, []

    def serve(self, block):
        self.clock.now_s += 30.0
        self.served.append(block.id)
        return SimpleNamespace(block_id=block.id)


@pytest.mark.parametrize(("is_session", "num_served"), [(False, 3), (True, 5)])
def test_the_loop_measures_unstored_blocks_until_the_deadline(tmp_path, is_session, num_served):
    """80 s to explore in; the first block is stored already."""
    blocks = list(make_plan(tmp_path, SETTINGS, SIX).explore_blocks())
    if is_session:
        blocks = [replace(block, session=f"s{i}", cycle=0) for i, block in enumerate(blocks)]
    clock, watch, checked = FakeClock(), RecordingWatch(), []
    stored = []
    store = SimpleNamespace(finished_blocks={blocks[0].id}, append=stored.append)
    server = SlowServer(clock)
    loop = RunLoop(store, watch, Deadline(100.0, clock), len(blocks))
    loop.serve(blocks, server, lambda block, _: checked.append((block.id, len(stored))))
    ids = [block.id for block in blocks[1 : 1 + num_served]]
    assert server.served == watch.blocks == [record.block_id for record in stored] == ids
    assert checked == [(block_id, i) for i, block_id in enumerate(ids, 1)]  # each once it is stored
    assert [done for done, _, _ in watch.advances] == [*range(1, num_served + 2)]
    assert {total for _, total, _ in watch.advances} == {len(blocks)}
