"""Progress and cells that a run shows, on a real terminal and in a log."""

import math
import re
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specbench.cli import progress
from specbench.cli.progress import MOST_LINES, FinishedCells, LiveCells, ProgressWatch, duration
from specbench.models.library_output import report_progress
from specbench.records import Fixed, PassRecord, RoundLog
from specbench.stats.machine_noise import PARTS, MachineKind, assumed_noise
from tests.bench.fake_runs import write_prompts
from tests.cell_keys import BASE_KEY, KEY
from tests.cli.calls import MEASURED
from tests.cli.sessions import seen_on_a_terminal
from tests.made_records import made_block, made_request, steps

PATIENCE_S = 20.0


def read_stderr_until(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """Standard error up to some words, or until a timeout."""
    text, until = "", time.monotonic() + PATIENCE_S
    while words not in text and time.monotonic() < until:
        time.sleep(0.01)
        text += capsys.readouterr().err
    return text


def test_without_a_terminal_one_line_a_minute_reports_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MINUTE_S", 0.02)
    with ProgressWatch() as watch:
        watch.stage("big: own")
        watch.advance(2, 12, None)
        watch.advance(3, 12, None)
        text = read_stderr_until(capsys, "3 of 12 blocks")
    line = next(line for line in text.splitlines() if "3 of 12 blocks" in line)
    assert line.startswith("big: own, ")
    assert line.endswith(" left")


def test_without_a_terminal_nothing_is_printed_before_a_minute_or_after_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProgressWatch() as watch:
        watch.stage("big: own")
        watch.advance(3, 12, None)
    monkeypatch.setattr(progress, "MINUTE_S", 0.01)
    with ProgressWatch() as watch:
        watch.stage("big: other")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_the_progress_bar_of_a_budget_shows_time() -> None:
    watch = ProgressWatch()
    (task,) = watch._progress.tasks
    watch.advance(1, 40, None)
    assert (task.completed, task.total) == (1, 40)
    watch.advance(1, 40, 30.0)
    assert task.total - task.completed == pytest.approx(30)
    watch.advance(9, 40, 0.0)
    assert task.completed == task.total
    watch.advance(10, 40, -2.0)
    assert task.completed == task.total


def test_the_remaining_time_is_estimated_from_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading took 100 s, each block 2 s; a second pass starts from 0."""
    with ProgressWatch() as watch:
        task = watch._progress.tasks[watch._task]
        for done, elapsed, left in (
            (1, 102.0, None),
            (3, 106.0, 18.0),
            (1, 150.0, None),
            (2, 152.0, 20.0),
        ):
            monkeypatch.setattr(type(task), "elapsed", elapsed)
            watch.advance(done, 12, None)
            expected = "" if left is None else f"about {duration(left)} left"
            assert task.fields["left"] == expected


def test_a_slow_step_shows_its_stage_until_the_next_step_or_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MINUTE_S", 0.02)
    with ProgressWatch() as watch:
        task = watch._progress.tasks[watch._task]
        watch.stage("big: loading")
        report_progress("reading weights: 7 of 9 tensors")
        assert read_stderr_until(capsys, "big: loading: reading weights: 7 of 9 tensors, ")
        report_progress("")
        assert task.description == "big: loading"
        report_progress("reading weights: 8 of 9 tensors")
        watch.stage("big: warming up")
        assert task.description == "big: warming up"
    report_progress("of nobody")
    assert task.description == "big: warming up"


# 2 rounds of 4 and 2 tokens after the prefill's first.
ROUNDS = RoundLog(num_drafted=(4, 4), num_accepted=(3, 1), num_emitted=(4, 2), round_s=(0.1, 0.1))


def block_of(*keys: Any) -> Any:
    return cast(Any, SimpleNamespace(cells=[SimpleNamespace(key=key) for key in keys]))


def test_live_cells_count_a_repeated_prompt_once() -> None:
    cells = LiveCells()
    for prompt, repeat in (("p1", 0), ("p1", 1), ("p2", 0)):
        request = made_request(KEY.id, prompt, ROUNDS, decode_s=0.1 if repeat else 0.2)
        cells.add(block_of(KEY), made_block(prompt, request, repeat=repeat))
    assert cells.recent() == [f"{KEY.label}, 36.0 tok/s, 3.00 tokens per round, 2 prompts"]


def test_concurrent_requests_are_timed_by_their_pass_with_every_token() -> None:
    requests = [made_request(KEY.id, name, ROUNDS) for name in ("p1", "p2")]
    pass_record = PassRecord(cell_id=KEY.id, seconds=0.5, rounds=None)
    alone = made_request(BASE_KEY.id, "p1", steps(9))
    stray = PassRecord(cell_id="of another block", seconds=9.0, rounds=None)
    cells = LiveCells()
    block = made_block("all", alone, *requests, passes=(pass_record, stray))
    cells.add(block_of(KEY, BASE_KEY), block)
    assert cells.recent() == [
        f"{KEY.label}, 28.0 tok/s, 3.00 tokens per round, 2 prompts",
        f"{BASE_KEY.label}, 10.0 tok/s, 1 prompt",
    ]


def test_a_request_that_failed_is_counted_and_has_no_speed() -> None:
    cells = LiveCells()
    lost = made_request(KEY.id, "p1", ROUNDS, error="out of memory")
    cells.add(block_of(KEY), made_block("p1", lost))
    assert cells.recent() == [f"{KEY.label}, 1 failed, 1 prompt"]


def test_a_stream_that_decoding_cannot_produce_has_no_speed() -> None:
    """12 of 13 tokens came in one burst."""
    cells = LiveCells()
    gaps_s = (*[0.00001] * 11, 0.5)
    burst = made_request(BASE_KEY.id, "p1", None, num_tokens=13, decode_s=0.5, chunk_s=gaps_s)
    cells.add(block_of(BASE_KEY), made_block("p1", burst))
    assert cells.recent() == [f"{BASE_KEY.label}, no decode speed: bursts, 1 prompt"]


def test_only_the_last_block_is_shown_and_no_more_than_fits() -> None:
    keys = [KEY.at(Fixed(k)) for k in range(1, 17)]
    cells = LiveCells()
    cells.add(block_of(BASE_KEY), made_block("p1", made_request(BASE_KEY.id, "p1", steps(2))))
    requests = [made_request(key.id, "p1", ROUNDS) for key in keys]
    cells.add(block_of(*keys, BASE_KEY), made_block("p1", *requests))
    lines = cells.recent()
    assert len(lines) == MOST_LINES
    assert [line.partition(",")[0] for line in lines] == [key.label for key in keys][:MOST_LINES]
    cells.add(block_of(KEY), made_block("p2"))  # not begun
    assert cells.recent() == []


def measured(purpose: str, prompt: str, *keys: Any, session: str | None = None) -> tuple[Any, Any]:
    """A block of these cells; K = 0 takes 0.4 s per token, every other K 0.1 s per round."""
    requests = [
        made_request(k.id, prompt, ROUNDS if k.draft.k else steps(6, 0.1), decode_s=None)
        if session
        else made_request(k.id, prompt, ROUNDS if k.draft.k else steps(6, 0.1))
        for k in keys
    ]
    block = SimpleNamespace(
        **vars(block_of(*keys)), condition=KEY.condition, purpose=purpose, session=session
    )
    return cast(Any, block), made_block(prompt, *requests, purpose=purpose, session=session)


def columns(line: str) -> list[str]:
    return re.split("  +", line)


def test_a_cell_is_finished_when_later_blocks_omit_it() -> None:
    cells, other = FinishedCells(), KEY.at(Fixed(1))
    assert cells.add(*measured("explore", "p1", BASE_KEY, KEY, other)) == []
    (line,) = cells.add(*measured("explore", "p2", BASE_KEY, KEY))
    time, name, workload, k, _, prompts, note = columns(line)  # without the speedup of one prompt
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time)
    assert (name, workload, k) == (KEY.source, KEY.condition.workload, "K=1")
    assert (prompts, note) == ("1 prompt", "too few for an interval")


def test_finished_cell_lines_are_aligned_and_name_their_phase() -> None:
    cells = FinishedCells()
    for i in range(6):
        assert cells.add(*measured("explore", f"p{i}", BASE_KEY, KEY)) == []
    base, drafted = cells.add(*measured("confirm", "p1", BASE_KEY, KEY))
    # All prompts agree: what is assumed of the machine remains.
    margin = assumed_noise(MachineKind.QUIET_CPU).of_parts([0.0] * PARTS).of_run.margin()
    bounds = ", ".join(f"{3 * math.exp(sign * margin):.2f}" for sign in (-1, 1))
    assert columns(drafted)[-3:] == ["3.00x", f"[{bounds}]", "6 prompts"]
    assert base.index("6 prompts") == drafted.index("6 prompts")
    assert columns(base)[1] == BASE_KEY.condition.target
    assert [columns(line)[-1] for line in cells.end()] == ["confirmation run"] * 2
    assert cells.end() == []


def test_a_finished_session_of_a_server_is_one_line() -> None:
    (line,) = FinishedCells().add(*measured("explore", "all", KEY, session="a session"))
    assert columns(line)[3:] == [KEY.draft.length.named, "1 prompt"]


@pytest.mark.parametrize(
    ("is_verbose", "session", "num_lines"), [(False, None, 0), (True, None, 2), (False, "one", 1)]
)
def test_a_log_has_lines_of_cells_if_verbose_and_of_server_sessions(
    capsys: pytest.CaptureFixture[str], is_verbose: bool, session: str | None, num_lines: int
) -> None:
    keys = [KEY] if session else [BASE_KEY, KEY]
    with ProgressWatch(is_verbose=is_verbose) as watch:
        watch.measured(*measured("explore", "p1", *keys, session=session))
    assert len(capsys.readouterr().err.splitlines()) == num_lines


def test_a_log_has_one_line_per_stage_whatever_part_of_it_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressWatch() as watch:
        for workload in ("code", "chat", "code"):
            watch.stage("big: measuring", workload)
            (task,) = watch._progress.tasks
            assert task.description == f"big: measuring on {workload}"
    assert capsys.readouterr().err.splitlines() == ["big: measuring"]


CLEAR_LINE, SHOWN_ESCAPE = "\x1b[2K", "\u241b"


def test_the_live_view_shows_control_characters_of_a_name(tiny, tmp_path):
    prompts = write_prompts(tmp_path / "odd\x1b[31mname.jsonl", [f"prompt {i}" for i in range(5)])
    seen, code = seen_on_a_terminal(
        *("run", "tiny/draft", "-k", "2", "-w", prompts, "--num-prompts", "5"),
        *("--max-new-tokens", "4", "--threads", "1", "--device", "cpu"),
        cwd=tiny,
    )
    assert code in MEASURED, seen[-2000:]
    assert seen.count(CLEAR_LINE) > 2
    assert "/?" not in seen  # before the total is known
    name = f"odd{SHOWN_ESCAPE}[31mname"
    assert name in seen
    assert seen.count(SHOWN_ESCAPE) == seen.count(name)
    _, *lines = seen.rpartition("report: ")[2].splitlines()
    assert " ".join(lines).strip().startswith("odd")
    assert 40 < max(map(len, lines)) <= 80  # broken between words
