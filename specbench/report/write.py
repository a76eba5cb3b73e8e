"""Report files in a run's folder. Imports matplotlib and pandas."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specbench.errors import StoreError
from specbench.frames.cells import cells_frame, decisions_frame
from specbench.frames.requests import requests_frame, rounds_frame
from specbench.frames.servers import servers_frame
from specbench.frames.tables import cells_csv, to_parquet
from specbench.report.document import Document
from specbench.report.html import to_html
from specbench.report.markdown import to_markdown
from specbench.runs import StoredRun
from specbench.whole_file import replaced


class _Text(NamedTuple):
    file: str
    render: Callable[[Sequence[Document]], str]


TEXTS: Mapping[str, _Text] = {
    "html": _Text("report.html", to_html),
    "md": _Text("report.md", to_markdown),
    "csv": _Text("cells.csv", cells_csv),
}
PARQUET = "parquet"  # a file per table


def write_report(
    runs: Sequence[StoredRun],
    documents: Sequence[Document],
    formats: Iterable[str],
    folder: Path,
) -> tuple[Path, ...]:
    """Write TEXTS and PARQUET of one or more runs into `folder`, each file whole or not at all.

    `documents`: the runs after analysis, which takes long for a large run. An earlier report
    in the folder is replaced. StoreError where the disk refuses; UsageError, before
    anything is written, for PARQUET without pyarrow.
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
            raise StoreError(
                f"{path}: cannot write the report: {error.strerror}. What was measured "
                f"is kept; make room or mend the folder, then: {_again(runs)}"
            ) from error
    return tuple(contents)


def _again(runs: Sequence[StoredRun]) -> str:
    return shlex.join(["specbench", "report", *(str(run.folder) for run in runs)])


def _contents(
    wanted: str, runs: Sequence[StoredRun], documents: Sequence[Document]
) -> Iterator[tuple[str, bytes]]:
    if wanted == PARQUET:
        yield "cells.parquet", to_parquet(cells_frame(documents))
        yield "requests.parquet", to_parquet(requests_frame(runs))
        yield "rounds.parquet", to_parquet(rounds_frame(runs))
        yield "decisions.parquet", to_parquet(decisions_frame(documents))
        yield "servers.parquet", to_parquet(servers_frame(runs))
    else:
        text = TEXTS[wanted]
        yield text.file, text.render(documents).encode()
