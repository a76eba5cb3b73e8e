"""Cells as CSV, read back by another reader."""

import io
import json

import pandas as pd
import pytest

from specbench.frames.tables import cells_csv
from specbench.metrics.registry import all_metrics
from specbench.report.document import Document


def read(*documents: Document) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(cells_csv(documents)))


def test_the_csv_has_one_row_per_cell_and_one_column_per_metric(
    cpu_document: Document, gpu_document: Document
) -> None:
    table = read(cpu_document, gpu_document)
    assert len(table) == len(cpu_document.cells) + len(gpu_document.cells)
    assert set(all_metrics()) <= set(table.columns)


def test_numbers_read_from_csv_equal_the_originals(cpu_document: Document) -> None:
    table = read(cpu_document)
    cell = cpu_document.cells[2]
    row = table.iloc[2]
    assert cell.speedup is not None
    assert (row["pairing"], row["num_speculative_tokens"]) == ("demo/draft", 2)
    assert row["speedup_low"] == pytest.approx(cell.speedup.low, rel=1e-12)
    assert row["round_s"] == pytest.approx(cell.metrics["round_s"], rel=1e-12)
    rates = json.loads(row["acceptance_rate_per_position"])
    assert rates == list(cell.metrics["acceptance_rate_per_position"])  # type: ignore[arg-type]


def test_absent_values_are_empty(cpu_document: Document) -> None:
    table = read(cpu_document)
    assert table["joules_per_token"].isna().all()
    assert table.loc[table["num_speculative_tokens"] == 0, "speedup"].isna().all()
    assert "nan" not in cells_csv([cpu_document]).lower()


def test_the_row_of_an_invalid_cell_has_the_reason(gpu_document: Document) -> None:
    table = read(gpu_document)
    invalid = table[~table["valid"]]
    assert set(invalid["num_speculative_tokens"]) == {4}
    assert invalid["invalid_reasons"].str.contains("throttled").all()
