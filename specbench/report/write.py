"""Report files in a run's folder. Imports matplotlib."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specbench.errors import StoreError
from specbench.report.csv import to_csv
from specbench.report.document import Document, build_document
from specbench.report.html import to_html
from specbench.report.markdown import to_markdown
from specbench.store import StoredRun


class _File(NamedTuple):
    name: str
    render: Callable[[Sequence[Document]], str]


FORMATS: Mapping[str, _File] = {
    "html": _File("report.html", to_html),
    "md": _File("report.md", to_markdown),
    "csv": _File("cells.csv", to_csv),
}


def write_report(
    runs: Sequence[StoredRun], formats: Iterable[str], folder: Path
) -> tuple[Path, ...]:
    """Write the asked FORMATS of one or more runs into `folder`, each file whole or not at all.

    An earlier report there is replaced. StoreError where the disk refuses.
    """
    documents = [build_document(run) for run in runs]
    paths = []
    for file in (FORMATS[name] for name in formats):
        path = folder / file.name
        _replace(path, file.render(documents))
        paths.append(path)
    return tuple(paths)


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot write the report: {error.strerror}") from error
