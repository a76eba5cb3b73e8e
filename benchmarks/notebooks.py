"""Writes the tables of columns in docs/notebooks.md.

    python -m benchmarks.notebooks

A test fails when what stands there is not what this script would write.
"""

from benchmarks.readme import ROOT, filled
from specbench.frames.tables import TABLES, describe

PAGE = ROOT / "docs" / "notebooks.md"


def rewritten(text: str) -> str:
    """The page with a table of columns for every table."""
    return filled(text, {name: _columns(name) for name in TABLES})


def _columns(table: str) -> str:
    lines = [f"One row is {TABLES[table].row}.", "", "| column | unit | type | meaning |"]
    lines.append("| --- | --- | --- | --- |")
    for column in describe(table).itertuples():
        meaning = column.meaning.replace("|", "\\|")
        lines.append(f"| `{column.name}` | {column.unit} | {column.dtype} | {meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
