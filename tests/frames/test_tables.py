"""Tables agree with the report and have documented columns."""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pytest

from specbench.doc import Doc, keys_of
from specbench.errors import UsageError
from specbench.frames.tables import (
    TABLES,
    cells_csv,
    cells_frame,
    decisions_frame,
    describe,
    requests_frame,
    rounds_frame,
    servers_frame,
    to_parquet,
)
from specbench.records.keys import AXES
from specbench.report.document import Document, build_document
from specbench.report.document_json import to_json
from specbench.runs import StoredRun
from tests.cell_keys import with_axes
from tests.cli.calls import specbench
from tests.frames.small_run import small_run
from tests.report.served_runs import served_run
from tests.report.stored_runs import SMALL, keep, stored_run
from tests.served_sessions import Sweep, key_of, served_sweep

RUNS = {
    "cpu": stored_run(SMALL),
    "gpu": stored_run(replace(SMALL, temperatures=(0.0, 1.0), device="gpu", throttled_k=4)),
    "served": served_run(),
    "small": small_run(),
}
EMPTY = replace(small_run(), blocks=())


@pytest.fixture(params=RUNS, scope="module")
def stored(request: pytest.FixtureRequest) -> StoredRun:
    return RUNS[request.param]


@pytest.fixture(scope="module")
def document(stored: StoredRun) -> Document:
    return build_document(stored)


@pytest.fixture(scope="module")
def cells(document: Document) -> pd.DataFrame:
    return cells_frame([document]).set_index("cell_id")


def frames_of(stored: StoredRun) -> dict[str, pd.DataFrame]:
    document = build_document(stored)
    return {
        "cells": cells_frame([document]),
        "requests": requests_frame([stored]),
        "rounds": rounds_frame([stored]),
        "decisions": decisions_frame([document]),
        "servers": servers_frame([stored]),
    }


def assert_same(actual: pd.Series, metric: pd.Series) -> None:
    """Both are equal for every cell that has the metric."""
    known = metric.dropna()
    assert len(known)
    assert actual.reindex(known.index).tolist() == pytest.approx(known.tolist(), rel=1e-9)


def test_summed_rounds_give_the_metrics_of_the_report(
    stored: StoredRun, cells: pd.DataFrame
) -> None:
    rounds = rounds_frame([stored])
    rounds = rounds[rounds["purpose"] == "explore"]
    by_cell = rounds.groupby("cell_id", observed=True)
    sums = by_cell[["num_drafted", "num_accepted", "num_emitted"]].sum()
    assert_same(by_cell.size(), cells["num_rounds"])
    assert_same(1 + sums["num_accepted"] / by_cell.size(), cells["mean_acceptance_length"])
    assert_same(sums["num_accepted"] / sums["num_drafted"], cells["acceptance_rate"])
    assert_same(by_cell["round_s"].mean(), cells["round_s"])
    assert_same(by_cell["round_s"].median(), cells["round_s_p50"])
    for cell_id, histogram in cells["acceptance_histogram"].dropna().items():
        counted = rounds.loc[rounds["cell_id"] == cell_id, "num_accepted"].value_counts()
        assert counted.reindex(range(len(histogram)), fill_value=0).tolist() == list(histogram)


def test_summed_requests_give_the_metrics_of_the_report(
    stored: StoredRun, cells: pd.DataFrame
) -> None:
    requests = requests_frame([stored])
    requests = requests[requests["purpose"] == "explore"]
    done = requests[requests["finish_reason"] != "failed"].groupby("cell_id", observed=True)
    after_first = done["num_output_tokens"].sum() - done.size()
    assert_same(after_first / done["decode_s"].sum(), cells["decode_tokens_per_s"])
    assert_same(done["num_output_tokens"].sum(), cells["num_output_tokens"])
    assert_same(done["num_rounds"].sum(), cells["num_rounds"])
    assert_same(done["ttft_s"].median(), cells["ttft_s"])
    every = requests.groupby("cell_id", observed=True)
    assert_same(every.size() - done.size(), cells["num_failed"])
    assert_same(every.size(), cells["num_requests"])


def test_speedups_follow_from_paired_requests() -> None:
    stored = RUNS["cpu"]
    requests = requests_frame([stored])
    requests = requests[requests["purpose"] == "explore"]
    pairs = requests.merge(
        requests[requests["num_speculative_tokens"] == 0],
        on=["workload", "prompt_id", "turn", "repeat", "sample"],
        suffixes=("", "_base"),
    )
    sums = pairs.groupby("cell_id", observed=True)[["decode_s_base", "decode_s"]].sum()
    cells = cells_frame([build_document(stored)]).set_index("cell_id")
    assert_same(sums["decode_s_base"] / sums["decode_s"], cells["decode_speedup"])


