"""Tables as files: CSV as scripts know it, Parquet where pyarrow is there."""

import csv
import io
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from specbench.errors import UsageError
from specbench.frames.requests import rounds_frame
from specbench.frames.tables import TABLES, cells_csv, to_parquet
from specbench.records.keys import AXES
from specbench.report.document import build_document
from tests.cli.calls import specbench
from tests.frames.small_run import small_run
from tests.report.stored_runs import SMALL, keep, stored_run

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
    assert [[row[i] for i in places] for row in after] == before


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
