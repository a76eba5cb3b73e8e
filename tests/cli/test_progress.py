"""What a run says of its progress, on a terminal and in a log."""

import time

import pytest

from specbench.cli import progress
from specbench.cli.progress import ProgressWatch, duration
from specbench.models.library_output import report_progress

PATIENCE_S = 20.0


def read_stderr_until(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """Standard error until it holds some words, or for as long as one has patience."""
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
    """Loading took 100 s, each block 2 s; a second pass begins anew."""
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
