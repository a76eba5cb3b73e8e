"""Writes report files. Imports matplotlib and pandas."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specbench.errors import StoreError
from specbench.frames.tables import TABLES, cells_csv, to_parquet
from specbench.report.document import Document
from specbench.report.html import to_html
from specbench.report.markdown import to_markdown
from specbench.runs import StoredRun
from specbench.whole_file import replaced


class _TextFile(NamedTuple):
    file: str
    render: Callable[[Sequence[Document]], str]


TEXTS: Mapping[str, _TextFile] = {
    "html": _TextFile("report.html", to_html),
    "md": _TextFile("report.md", to_markdown),
    "csv": _TextFile("cells.csv", cells_csv),
}
PARQUET = "parquet"  # a file per table
FORMATS = (*TEXTS, PARQUET)


def write_report(
    runs: Sequence[StoredRun],
    documents: Sequence[Document],
    formats: Iterable[str],
    folder: Path,
) -> tuple[Path, ...]:
    """Writes one or more runs in these formats into `folder`, replacing an earlier report.

    `documents`: the analysis of the runs. Raises StoreError if a file cannot be written, and
    UsageError, before anything is written, for PARQUET without pyarrow.
    """
    contents = {
        folder / name: content
        for wanted in formats
        for name, content in _contents(wanted, runs, documents)
    }
    for path, content in contents.items():
        try:
            with replaced(path) as file:
                file.write(content)
        except OSError as error:
            command = shlex.join(["specbench", "report", *(str(run.folder) for run in runs)])
            raise StoreError(
                f"{path}: cannot write the report: {error.strerror}. The run is stored; free "
                f"space or repair the folder, then: {command}"
            ) from error
    return tuple(contents)


def _contents(
    wanted: str, runs: Sequence[StoredRun], documents: Sequence[Document]
) -> Iterator[tuple[str, bytes]]:
    if wanted == PARQUET:
        for name, table in TABLES.items():
            frame = table.frame(documents if table.is_analyzed else runs)
            yield f"{name}.parquet", to_parquet(frame)
    else:
        text = TEXTS[wanted]
        yield text.file, text.render(documents).encode()
