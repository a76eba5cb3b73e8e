"""Cells of a serving engine: their sessions, and how they are paired."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specbench.metrics.aggregate import aggregate_run, lost_sessions, usable_sessions
from specbench.metrics.pairs import paired_decode, paired_end_to_end, prompt_seconds
from specbench.metrics.speed import busy_tokens_per_s, prompt_error
from specbench.metrics.summary import summarize
from specbench.metrics.validity import cell_warnings
from specbench.records import Kind, Reason
from specbench.runs import StoredRun
from tests.served_sessions import TTFT_S, Sweep, cell_of, key_of, served_sweep

LOST = (4, 3, 1)  # K, cycle, leg


def test_the_sessions_of_a_cycle_are_paired_prompt_by_prompt():
    stored = served_sweep()
    paired = paired_decode(cell_of(stored, 4))
    assert paired.base_s.shape == (4, 6)  # cycles, prompts
    requests = [r for b in stored.blocks if b.purpose == "explore" for r in b.requests]

    def seconds(k: int) -> float:
        """Seconds of the first prompt in the second cycle, whose sessions have repeats 2 and 3."""
        selected = [r for r in requests if r.cell_id == key_of(k).id and r.repeat in (2, 3)]
        return sum(r.decode_s for r in selected if r.prompt_id == "code-0")

    names = [*dict.fromkeys(r.prompt_id for r in requests)]
    place = 1, names.index("code-0")
    assert paired.base_s[place] == pytest.approx(seconds(0))
    assert paired.spec_s[place] == pytest.approx(seconds(4))
    assert (paired.base_tokens == 2 * 24).all()


def test_the_speedup_and_its_metric_are_the_geometric_mean_over_cycles():
    stored = served_sweep(Sweep(wobble=0.3))
    cell = cell_of(stored, 4)
    pairs = paired_decode(cell)
    of_cycles = np.log(pairs.base_s.sum(axis=1) / pairs.spec_s.sum(axis=1))
    (summary,) = summarize([cell])
    assert summary.speedup.estimate == pytest.approx(math.exp(of_cycles.mean()))
    assert summary.metrics["decode_speedup"] == pytest.approx(summary.speedup.estimate)
    assert summary.metrics["num_cycles"] == 4


def test_the_noise_between_sessions_widens_the_interval():
    quiet, noisy = (summarize([cell_of(served_sweep(Sweep(wobble=w)), 4)])[0] for w in (0.0, 0.2))
    assert noisy.margin.machine > 1.3 * quiet.margin.machine
    assert noisy.speedup.high / noisy.speedup.low > 1.15 * quiet.speedup.high / quiet.speedup.low


def test_requests_served_together_give_one_figure_per_cycle_with_an_interval():
    cell = cell_of(served_sweep(), 4, rows=4)
    assert [column.shape for column in paired_decode(cell)] == [(4, 1)] * 4
    (summary,) = summarize([cell])
    assert summary.speedup.low is not None
    assert summary.speedup_end_to_end.low is not None
    assert paired_end_to_end(cell).base_tokens.sum() == 4 * 2 * 12 * 25


def test_a_single_prompt_has_no_interval_however_many_cycles():
    (summary,) = summarize([cell_of(served_sweep(Sweep(num_prompts=1, cycles=6)), 4)])
    assert summary.speedup.low is None
    assert summary.speedup_end_to_end.low is None


def test_a_session_with_a_problem_is_excluded_with_its_cycle_of_speedups():
    whole, short = served_sweep(), served_sweep(Sweep(lost=(LOST,)))
    before, after = cell_of(whole, 4), cell_of(short, 4)
    assert len(before.requests) - len(after.requests) == 6
    assert len(after.servers) == 7
    assert set(after.cycles.values()) == {0, 1, 2}
    # The other session of its cycle has no part in the speedup of another cycle.
    for left, all_of_them in zip(paired_decode(after), paired_decode(before), strict=True):
        assert left.tolist() == all_of_them[:3].tolist()
    # Drafts accepted in its cycle's other session still count.
    assert after.acceptance.num_rounds == 7 * 6 * 8
    # The other K has all of its sessions.
    assert (
        paired_decode(cell_of(short, 2)).base_s.tolist()
        == paired_decode(cell_of(whole, 2)).base_s.tolist()
    )


def test_a_failed_baseline_session_excludes_its_cycle_for_every_k():
    stored = served_sweep(Sweep(lost=((0, 1, 0),)))
    for k in (2, 4):
        assert set(cell_of(stored, k).cycles.values()) == {0, 2, 3}


def test_two_half_cycles_are_not_a_whole_one():
    """A drift would not cancel in the ratio."""
    stored = served_sweep(Sweep(lost=((0, 1, 0), (4, 1, 0))))
    assert set(cell_of(stored, 4).cycles.values()) == {0, 2, 3}


def test_a_second_attempt_counts_and_the_first_one_does_not():
    again = served_sweep(Sweep(again=(LOST,)))
    cell = cell_of(again, 4)
    assert len(cell.requests) == 8 * 6
    assert set(cell.cycles.values()) == {0, 1, 2, 3}
    assert {s.session[-2:] for s in cell.servers if s.place.endswith("K4|explore|c3.1")} == {"#2"}
    assert summarize([cell]) == summarize([cell_of(served_sweep(), 4)])


def test_an_interrupted_session_is_not_counted():
    """A kill leaves blocks without the session's record."""
    stored = served_sweep()
    killed = stored.servers[1].session
    cut = replace(stored, servers=tuple(s for s in stored.servers if s.session != killed))
    assert killed in {block.session for block in cut.blocks}
    assert len(cell_of(cut, 2).requests) == 7 * 6
    assert set(cell_of(cut, 2).cycles.values()) == {1, 2, 3}


