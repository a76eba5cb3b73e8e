"""Converts a stored run of schema 7 to schema 8, in place: `python -m tools.convert_run FOLDER`.

Keys of removed options go. Warnings become notes with the same words, since their figures cannot be
recovered.
"""

import json
import sys
from pathlib import Path


def convert(folder: Path) -> None:
    """Convert run.json and records.jsonl; ValueError for another schema."""
    path, records = folder / "run.json", folder / "records.jsonl"
    run = json.loads(path.read_text(encoding="utf-8"))
    if run["schema_version"] != 7:
        raise ValueError(f"{path}: schema version {run['schema_version']}, not 7")
    run["schema_version"] = 8
    run["settings"].pop("compile", None)
    run["warnings"] = [{"kind": "note", "figures": {"text": words}} for words in run["warnings"]]
    lines = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["data"].pop("compile_s", None)
    texts = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
    records.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    path.write_text(json.dumps(run, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
