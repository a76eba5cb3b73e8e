"""A stored run in a notebook: tables as DataFrames, the report, and the recommendation."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.errors import UsageError
from specbench.frames.tables import (
    cells_frame,
    decisions_frame,
    describe,
    requests_frame,
    rounds_frame,
    servers_frame,
)
from specbench.report.answers import answer_lines
from specbench.report.document import Document, build_document
from specbench.report.document_json import to_json
from specbench.report.notes import warning_lines
from specbench.report.write import TEXTS
from specbench.runs import LATEST, StoredRun, load_run
from specbench.whole_file import write_errors_named, write_whole

_REPORTS: Mapping[str, Callable[[Sequence[Document]], str]] = {
    **{name: text.render for name, text in TEXTS.items()},
    "markdown": TEXTS["md"].render,
    "json": lambda documents: json.dumps(to_json(documents[0]), indent=2, allow_nan=False),
}


def load(run: str | Path = LATEST, root: str | Path = "reports") -> "LoadedRun":
    """Load a stored run by its id, its folder or `latest`, like `specbench report`.

    Ids are looked up in `root`, as with the option --runs-dir. Interrupted and running runs can
    also be loaded. StoreError if the run does not exist, is damaged or has a newer schema.
    """
    return LoadedRun(load_run(run, Path(root)))


class LoadedRun:
    """A run as it was on disk when it was loaded.

    A table is made when it is first used, and then kept with any columns that you add.
    """

    def __init__(self, stored: StoredRun) -> None:
        self._stored = stored
        self._document = build_document(stored)

    @property
    def id(self) -> str:
        return self._document.run.run_id

    @property
    def folder(self) -> Path:
        return self._stored.folder

    @property
    def is_complete(self) -> bool:
        """Whether the run had finished when it was loaded."""
        return self._document.is_complete

    @property
    def answers(self) -> list[str]:
        """The sentences at the end of the command line's output."""
        return answer_lines(self._document)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the run as a whole."""
        return warning_lines(self._document)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell, from the exploration: validity, speedup, every metric."""
        return cells_frame([self._document])

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request, failed ones included: tokens, seconds, energy."""
        return requests_frame([self._stored])

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round of the requests that finished: drafted, accepted, emitted, seconds."""
        return rounds_frame([self._stored])

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """One row per drafter and setting: what to use, its speedup, the sentence."""
        return decisions_frame([self._document])

    @cached_property
    def servers(self) -> pd.DataFrame:
        """One row per session of a serving engine: its start, KV cache, counters and settings."""
        return servers_frame([self._stored])

    @staticmethod
    def columns(table: str = "cells") -> pd.DataFrame:
        """Name, unit, meaning and type of a table's columns; UsageError for an unknown table."""
        return describe(table)

    def to_json(self) -> dict[str, Any]:
        """The machine document of `specbench report --json`; `specbench schema` describes it."""
        return to_json(self._document)

    def report(self, format: str = "html", path: str | Path | None = None) -> str:
        """The report as html, markdown (md), csv or json; with `path` also written to that file.

        csv has the cells. UsageError for another format; StoreError if the file cannot be written.
        """
        if format not in _REPORTS:
            raise UsageError(f"no format {format!r}: choose from {', '.join(_REPORTS)}")
        text = _REPORTS[format]([self._document])
        if path is not None:
            with write_errors_named(Path(path)):
                write_whole(Path(path), text)
        return text

    def __repr__(self) -> str:
        return "\n".join((self._title, *self.answers))

    def _repr_html_(self) -> str:
        """The display in a notebook: recommendations and warnings, as plain text."""
        warnings = "".join(f"<li>{escape(text)}</li>" for text in self.warnings)
        answers = escape("\n".join(self.answers))
        listed = f"<ul>{warnings}</ul>" if warnings else ""
        return f"<p>{escape(self._title)}</p><pre>{answers}</pre>{listed}"

    @property
    def _title(self) -> str:
        return f"run {self.id}" + ("" if self.is_complete else ", not complete")
