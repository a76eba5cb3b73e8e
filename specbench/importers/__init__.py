"""Result files of other tools as our records: one file per format, found by what a result holds.

A format has `TOOL`, `recognises(result)` and `read(result, told)`. What a file does not carry
stays absent; what a cell's key cannot do without has to be told. Open `imported_cell.py` first.
"""

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from specbench.errors import UsageError
from specbench.importers.imported_cell import Format, ImportedCell, Told, to_cell
from specbench.importers.result_file import Result, read_results

_NOT_FORMATS = ("imported_cell", "result_file", "token_times")


def formats() -> tuple[Format, ...]:
    """Every format that can be read, by file name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_FORMATS)
    return tuple(cast(Format, import_module(f"{__name__}.{name}")) for name in names)


def import_files(files: Sequence[Path], told: Told) -> tuple[ImportedCell, ...]:
    """A cell for each result in the files, in order.

    UsageError names file and key: no JSON, an unknown format, a value that cannot be, a fact that
    is missing and was not told, or two results of one cell.
    """
    cells: list[ImportedCell] = []
    for result in (result for file in files for result in read_results(file)):
        known = _format_of(result)
        cell = to_cell(known.TOOL, known.read(result, told), result, told)
        twin = next((c for c in cells if c.key == cell.key), None)
        if twin is not None:
            raise UsageError(
                f"{result.place}: the same cell as {twin.record.file}, "
                f"{cell.key.label}; import repeats one by one, each becomes a run of its own"
            )
        cells.append(cell)
    return tuple(cells)


def _format_of(result: Result) -> Format:
    for known in formats():
        if known.recognises(result):
            return known
    tools = ", ".join(known.TOOL for known in formats())
    raise UsageError(f"{result.place}: not a result file of a known tool (known: {tools})")
