"""Writes report/schema.json and the tables of docs/json.md, from the fields that records declare.

    python -m tools.machine_document

A test fails if either is not what this script would write.
"""

import json
import re
from typing import Any

from benchmarks.readme import ROOT, filled
from specbench.doc import schema_of
from specbench.report import gate, history, recommendation
from specbench.report.document_json import json_schema
from specbench.verify import report as verify

DOCUMENTS = {
    document.name: document.type
    for document in (
        verify.DOCUMENT,
        gate.DOCUMENT,
        history.DOCUMENT,
        recommendation.DOCUMENT,
    )
}
PAGE = ROOT / "docs" / "json.md"
SCHEMA = ROOT / "specbench" / "report" / "schema.json"


def schema_text() -> str:
    """The schema as its file has it: a line per key of an object."""
    text = json.dumps(json_schema())
    return re.sub(r', "(?=\w+": \{)', ',\n"', text) + "\n"


def rewritten(text: str) -> str:
    """The page with a table of keys for every object that it has a mark for."""
    schemas = {"Document": json_schema()}
    schemas |= {name: schema_of(kind) for name, kind in DOCUMENTS.items()}
    objects = schemas | {n: part for s in schemas.values() for n, part in s["$defs"].items()}
    marked = {name: keys for name, keys in objects.items() if f"<!-- begin {name} -->" in text}
    return filled(text, {name: _table(keys["properties"]) for name, keys in marked.items()})


def _table(properties: dict[str, Any]) -> str:
    lines = ["| key | unit | meaning |", "| --- | --- | --- |"]
    for name, key in properties.items():
        lines.append(f"| `{name}` | {key.get('unit', '')} | {key['description']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