def test_sessions_are_lost_whose_last_attempt_has_a_problem():
    lost = served_sweep(Sweep(lost=(LOST,), again=((2, 0, 0),))).servers
    (failure,) = lost_sessions(lost)
    assert (failure.pairing, failure.stage) == ("demo/draft", "decode")
    assert failure.reason.startswith("vllm, K=4, cycle 4: another")
    never_up = replace(lost[0], version="", problems=("port 41207 is taken",), place="other")
    (_, other) = lost_sessions((*lost, never_up))
    assert (other.pairing, other.stage) == ("demo", "load")


def test_confirmation_sessions_are_aggregated_as_separate_cells():
    stored = served_sweep()
    confirmed = aggregate_run(stored, "confirm")
    assert {cell.key.draft.k for cell in confirmed} == {0, 4}
    assert set(confirmed[1].cycles.values()) == {100, 101, 102, 103}


def test_busy_time_is_while_every_concurrent_request_is_active():
    """Two concurrent requests: of 1.05 s at 0 and 0.25, the third from 1.05 until 2.1."""
    stored = served_sweep(Sweep(rows=(2,), num_prompts=1, cycles=1, ks=()))
    cell = cell_of(stored, 0, rows=2)
    served = cell.passes[0]
    base = replace(served.requests[0], decode_s=1.0, total_s=1.0 + TTFT_S)
    at = (0.0, 0.25, 1.05)
    requests = tuple(replace(base, arrived_s=s, repeat=i) for i, s in enumerate(at))
    passes = (served._replace(requests=requests),)
    # All of the time from 0.25 to 1.3 two are under way. The first has 24 tokens from 0.05 to
    # 1.05, the second 1 + 24 from 0.3 to 1.3, the third its first at 1.1 and 0.2 s of 24.
    tokens = 24 * 0.8 + (1 + 24) + (1 + 24 * 0.2)
    actual = busy_tokens_per_s(replace(cell, requests=requests, passes=passes))
    assert actual == pytest.approx(tokens / (1.3 - 0.25))


def test_a_pass_that_never_was_full_has_no_busy_time():
    stored = served_sweep(Sweep(rows=(16,), cycles=1, ks=()))
    assert busy_tokens_per_s(cell_of(stored, 0, rows=16)) is None


def test_a_cycle_run_on_two_nodes_counts_on_the_most_complete():
    servers = [server for server in served_sweep().servers if server.cycle == 0]
    on_a = [replace(server, node="a") for server in servers]
    on_b = [replace(server, node="b", session=f"{server.session} again") for server in servers]
    assert usable_sessions(on_a).keys() == {server.session for server in servers}
    assert usable_sessions(on_a[:2] + on_b[:2]).keys() == {server.session for server in on_b[:2]}
    assert usable_sessions(on_a + on_b[:2]).keys() == {server.session for server in on_a}
    assert usable_sessions(on_a + on_b).keys() == {server.session for server in on_b}


def test_a_repeated_cycle_has_no_session_of_its_first_attempt():
    """K = 0 of a quiet hour is not the baseline of a K that was measured again in a busy one."""
    first = [server for server in served_sweep().servers if server.cycle == 0]
    again = [replace(s, attempt=2, session=f"{s.session} again") for s in first]
    assert usable_sessions(first[:4] + again).keys() == {server.session for server in again}


def test_an_incomplete_attempt_keeps_the_sessions_of_the_earlier_one():
    """One K of a cycle had a problem; a resumed run began the cycle again and stopped early."""
    once = served_sweep(Sweep(lost=(LOST,)))
    first = [server for server in once.servers if server.cycle == LOST[1]]
    again = [replace(s, attempt=2, session=f"{s.session} again", problems=()) for s in first]
    no_plain = [replace(again[0], problems=("port 41207 is taken",)), *again[1:-1]]
    for later in (again[:1], no_plain):
        servers = (*once.servers, *later)
        assert usable_sessions(servers) == usable_sessions(once.servers)
        (failure,) = lost_sessions(servers)
        assert "K=4, cycle 4" in failure.reason
    assert not list(lost_sessions((*once.servers, *again)))


