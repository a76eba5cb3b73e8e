"""The tables of a run that is small enough to be worked out by hand (`small_run.py`)."""

from dataclasses import replace

import pandas as pd
import pytest

from specbench.frames.tables import cells_frame, requests_frame, rounds_frame
from specbench.report.document import build_document
from tests.frames.small_run import KEY, small_run


@pytest.fixture
def cells() -> pd.DataFrame:
    return cells_frame([build_document(small_run())])


@pytest.fixture
def requests() -> pd.DataFrame:
    return requests_frame([small_run()])


@pytest.fixture
def rounds() -> pd.DataFrame:
    return rounds_frame([small_run()])


def test_a_round_is_a_row_with_the_request_it_belongs_to(rounds: pd.DataFrame) -> None:
    rows = rounds[(rounds["purpose"] == "explore") & (rounds["num_speculative_tokens"] == 3)]
    shown = rows[["prompt_id", "round_index", "num_drafted", "num_accepted", "num_emitted"]]
    assert [tuple(row) for row in shown.itertuples(index=False)] == [
        ("a", 0, 3, 3, 4),
        ("a", 1, 3, 1, 2),
        ("a", 2, 0, 0, 1),
        ("b", 0, 3, 0, 1),
        ("b", 1, 2, 2, 3),
    ]
    assert set(rows["cell_id"]) == {KEY.id}
    assert set(rows["run_id"]) == {"small"}


def test_every_finished_request_of_both_passes_gives_its_rounds(rounds: pd.DataFrame) -> None:
    # K = 3: 3 + 2 and 3 again; K = 0: 7 + 4 + 4 and 7 again. The failed request has none.
    assert len(rounds) == 8 + 22
    assert rounds["purpose"].value_counts().to_dict() == {"explore": 20, "confirm": 10}


def test_rounds_of_a_failed_request_are_excluded_from_the_frame() -> None:
    stored = small_run()
    first, *later_blocks = stored.blocks
    failed = replace(first.requests[0], finish_reason="failed", error="out of memory")
    broken = replace(first, requests=(failed, *first.requests[1:]))
    rounds = rounds_frame([replace(stored, blocks=(broken, *later_blocks))])
    assert len(rounds) == 8 + 22 - 3


def test_unreported_parts_of_a_round_are_absent(rounds: pd.DataFrame) -> None:
    rows = rounds[rounds["num_speculative_tokens"] == 3]
    assert rows.loc[rows["prompt_id"] == "a", "draft_s"].tolist() == [0.03, 0.03, 0.0] * 2
    assert rows.loc[rows["prompt_id"] == "b", ["draft_s", "verify_s"]].isna().all(axis=None)
    assert rows["round_s"].sum() == pytest.approx(2 * 0.44 + 0.31)


def test_the_request_frame_has_one_row_per_request(requests: pd.DataFrame) -> None:
    assert len(requests) == 8
    b = requests[(requests["prompt_id"] == "b") & (requests["drafter"] == "draft")].iloc[0]
    assert (b["num_output_tokens"], b["num_rounds"], b["seed"]) == (5, 2, 7)
    assert b["output_ids"] == (0, 1, 2, 3, 4)
    assert (b["decode_s"], b["total_s"]) == pytest.approx((0.31, 0.51))
    assert (b["energy_j"], b["device_power_w"], b["device_process_used_bytes"]) == (62, 200, 2048)
    assert b["finish_reason"] == "length"


def test_values_that_a_request_lacks_are_missing_in_the_frame(requests: pd.DataFrame) -> None:
    a = requests[(requests["prompt_id"] == "a")]
    assert (
        a[["energy_j", "device_num_samples", "cpu_s", "check_seconds", "error"]]
        .isna()
        .all(axis=None)
    )
    failed = requests[requests["finish_reason"] == "failed"]
    assert failed["error"].tolist() == ["out of memory"]
    assert failed[["num_rounds", "decode_s", "total_s"]].isna().all(axis=None)
    assert failed["num_output_tokens"].tolist() == [0]


def test_the_cell_frame_has_one_row_per_explored_cell(cells: pd.DataFrame) -> None:
    base, cell = (row for _, row in cells.iterrows())
    assert cell["mean_acceptance_length"] == pytest.approx(1 + 6 / 5)
    assert cell["acceptance_rate"] == pytest.approx(6 / 11)
    assert cell["acceptance_histogram"] == (2, 1, 1, 1)
    assert cell["decode_speedup"] == pytest.approx((0.7 + 0.4) / (0.44 + 0.31))
    assert cell["speedup"] == cell["decode_speedup"]
    assert cell["joules_per_token"] == pytest.approx(62 / 5)
    assert (cell["num_failed"], cell["num_requests"], cell["num_prompts"]) == (1, 3, 2)
    assert not cell["valid"]  # of this few rounds
    assert "rounds" in cell["invalid_reasons"]
    assert (base["drafter"], base["num_speculative_tokens"]) == ("none", 0)


def test_values_that_a_cell_lacks_are_missing_in_the_frame(cells: pd.DataFrame) -> None:
    base, cell = (row for _, row in cells.iterrows())
    assert base[["speedup", "speedup_low", "mean_acceptance_length"]].isna().all()
    assert cell[["speedup_low", "speedup_high"]].isna().all()  # two prompts give no interval
    assert cells[["peak_allocated_bytes", "context", "request_rate", "lossy"]].isna().all(axis=None)


def test_frames_of_several_runs_are_stacked() -> None:
    both = rounds_frame([small_run("one"), small_run("two")])
    pd.testing.assert_frame_equal(
        both[both["run_id"] == "two"].reset_index(drop=True).drop(columns="run_id"),
        rounds_frame([small_run("two")]).drop(columns="run_id"),
    )
    cells = cells_frame([build_document(small_run("one")), build_document(small_run("two"))])
    assert cells["run_id"].tolist() == ["one", "one", "two", "two"]