def test_the_cell_frame_equals_the_cells_of_the_json_report(document: Document) -> None:
    frame = cells_frame([document])
    for row, cell in zip(rows(frame), to_json(document)["cells"], strict=True):
        flat = {**cell, **cell["metrics"], **spread(cell, "speedup", "speedup_end_to_end")}
        for name in ("invalid_reasons", "warnings"):
            flat |= in_words(cell, name)
        assert_same_values(row, flat, besides=("run_id", "synthetic", "cell_id"))


def test_the_decision_frame_equals_the_decisions_of_the_json_report(document: Document) -> None:
    frame = decisions_frame([document])
    for row, decision in zip(rows(frame), to_json(document)["decisions"], strict=True):
        flat = {**decision, **spread(decision, "speedup", "end_to_end")}
        for name in ("answer", "reasons", "warnings"):
            flat |= in_words(decision, name)
        assert_same_values(row, flat, besides=("run_id", "cell_id", "drafter"))
        assert set(decision) <= set(row)
        if row["verdict"] == "faster":
            assert row["num_speculative_tokens"] > 0
        else:
            assert (row["method"], row["num_speculative_tokens"]) == ("none", 0)


def test_an_adaptive_k_that_is_not_recommended_is_not_the_answer() -> None:
    document = build_document(RUNS["cpu"])
    lost = next(d for d in document.decisions if d.draft.k == 0)
    lost = replace(lost, leader=with_axes(lost.leader, adaptive=True))
    (row,) = rows(decisions_frame([replace(document, decisions=(lost,))]))
    assert (row["adaptive"], row["num_speculative_tokens"]) == (False, 0)
    assert "|kauto|" in row["cell_id"]  # the cell that it speaks of


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Plain values; None for absent ones."""
    plain = table.astype(object)
    return plain.where(plain.notna(), None).to_dict("records")


def in_words(record: dict[str, Any], name: str) -> dict[str, str]:
    kinds, texts = ("; ".join(reason[key] for reason in record[name]) for key in ("kind", "text"))
    return {name: kinds, f"{name}_text": texts}


def spread(record: dict[str, Any], *names: str) -> dict[str, Any]:
    parts = {"": "estimate", "_low": "low", "_high": "high"}
    return {
        name + suffix: (record[name] or {}).get(part)
        for name in names
        for suffix, part in parts.items()
    }


def assert_same_values(
    row: dict[str, Any], document: dict[str, Any], besides: Sequence[str]
) -> None:
    for name in row.keys() - set(besides):
        value = document.get(name)
        assert row[name] == (tuple(value) if isinstance(value, list) else value), name


@pytest.mark.slow
@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize("table", TABLES)
def test_columns_and_types_are_the_documented_ones_in_every_run(table: str) -> None:
    listed = describe(table)
    for stored in (*RUNS.values(), EMPTY):
        frame = frames_of(stored)[table]
        assert list(frame.columns) == listed["name"].tolist()
        assert [str(dtype) for dtype in frame.dtypes] == listed["dtype"].tolist()
        assert frame.index.equals(pd.RangeIndex(len(frame)))


@pytest.mark.parametrize("table", TABLES)
def test_every_column_has_a_meaning_and_the_unit_of_its_name(table: str) -> None:
    listed = describe(table)
    assert listed["name"].is_unique
    assert listed["meaning"].str.len().min() > 0
    units = {"_s": "s", "_bytes": "bytes", "_j": "J", "_w": "W", "_mhz": "MHz"}
    for suffix, unit in units.items():
        named = listed[
            listed["name"].str.endswith(suffix) & ~listed["name"].str.contains("_per_|tpot")
        ]
        assert set(named["unit"]) <= {unit}
    assert re.search("'cell': .*cells, requests, rounds, decisions", refusal("cell"))


def refusal(table: str) -> str:
    with pytest.raises(UsageError) as error:
        describe(table)
    return str(error.value)


def test_a_field_without_a_meaning_is_refused() -> None:
    @dataclass
    class Record:
        known: Annotated[int, Doc("known")]
        new: int

    with pytest.raises(TypeError, match=r"Record: .*new"):
        keys_of(Record)


def test_a_count_that_another_tool_gives_as_a_mean_keeps_its_fraction() -> None:
    document = build_document(RUNS["small"])
    first, *later_cells = document.cells
    averaged = replace(first, metrics={**first.metrics, "num_output_tokens": 12.5})
    frame = cells_frame([replace(document, cells=(averaged, *later_cells))])
    assert frame["num_output_tokens"].tolist() == [12.5, 13.0]


STORED = served_sweep(Sweep(again=((4, 3, 1),)))


def test_counts_of_requests_give_the_metrics_of_the_report():
    requests = requests_frame([STORED])
    sessions = servers_frame([STORED])
    sound = sessions.loc[sessions["problems"] == "", "session"]
    rows = requests[(requests["purpose"] == "explore") & requests["session"].isin(sound)]
    sums = rows.groupby("cell_id", observed=True)[
        ["counted_num_rounds", "counted_num_accepted", "counted_num_overshot", "num_rounds"]
    ].sum()
    cells = cells_frame([build_document(STORED)]).set_index("cell_id")
    for key in (key_of(2), key_of(4), key_of(4, rows=4)):
        rounds, accepted, overshot, known = sums.loc[key.id]
        assert cells.loc[key.id, "mean_acceptance_length"] == pytest.approx(1 + accepted / rounds)
        assert cells.loc[key.id, "num_overshot"] == overshot
        assert cells.loc[key.id, "num_rounds"] == rounds == known


def test_the_request_table_has_the_session_and_the_text():
    requests = requests_frame([STORED])
    joined = requests.merge(servers_frame([STORED]), on=["run_id", "session"], validate="m:1")
    assert len(joined) == len(requests)
    assert (joined["num_speculative_tokens_x"] == joined["num_speculative_tokens_y"]).all()
    assert (joined["cycle_x"] == joined["cycle_y"]).all()
    assert requests["text"].iloc[0] == "answer 0"
    plain = requests[requests["num_speculative_tokens"] == 0]
    assert plain[["num_rounds", "counted_num_rounds"]].isna().all(axis=None)
    drafted = requests[requests["num_speculative_tokens"] == 2]
    assert set(drafted["counted_num_by_accepted"]) == {(4, 4, 4)}


def test_a_server_reports_no_single_rounds():
    assert rounds_frame([STORED]).empty


def test_a_session_is_a_row_with_its_facts_and_counts():
    sessions = servers_frame([STORED])
    assert len(sessions) == len(STORED.servers)
    first = sessions[sessions["num_speculative_tokens"] == 4].iloc[0]
    assert first["counted_num_accepted"] == STORED.servers[2].counters["num_accepted"]
    assert (first["kv_tokens"], first["num_gpus"], first["power_w"]) == (18_000, 1, 300.0)
    assert (first["client_cpu_s"], first["client_num_events"]) == (1.0, 1000)
    assert json.loads(first["settings"]) == {"dtype": "float32", "block_size": "16"}
    assert first["command"].startswith("vllm serve models/target '--spec")
    assert sessions["problems"].str.startswith("another client").sum() == 1


def test_a_run_of_our_own_engine_has_no_sessions():
    assert servers_frame([small_run()]).empty
    assert requests_frame([small_run()])[["session", "cycle", "text"]].isna().all(axis=None)


WRITTEN_BY_0_1_0 = Path(__file__).with_name("cells_of_0_1_0.csv")
MISSING = "Parquet needs pyarrow: python -m pip install pyarrow"
WISH = replace(
    SMALL, ks=(0, 1), workloads=("code",), drafters=("draft",), device="gpu", throttled_k=1
)


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_a_script_that_reads_cells_csv_keeps_working() -> None:
    before = read(WRITTEN_BY_0_1_0.read_text(encoding="utf-8"))
    after = read(cells_csv([build_document(stored_run(WISH))]))
    kept = [name for name in after[0] if name in before[0]]
    assert kept == before[0]
    first_metric = before[0].index("acceptance_histogram")
    in_place = [name for name in after[0] if name in before[0] or name not in AXES]  # no new axis
    assert in_place[:first_metric] == before[0][:first_metric]
    places = [after[0].index(name) for name in before[0]]
    assert len(after) == len(before)
    for row, expected in zip(after, before, strict=True):
        assert [_value(row[i]) for i in places] == list(map(_value, expected))


def _value(text: str) -> object:
    """A cell of a table; numbers up to the last digits, in which versions of SciPy differ."""
    try:
        return pytest.approx(float(text), rel=1e-9)
    except ValueError:
        return text


def test_parquet_reads_back_or_names_the_package_to_install() -> None:
    table = rounds_frame([small_run()])
    if find_spec("pyarrow") is None:
        with pytest.raises(UsageError, match="pip install pyarrow"):
            to_parquet(table)
    else:
        read = pd.read_parquet(io.BytesIO(to_parquet(table)))
        pd.testing.assert_frame_equal(read, table, check_categorical=False)


def test_report_writes_parquet_or_names_the_package_to_install(tmp_path: Path) -> None:
    folder = keep(tmp_path / "reports", "small", small_run())
    before = set(folder.iterdir())
    ran = specbench("report", "small", "--format", "csv,parquet", cwd=tmp_path)
    added = {path.name for path in set(folder.iterdir()) - before}
    if find_spec("pyarrow") is None:
        assert (ran.code, added) == (2, set())
        assert ran.err == f"error: {MISSING}\n"
    else:
        assert (ran.code, added) == (0, {"cells.csv", *(f"{name}.parquet" for name in TABLES)})