def test_a_session_missing_in_the_counted_attempt_is_a_failure():
    first = [server for server in served_sweep().servers if server.cycle == 0]
    again = [replace(s, attempt=2, session=f"{s.session} again") for s in first]
    rest = [s for s in first if s.num_speculative_tokens != 4]
    (lost, other) = lost_sessions(rest + [s for s in again if s.num_speculative_tokens != 2])
    assert {lost.stage, other.stage} == {"decode"}
    assert all("K=2, cycle 1" in failure.reason for failure in (lost, other))


def test_the_last_attempt_of_a_session_is_counted():
    stored = served_sweep()
    first = stored.servers[0]
    again = replace(first, session=f"{first.session} again")
    requests = len(cell_of(stored, 0).requests)
    blocks = [
        replace(b, block_id=f"{b.block_id} again", session=again.session)
        for b in stored.blocks
        if b.session == first.session
    ]
    twice = replace(stored, servers=(*stored.servers, again), blocks=(*stored.blocks, *blocks))
    assert len(cell_of(twice, 0).requests) == requests
    assert sorted(cell_of(twice, 0).cycles.values()) == sorted(cell_of(stored, 0).cycles.values())


def slowed(stored: StoredRun, times: float) -> StoredRun:
    """One of the eight sessions of K = 4 decodes slower."""
    (name,) = (s.session for s in stored.servers if s.session.endswith("K4|explore|c1.0#1"))
    blocks = [
        replace(b, requests=tuple(replace(r, decode_s=r.decode_s * times) for r in b.requests))
        if b.session == name
        else b
        for b in stored.blocks
    ]
    return replace(stored, blocks=tuple(blocks))


def differing(stored: StoredRun, k: int = 4, rows: int = 1) -> list[Reason]:
    warnings = cell_warnings(cell_of(stored, k, rows))
    return [warning for warning in warnings if warning.kind is Kind.SESSIONS_DIFFER]


@pytest.mark.parametrize("rows", [1, 4])
def test_sessions_that_differ_by_more_than_noise_are_named_with_how_far(rows):
    quiet = served_sweep(Sweep(is_attached=True, wobble=0.0))
    slow = slowed(quiet, 1.7)
    (warning,) = differing(slow, rows=rows)
    assert warning.figures == pytest.approx({"slowest": 1 / 1.7, "fastest": 1.0}, rel=0.01)
    assert not differing(slow, k=2, rows=rows)
    assert not differing(quiet, rows=rows)
    # Servers that are started for each session differ by more.
    started = served_sweep(Sweep(wobble=0.0))
    assert not differing(slowed(started, 1.7), rows=rows)
    assert differing(slowed(started, 2.5), rows=rows)


def test_failed_requests_and_other_prompts_do_not_make_sessions_differ():
    stored = served_sweep(Sweep(is_attached=True, wobble=0.0, differing=0.5))
    assert not differing(stored)
    first = stored.blocks[0]
    assert first.order == (key_of(0).id,)
    failed = [replace(r, finish_reason="failed", decode_s=5.0) for r in first.requests]
    for num_failed in (3, 6):
        requests = (*failed[:num_failed], *first.requests[num_failed:])
        cut = replace(first, requests=requests)
        assert not differing(replace(stored, blocks=(cut, *stored.blocks[1:])), k=0)


def test_sessions_are_not_compared_with_few_prompts_or_in_open_loop():
    slow = slowed(served_sweep(Sweep(is_attached=True, num_prompts=4)), 2.5)
    assert not differing(slow)
    cell = cell_of(slowed(served_sweep(Sweep(is_attached=True)), 2.5), 4, rows=4)
    condition = replace(cell.key.condition, request_rate=4.0)
    in_open_loop = replace(cell, key=replace(cell.key, condition=condition), passes=())
    assert len(cell_warnings(cell)) == len(cell_warnings(in_open_loop)) + 1


def test_a_single_prompt_shows_no_variation_between_prompts():
    assert prompt_error(cell_of(served_sweep(Sweep(num_prompts=1)), 4)) is None
    assert prompt_error(cell_of(served_sweep(), 4, rows=4)) == 0  # one figure for a cycle


def test_a_prompts_speed_is_that_of_whole_cycles():
    cell = cell_of(served_sweep(), 4)
    (first, *_) = cell.cycles
    cut = {repeat: cycle for repeat, cycle in cell.cycles.items() if cycle != cell.cycles[first]}
    kept = tuple(r for r in cell.requests if r.repeat in cut)
    whole = prompt_seconds(replace(cell, cycles=cut, requests=kept))
    assert prompt_seconds(replace(cell, cycles=cut)) == whole != prompt_seconds(cell)
