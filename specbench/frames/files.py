"""Tables as files: the cells as CSV, any of them as Parquet."""

import io
import json
from collections.abc import Sequence

import pandas as pd

from specbench.errors import UsageError
from specbench.frames.cells import Analysed, cells_frame
from specbench.frames.column import LIST

# Written as JSON writes them, from the first version of the file on; other flags as True, False.
_JSON_FLAGS = ("synthetic", "valid")


def cells_csv(runs: Sequence[Analysed]) -> str:
    """Units as stored (seconds, bytes, fractions); lists are JSON; empty where absent."""
    cells = cells_frame(runs)
    for name in cells.columns:
        if name in _JSON_FLAGS or cells[name].dtype == LIST:
            cells[name] = [None if value is None else json.dumps(value) for value in cells[name]]
    return cells.to_csv(index=False, lineterminator="\n")


def to_parquet(table: pd.DataFrame) -> bytes:
    """The table with its types, a list as a list. UsageError without pyarrow, which writes it."""
    buffer = io.BytesIO()
    try:
        table.to_parquet(buffer, engine="pyarrow", index=False)
    except ImportError as error:
        raise UsageError(
            "Parquet needs pyarrow: python -m pip install 'specbench[parquet]'"
        ) from error
    return buffer.getvalue()
